"""Writes exercises/ from solutions/, never over a learner's work."""

import time
from pathlib import Path

from grader import source
from grader.chapters import ROOT, Chapter
from grader.verdict import short


def stub_of(chapter: Chapter) -> str:
    return source.cut(chapter.solution.read_text(encoding="utf-8"), chapter)


def is_current(chapter: Chapter) -> bool:
    """Whether exercises/ holds this chapter's stub, byte for byte."""
    return chapter.stub.is_file() and chapter.stub.read_bytes() == stub_of(chapter).encode("utf-8")


def write(chapter: Chapter) -> str:
    """Write a stub that is missing or out of date; what was done, for the learner."""
    stub = stub_of(chapter)
    if not chapter.stub.exists():
        chapter.stub.write_text(stub, encoding="utf-8")
        return "written"
    present = chapter.stub.read_text(encoding="utf-8", errors="replace")
    if present == stub:
        return "up to date"
    if not source.is_untouched(present, stub, chapter):
        return "left alone: it holds work of yours; move it away to get a new stub"
    copy = keep_copy(chapter.stub)
    chapter.stub.write_text(stub, encoding="utf-8")
    return f"written anew; the file it replaces is {short(copy)}"


def keep_copy(path: Path) -> Path:
    """Copy a file to .practice/attempts/ under the date; nothing a learner wrote is lost."""
    folder = ROOT / ".practice" / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06}.py"
    copy.write_bytes(path.read_bytes())
    return copy
