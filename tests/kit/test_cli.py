"""The command line as a person uses it."""

import json
import os
import subprocess
import sys

import pytest

from grader import screen, verdict
from grader.chapters import ROOT, find_chapter
from grader.manifest import expected_tests
from submissions import CHAPTER, POOLED, SOLUTION, STUB, changed, grader

pytestmark = pytest.mark.timeout(120)


WRONG_USAGE = {
    "unknown chapter": (["test", "99"], "there is no chapter '99'; there are: "),
    "unknown exercise": (["test", "11", "max_pool"], "chapter 11 has no exercise 'max_pool'"),
    "an exercise for a chapter": (["test", "mean_pool"], "mean_pool is an exercise of chapter 11"),
    "an exercise without its chapter": (["test", "", "mean_pool"], "say which chapter: make test"),
    "a chapter of many digits": (["test", "1" * 5000], "there is no chapter"),
    "no folder": (["grade", "--impl", "nowhere"], "impl=nowhere: there is no such folder"),
    "an empty folder": (["grade", "--impl", "walkthroughs"], "holds no chapter's file"),
}


@pytest.mark.parametrize(("arguments", "says"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage_is_one_sentence_and_exits_with_2(arguments, says):
    done = grader(ROOT, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("text", ["11", "011", "ch11", CHAPTER.stem])
def test_a_chapter_has_several_names(text):
    assert find_chapter(text) == CHAPTER


def test_a_fresh_clone_is_not_started_and_runs_nothing(kit):
    # a NumPy that cannot be imported: nothing may try
    (kit / "numpy.py").write_text("raise ImportError('numpy was imported')")
    done = grader(kit, "grade")
    assert done.returncode == 0, done.stderr
    assert "Causal decoder as classifier" in done.stdout
    assert "not started" in done.stdout
    assert done.stdout.splitlines()[-1].strip().startswith(("make", "Next:"))


def test_an_untouched_chapter_says_where_to_write(kit):
    done = grader(kit, "test", "11")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) < 20
    line = STUB.splitlines().index("def forward(") + 1
    assert f"Next: write forward in exercises/{CHAPTER.file}:{line}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_mistake_is_shown_with_its_name_and_what_to_do(kit):
    wrong = changed("/ lengths[:, None]  # (B, D)", "/ hidden.shape[1]")
    (kit / "exercises" / CHAPTER.file).write_text(wrong)
    done = grader(kit, "test", "11", "mean_pool")
    assert done.returncode == 1
    for part in (
        "at [0, 0]: expected 3.0, got 1.5",
        "the smallest input that breaks: lengths=[1], width=1, extra=1",
        "looks like divides-by-padded-length: ",
        f"read walkthroughs/{CHAPTER.stem}.md#divides-by-padded-length",
        "Next: mend mean_pool in exercises/",
        "make test chapter=11 exercise=mean_pool",
    ):
        assert part in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_a_finished_chapter_exits_with_0():
    done = grader(ROOT, "test", "11", "--impl", "solutions")
    assert done.returncode == 0
    assert "the chapter is done" in done.stdout.splitlines()[-1]


def test_grade_reports_and_exits_with_0_unless_strict(tmp_path):
    (tmp_path / CHAPTER.file).write_text(changed(POOLED, f"-{POOLED}"))
    assert grader(ROOT, "grade", "11", "--impl", tmp_path).returncode == 0
    assert grader(ROOT, "grade", "11", "--impl", tmp_path, "--strict").returncode == 1
    assert grader(ROOT, "grade", "11", "--impl", "solutions", "--strict").returncode == 0


def test_the_json_report_keeps_its_schema(tmp_path):
    (tmp_path / CHAPTER.file).write_text(changed("/ lengths[:, None]  # (B, D)", "/ 4"))
    report = json.loads(grader(ROOT, "grade", "11", "--impl", tmp_path, "--json").stdout)
    assert report["schema"] == 1
    assert report["impl"] == str(tmp_path)
    assert {"python", "numpy", "pytest"} <= report["versions"].keys()
    (chapter,) = report["chapters"]
    assert chapter["id"] == CHAPTER.stem
    assert chapter["number"] == 11
    assert chapter["status"] == "wrong"
    assert 0 < chapter["passed"] < chapter["total"]
    assert [row["name"] for row in chapter["exercises"]] == [e.name for e in CHAPTER.exercises]
    row = chapter["exercises"][1]
    assert row["status"] == "wrong"
    assert (row["minutes"], row["priority"]) == (8, "core")
    assert row["passed"] + sum(t["outcome"] != "passed" for t in row["tests"]) == row["total"]
    assert row["tests"][0]["outcome"] in ("passed", "wrong")
    assert row["tests"][0].keys() == {"id", "outcome", "message", "diagnosis"}


def test_an_untouched_chapter_counts_the_tests_that_would_run():
    judged = verdict.untouched(CHAPTER, ROOT / "exercises")
    assert len(judged.tests) == sum(test.cases for test in expected_tests(CHAPTER))


def test_a_file_that_is_missing_is_not_started(tmp_path):
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "ch99_other.py").write_text("")
    result = verdict.untouched(CHAPTER, tmp_path)
    assert result.status == "not started"


def test_stubs_never_overwrite_work(kit):
    file = kit / "exercises" / CHAPTER.file
    file.write_text(SOLUTION)
    done = grader(kit, "stubs")
    assert file.read_text() == SOLUTION
    assert "left alone: it holds work of yours" in done.stdout


def test_stubs_replace_an_old_stub_and_keep_a_copy(kit):
    file = kit / "exercises" / CHAPTER.file
    old = STUB.replace("Average each row's hidden states", "Average hidden states")
    file.write_text(old)
    done = grader(kit, "stubs")
    assert file.read_text() == STUB
    copy = next((kit / ".practice" / "attempts").iterdir())
    assert copy.read_text() == old
    assert copy.name in done.stdout


def test_a_missing_package_is_named_with_what_installs_it(kit):
    (kit / "rich.py").write_text("raise ModuleNotFoundError('No module named rich', name='rich')")
    done = grader(kit, "grade")
    assert done.returncode == 3
    assert "rich is not installed" in done.stderr
    assert "-m pip install -r requirements.txt" in done.stderr


def test_plain_pytest_shows_the_same_screen(kit):
    (kit / "exercises" / CHAPTER.file).write_text(changed(POOLED, f"{POOLED} * 2"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/{CHAPTER.tests.name}", "-p", "pytest_timeout"],
        cwd=kit,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "at [0, 0]: expected 3.0, got 6.0" in done.stdout
    assert "Traceback" not in done.stdout
    assert "wrong" in done.stdout.splitlines()[-1]


def test_the_next_action_after_everything_is_to_read():
    done = verdict.judge(CHAPTER, ROOT / "solutions", {}, missing="")
    for test in done.tests:
        test.outcome = "passed"
    assert "answer the follow-ups" in screen.next_action([done])
    assert "every chapter is done" in screen.next_action([done, done])


def test_an_empty_exercise_is_no_exercise(tmp_path):
    (tmp_path / CHAPTER.file).write_text(STUB)
    assert grader(ROOT, "test", "11", "", "--impl", tmp_path).returncode == 1
