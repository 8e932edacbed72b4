"""What helps a learner along: hints, a fresh start, the reference beside their own, the lesson."""

import ast
import difflib
import json
from pathlib import Path

from grader import UsageError, lesson, source, standing, stubs, verdict
from grader.chapters import ROOT, Chapter, Exercise

HINTS_SEEN = ROOT / ".practice" / "hints.json"


def next_hint(chapter: Chapter, exercise: Exercise) -> tuple[int, int, str]:
    """The next hint not yet seen: its number, how many there are, its text. The last one stays."""
    hints = lesson.hints(chapter, exercise.name)
    seen = json.loads(HINTS_SEEN.read_text(encoding="utf-8")) if HINTS_SEEN.is_file() else {}
    key = f"{chapter.stem} {exercise.name}"
    number = min(seen.get(key, 0) + 1, len(hints))
    HINTS_SEEN.parent.mkdir(parents=True, exist_ok=True)
    HINTS_SEEN.write_text(json.dumps(seen | {key: number}, indent=1), encoding="utf-8")
    return number, len(hints), hints[number - 1]


def first_unfinished(chapters: list[Chapter], folder: Path) -> tuple[Chapter, Exercise] | None:
    """The exercise to do next: one begun and not right before one not begun."""
    rows = [
        (result.chapter, row)
        for result in standing.graded(chapters, folder)
        for row in result.exercises
        if row.status != "done"
    ]
    rows.sort(key=lambda pair: pair[1].status == "not started")
    return (rows[0][0], rows[0][1].exercise) if rows else None


def reset(chapter: Chapter, exercise: Exercise | None) -> tuple[Path, Path | None]:
    """Put the stub back, for one exercise or the whole file; the file, and the copy kept of it.

    Raises:
        UsageError: the file does not parse, or lacks the exercise; then only a whole reset works.
    """
    file = chapter.stub
    stub = stubs.stub_of(chapter)
    if exercise is None or not file.exists():
        text = stub
    else:
        text = _with_stub(file.read_text(encoding="utf-8"), stub, exercise, chapter)
    copy = stubs.keep_copy(file) if file.exists() else None
    file.write_text(text, encoding="utf-8")
    return file, copy


def _with_stub(text: str, stub: str, exercise: Exercise, chapter: Chapter) -> str:
    """The learner's text with one function as it is in the stub."""
    start, end = _span(text, exercise, verdict.short(chapter.stub))
    from_stub = slice(*_span(stub, exercise, "the stub"))
    lines = text.splitlines()
    lines[start:end] = stub.splitlines()[from_stub]
    return "\n".join(lines) + "\n"


def difference(chapter: Chapter, exercise: Exercise, folder: Path) -> list[str]:
    """The learner's function against the reference's, as a unified diff with every line."""
    file = folder / chapter.file
    texts = []
    for path in (file, chapter.solution):
        text = path.read_text(encoding="utf-8")
        start, end = _span(text, exercise, verdict.short(path))
        lines = [line for line in text.splitlines()[start:end] if line.strip() != source.MARKER]
        texts.append(_without_docstring(lines))
    names = (f"yours: {verdict.short(file)}", f"the reference: {verdict.short(chapter.solution)}")
    return list(difflib.unified_diff(*texts, *names, lineterm="", n=1000))


def _without_docstring(lines: list[str]) -> list[str]:
    """The docstring is the same on both sides and long; `...` stands for it."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    text = "\n".join(line.removeprefix(indent) for line in lines)
    body = ast.parse(text).body[0].body
    if ast.get_docstring(ast.parse(text).body[0]) is None:
        return lines
    first, last = body[0].lineno - 1, body[0].end_lineno
    return [*lines[:first], f'{indent}    """..."""', *lines[last:]]


def _span(text: str, exercise: Exercise, where: str) -> tuple[int, int]:
    span = source.span(text, exercise.name)
    if span is None:
        raise UsageError(f"{where} has no {exercise.name} that can be read; reset the whole file?")
    return span
