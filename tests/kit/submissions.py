"""Helpers for the kit's own tests: a submission is chapter 11's solution with something changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from grader import stubs
from grader.chapters import ROOT, all_chapters, find_chapter
from grader.processes import Starter, cold
from grader.runner import Job, run
from grader.verdict import ChapterResult

CHAPTER = find_chapter("11")
SOLUTION = CHAPTER.solution.read_text(encoding="utf-8")
STUB = stubs.stub_of(CHAPTER)
POOLED = "(hidden * valid[..., None]).sum(axis=1) / lengths[:, None]"
LENGTHS = "    lengths = valid_lengths(hidden, pooling_mask)\n    valid = "


def changed(old: str, new: str, text: str = SOLUTION) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


# The README's screen: a first try at mean_pool in the untouched file, divided by T.
FIRST_TRY = changed(
    'raise NotImplementedError("ch11 mean_pool")',
    "lengths = valid_lengths(hidden, pooling_mask)\n"
    "    valid = np.arange(hidden.shape[1]) < lengths[:, None]\n"
    "    return (hidden * valid[..., None]).sum(axis=1) / hidden.shape[1]",
    STUB,
)


def in_mean_pool(line: str) -> str:
    """The solution with a line put at the start of mean_pool's answer."""
    return changed(LENGTHS, f"    {line}\n{LENGTHS}")


def fresh_copy(folder: Path) -> Path:
    """The kit as a fresh clone has it, in a folder of its own."""
    copy = folder / "kit"
    ignored = shutil.ignore_patterns(".git", ".venv", ".practice", "__pycache__", ".ruff_cache")
    shutil.copytree(ROOT, copy, ignore=ignored)
    start_afresh(copy)
    return copy


def start_afresh(kit: Path):
    for chapter in all_chapters():
        (kit / "exercises" / chapter.file).write_text(stubs.stub_of(chapter), encoding="utf-8")


def grader(kit: Path, *arguments) -> subprocess.CompletedProcess:
    """Run the command line of that copy, as in a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "grader", *map(str, arguments)],
        cwd=kit,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
    )


def judged(folder: Path, text: str, limit: float = 0, start: Starter = cold) -> ChapterResult:
    (folder / CHAPTER.file).write_text(text, encoding="utf-8")
    return run(Job(CHAPTER, folder, limit=limit), start)


def statuses(result: ChapterResult) -> dict[str, str]:
    return {row.exercise.name: row.status for row in result.exercises}


def messages(result: ChapterResult, exercise: str) -> str:
    rows = [row for row in result.exercises if row.exercise.name == exercise]
    return "\n".join(test.message for row in rows for test in row.tests)
