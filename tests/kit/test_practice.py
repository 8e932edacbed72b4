"""Hints, reset, diff, read, and what grade remembers."""

import os
import subprocess
import sys
import time

import pytest

from grader import lesson
from grader.chapters import all_chapters
from submissions import CHAPTER, POOLED, SOLUTION, STUB, changed, grader

pytestmark = pytest.mark.timeout(120)
FILE = f"exercises/{CHAPTER.file}"


def test_hints_come_one_by_one_and_the_last_one_stays(kit):
    shown = [grader(kit, "hint", "11", "mean_pool").stdout for _ in range(4)]
    assert [f"hint {n} of 3" in text for n, text in zip((1, 2, 3, 3), shown, strict=True)] == [
        True
    ] * 4
    assert "make hint chapter=11 exercise=mean_pool" in shown[0]
    assert "make diff chapter=11 exercise=mean_pool reveal=1" in shown[2]
    assert shown[2] == shown[3]


def test_hints_never_print_the_answer():
    for chapter in (c for c in all_chapters() if c.walkthrough.exists()):
        solution = chapter.solution.read_text(encoding="utf-8").splitlines()
        code = {line.strip() for line in solution if line.startswith("    ") and len(line) > 50}
        for exercise in chapter.exercises:
            for hint in lesson.hints(chapter, exercise.name):
                assert not code & {line.strip() for line in hint.splitlines()}


def test_a_hint_without_a_name_is_for_what_was_begun(kit):
    (kit / FILE).write_text(
        changed(
            'raise NotImplementedError("ch11 classify")', "return mean_pool(tokens, bias)", STUB
        )
    )
    assert grader(kit, "hint", "11").stdout.startswith("classify, chapter 11: hint 1 of 3")


def test_reset_puts_one_stub_back_and_keeps_a_copy(kit):
    (kit / FILE).write_text(SOLUTION)
    done = grader(kit, "reset", "11", "mean_pool")
    text = (kit / FILE).read_text()
    assert 'raise NotImplementedError("ch11 mean_pool")' in text
    assert text.count("NotImplementedError") == 1
    copy = next((kit / ".practice" / "attempts").iterdir())
    assert copy.read_text() == SOLUTION
    assert copy.name in done.stdout


def test_reset_of_a_chapter_gives_the_stub(kit):
    (kit / FILE).write_text("def broken(:")
    assert "has no mean_pool" in grader(kit, "reset", "11", "mean_pool").stderr
    assert (kit / FILE).read_text() == "def broken(:"
    grader(kit, "reset", "11")
    assert (kit / FILE).read_text() == STUB
    assert len(list((kit / ".practice" / "attempts").iterdir())) == 1


def test_diff_asks_before_it_shows_an_answer(kit):
    done = grader(kit, "diff", "11", "mean_pool")
    assert done.returncode == 1
    assert POOLED not in done.stdout
    assert "reveal=1" in done.stdout
    assert f"+    return {POOLED}" in grader(kit, "diff", "11", "mean_pool", "--reveal").stdout


def test_diff_shows_the_reference_once_the_exercise_passes(kit):
    (kit / FILE).write_text(changed(POOLED, f"1.0 * {POOLED}"))
    done = grader(kit, "diff", "11", "mean_pool")
    assert done.returncode == 0
    assert f"-    return 1.0 * {POOLED}" in done.stdout
    assert f"+    return {POOLED}" in done.stdout


def test_read_keeps_the_answers_folded():
    text = CHAPTER.walkthrough.read_text(encoding="utf-8")
    first = lesson.FOLD.search(text)
    question, answer = " ".join(first[1].split()), first[2].strip()
    assert question in lesson.for_terminal(text, unfold=False)
    assert answer not in lesson.for_terminal(text, unfold=False)
    assert answer in lesson.for_terminal(text, unfold=True)
    assert "mermaid" not in lesson.for_terminal(text, unfold=False)


def test_read_prints_the_walkthrough(kit):
    done = grader(kit, "read", "11")
    assert done.returncode == 0
    assert "Ask first" in done.stdout


def test_headings_in_code_are_no_sections():
    text = "## A\none\n```python\n## not B\n```\n## C\ntwo\n"
    assert list(lesson.sections(text, 2)) == ["A", "C"]


def graded_without(kit, module):
    """Grade with a module that cannot be imported: what is remembered needs none."""
    (kit / f"{module}.py").write_text(f"raise ImportError('{module} was imported')")
    done = grader(kit, "grade", "11")
    (kit / f"{module}.py").unlink()
    return done


def test_grade_remembers_what_has_not_changed(kit):
    (kit / FILE).write_text(changed(POOLED, f"2 * {POOLED}"))
    first = grader(kit, "grade", "11")
    assert "wrong" in first.stdout
    again = graded_without(kit, "numpy")
    assert again.stdout == first.stdout


@pytest.mark.parametrize(
    "path",
    [
        FILE,
        f"tests/{CHAPTER.tests.name}",
        f"tests/catalogue/{CHAPTER.stem}.toml",
        "grader/checks.py",
    ],
)
def test_grade_runs_again_when_anything_it_rests_on_changes(kit, path):
    (kit / FILE).write_text(SOLUTION)
    grader(kit, "grade", "11")
    assert graded_without(kit, "numpy").returncode == 0
    with open(kit / path, "a") as file:
        file.write("\n# changed\n")
    assert "environment" in graded_without(kit, "numpy").stdout


def test_a_hang_is_not_remembered(kit):
    (kit / FILE).write_text(changed(POOLED, "{}['gone']"))
    grader(kit, "grade", "11")
    kept = list((kit / ".practice" / "results").iterdir())
    assert len(kept) == 1  # the reference's


def test_watch_judges_again_at_every_save_and_survives_everything(kit):
    watch = subprocess.Popen(
        [sys.executable, "-u", "-m", "grader", "watch", "11", "mean_pool"],
        cwd=kit,
        env=os.environ | {"COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen = []

    def wait_for(text):
        shown = []
        for line in watch.stdout:
            shown.append(line)
            seen.append(line)
            if "Ctrl-C ends" in line and text in "".join(shown):
                return
        raise AssertionError("".join(seen))

    def save(text):
        time.sleep(1)  # the watcher must be listening
        (kit / FILE).write_text(text)

    try:
        wait_for("not started")
        save(changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]"))
        wait_for("looks like divides-by-padded-length")
        save("def broken(:")
        wait_for("SyntaxError")
        save(changed(POOLED, "__import__('os')._exit(0)"))
        wait_for("exit code 0")
        save(SOLUTION)
        wait_for("done")
    finally:
        watch.terminate()
        watch.communicate()


def key_of_chapter_7(kit):
    """What the result of chapter 7's exercise file is remembered under."""
    code = (
        "from grader import results, chapters\n"
        "print(results.key(chapters.find_chapter('7'), chapters.ROOT / 'exercises'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=kit, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_changed_solution_concerns_the_chapters_that_import_it(kit):
    # chapter 7 imports 5, which imports 3, which imports 2; none of them imports 4
    before = key_of_chapter_7(kit)
    with open(kit / "solutions" / "ch04_positions.py", "a") as file:
        file.write("\n# changed\n")
    assert key_of_chapter_7(kit) == before
    with open(kit / "solutions" / "ch02_attention.py", "a") as file:
        file.write("\n# changed\n")
    assert key_of_chapter_7(kit) != before
