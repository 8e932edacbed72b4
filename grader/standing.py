"""Where a learner stands: which files must run, and how."""

import sys
from pathlib import Path

from grader import install, results, stubs, verdict
from grader.chapters import Chapter
from grader.processes import Starter, Warm, cold
from grader.runner import Job, run


def judged(
    chapter: Chapter, folder: Path, only: str | None = None, start: Starter = cold
) -> verdict.ChapterResult:
    """Run a chapter's tests, unless its file is the untouched stub or is not there."""
    if not needs_run(chapter, folder):
        return verdict.untouched(chapter, folder, only)
    if chapter.library == "torch":
        install.ensure_torch()
    result = run(Job(chapter, folder, only), start)
    if only is None:
        results.save(result)
    return result


def graded(chapters: list[Chapter], folder: Path) -> list[verdict.ChapterResult]:
    """The standing of each chapter; runs those whose result is not known from before."""
    known = {chapter: results.load(chapter, folder) for chapter in chapters}
    to_run = [c for c in chapters if known[c] is None and needs_run(c, folder)]
    heavy = [chapter for chapter in to_run if chapter.library == "torch"]
    start: Starter = cold
    if len(heavy) > 1 and sys.platform == "linux":
        # Several chapters share one import of torch.
        install.ensure_torch()
        start = Warm("torch")
    try:
        return [known[chapter] or judged(chapter, folder, start=start) for chapter in chapters]
    finally:
        if isinstance(start, Warm):
            start.close()


def needs_run(chapter: Chapter, folder: Path) -> bool:
    file = folder / chapter.file
    return file.is_file() and file.read_bytes() != stubs.stub_of(chapter).encode("utf-8")
