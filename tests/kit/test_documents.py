"""Every code block of the README and the walkthroughs runs, and every link leads somewhere."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from grader import submission
from grader.chapters import ROOT, all_chapters
from grader.processes import THREADS
from submissions import CHAPTER, FIRST_TRY, fresh_copy, start_afresh

pytestmark = pytest.mark.timeout(300)
DOCUMENTS = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md"]
DOCUMENTS += sorted((ROOT / "walkthroughs").glob("*.md"))
FIGURES = sorted((ROOT / "walkthroughs" / "figures").glob("*.svg"))
EDIT = "$EDITOR"  # in the README this stands for the mistake that its screen shows
MEASURED = re.compile(r"\d+(\.\d+)?")


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """One copy for all documents: each session starts its exercises afresh."""
    return fresh_copy(tmp_path_factory.mktemp("documents"))


@pytest.fixture(autouse=True)
def defaults_afterwards():
    """A document may switch gradients off for all that follows in it, and for nothing else."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_grad_enabled(True)


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    command = re.sub(r"^python ", f"{sys.executable} ", command)
    command = re.sub(r"^make ", f"make PYTHON={sys.executable} ", command)
    # `make check` runs these tests: a make below another one says which folder it enters
    outside = {k: v for k, v in os.environ.items() if k not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=outside | dict.fromkeys(THREADS, "1") | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
    )


def sessions(document: Path) -> list[list[tuple[str, str]]]:
    """For each console block its commands, each with the output shown below it."""
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text("utf-8"), re.M | re.S)
    shown = [re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M) for block in blocks]
    return [[(command.partition("  #")[0], out) for command, out in block] for block in shown]


def as_compared(text: str) -> str:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return re.sub(r"\d+\.\d+ s\b", "0.0 s", "\n".join(lines))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_print_what_they_say(document):
    blocks = Sybil(parsers=[PythonCodeBlockParser()]).parse(document)
    for block in blocks.examples():
        block.evaluate()


@pytest.mark.parametrize("chapter", all_chapters(), ids=lambda chapter: chapter.stem)
def test_docstrings_examples_print_what_they_say(chapter):
    module = submission.reference(chapter)
    failures = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(module, chapter.stem, module=module):
        runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_print_what_they_say(document, kit):
    for session in sessions(document):
        start_afresh(kit)
        for command, output in session:
            if command.startswith(EDIT):
                (kit / "exercises" / CHAPTER.file).write_text(FIRST_TRY)
            else:
                check_command(command, output, kit)


def check_command(command: str, output: str, kit: Path):
    done = run(command, kit)
    if not output:
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return
    printed, expected = as_compared(done.stdout), as_compared(output)
    if command.startswith("python "):
        # a measurement: its numbers differ from run to run, its words do not
        assert done.returncode == 0, done.stderr
        printed, expected = MEASURED.sub("N", printed).split(), MEASURED.sub("N", expected).split()
    assert printed == expected, command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: path.name)
def test_figures_are_what_their_scripts_draw(figure, kit):
    drawn = kit / figure.relative_to(ROOT)
    drawn.unlink()
    module = ".".join(figure.relative_to(ROOT).with_suffix("").parts)
    done = run(f"python -m {module}", kit)
    assert done.returncode == 0, done.stderr
    assert drawn.read_bytes() == figure.read_bytes()


def test_the_readme_shows_the_loop_by_line_12():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:12]
    assert sum(line.startswith("$ ") for line in lines) == 4
    assert "Chapter 11: Causal decoder as classifier" in lines


def test_the_readme_lists_every_chapter_with_its_minutes():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for chapter in all_chapters():
        minutes = sum(exercise.minutes for exercise in chapter.exercises)
        core = sum(e.minutes for e in chapter.exercises if e.priority == "core")
        link = f"[{chapter.title}](walkthroughs/{chapter.stem}.md)"
        row = rf"\| {chapter.number} \| {re.escape(link)} \| {len(chapter.exercises)} \|.*"
        assert re.search(rf"{row}\| {minutes} \| {core} \|", text), (chapter.stem, minutes, core)
