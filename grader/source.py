"""A chapter's source text: cutting stubs, planting misconceptions, loading modules.

In a solution each exercise has one line `# --- solution ---`; everything below it in that
function is the answer. The stub raises NotImplementedError there.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from grader.chapters import Chapter, Misconception

MARKER = "# --- solution ---"
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # what parsing may raise


@dataclass(frozen=True)
class Answer:
    """Lines [start, end) of the source text are the answer to `name`, indented by `indent`."""

    name: str
    start: int
    end: int
    indent: str


def answers(text: str, where: str) -> list[Answer]:
    """Find the answers in a solution's text, in the order of the file.

    Raises:
        ValueError: no marker in the file, a marker outside a function, or two in one function;
            the message starts with `where` and the line.
    """
    lines = text.splitlines()
    all_functions = list(functions(ast.parse(text)))
    found: list[Answer] = []
    for index, line in enumerate(lines):
        if line.strip() != MARKER:
            continue
        around = [pair for pair in all_functions if pair[1].lineno <= index < _end(pair[1], lines)]
        if not around:
            raise ValueError(f"{where}:{index + 1}: {MARKER!r} stands outside a function")
        name, function = max(around, key=lambda pair: pair[1].lineno)
        if found and found[-1].name == name:
            raise ValueError(f"{where}:{index + 1}: a second {MARKER!r} in {name}")
        indent = line[: len(line) - len(line.lstrip())]
        found.append(Answer(name, index, _end(function, lines), indent))
    if not found:
        raise ValueError(f"{where}:1: no {MARKER!r} in the file")
    return found


def cut(text: str, chapter: Chapter) -> str:
    """The stub: each answer replaced by one raise."""
    lines = text.splitlines()
    for answer in reversed(answers(text, chapter.solution.name)):
        raising = f'{answer.indent}raise NotImplementedError("{not_started(chapter, answer.name)}")'
        lines[answer.start : answer.end] = [raising]
    return "\n".join(lines) + "\n"


def not_started(chapter: Chapter, exercise: str) -> str:
    """What a stub's NotImplementedError says."""
    return f"ch{chapter.number:02} {exercise}"


def plant(text: str, wrong: Misconception, where: str) -> str:
    """Apply a misconception's edits; each must match exactly once inside its exercise's answer.

    Raises:
        ValueError: the exercise has no answer, an edit does not match exactly once, or two overlap.
    """
    lines = text.splitlines(keepends=True)
    answer = next((a for a in answers(text, where) if a.name == wrong.exercise), None)
    if answer is None:
        raise ValueError(f"{where}: {wrong.id}: no exercise {wrong.exercise!r}")
    start = sum(map(len, lines[: answer.start]))
    body = "".join(lines[answer.start : answer.end])
    spans = []
    for old, new in wrong.edits:
        if body.count(old) != 1:
            raise ValueError(
                f"{where}: {wrong.id}: {old!r} must stand exactly once in {wrong.exercise}, "
                f"stands {body.count(old)} times"
            )
        spans.append((body.index(old), body.index(old) + len(old), new))
    spans.sort()
    if any(first[1] > second[0] for first, second in zip(spans, spans[1:], strict=False)):
        raise ValueError(f"{where}: {wrong.id}: two edits overlap")
    for first, last, new in reversed(spans):
        body = body[:first] + new + body[last:]
    return text[:start] + body + "".join(lines[answer.end :])


def load(name: str, code: str | bytes, path: Path) -> ModuleType:
    """Execute source text as a module registered under `name`."""
    module = ModuleType(name)
    module.__file__ = str(path)
    # Registered before it runs: dataclasses look their module up while the class is made.
    sys.modules[name] = module
    exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def imports_of_own_solution(code: bytes, chapter: Chapter, path: Path) -> list[int]:
    """The lines that import this chapter's own solution: an answer, not an exercise."""
    own = f"solutions.{chapter.stem}"
    lines = []
    for node in ast.walk(ast.parse(code, str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if own in names:
            lines.append(node.lineno)
    return lines


def lines_of(code: bytes, names: list[str]) -> dict[str, int]:
    """The line on which each of these functions or methods starts, of those that are there."""
    return {name: f.lineno for name, f in _functions_of(code).items() if name in names}


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function below `node` with its qualified name, `Class.method`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")


def _end(function: ast.FunctionDef, lines: list[str]) -> int:
    """The line after the function's last one; trailing comments that are indented belong to it."""
    end = last = function.end_lineno
    for index in range(end, len(lines)):
        line = lines[index]
        if line.strip():
            if len(line) - len(line.lstrip()) <= function.col_offset:
                break
            last = index + 1
    return max(end, last)


def is_untouched(text: str, stub: str, chapter: Chapter) -> bool:
    """Whether a text is a stub, also an earlier one, with nothing of a learner's in it."""
    own, given = _functions_of(text), _functions_of(stub)
    names = {exercise.name for exercise in chapter.exercises}
    return own.keys() == given.keys() and all(_body(own[n]) == _body(given[n]) for n in names)


def begun(text: str, chapter: Chapter) -> set[str]:
    """The exercises whose function does not end at its stub's raise."""
    found = set()
    for name, function in _functions_of(text).items():
        raising = f"raise NotImplementedError({not_started(chapter, name)!r})"
        if ast.unparse(function.body[-1]) != raising:
            found.add(name)
    return found & {exercise.name for exercise in chapter.exercises}


def _body(function: ast.FunctionDef) -> list[str]:
    """A function's statements without its docstring."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return [ast.unparse(statement) for statement in statements]


def _functions_of(text: str | bytes) -> dict[str, ast.FunctionDef]:
    try:
        return dict(functions(ast.parse(text)))
    except UNREADABLE:
        return {}


def span(text: str, name: str) -> tuple[int, int] | None:
    """The lines [start, end) of a function with its decorators; None if it is not there."""
    function = _functions_of(text).get(name)
    if function is None:
        return None
    first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
    return first - 1, _end(function, text.splitlines())


def docstrings(text: str) -> dict[str, str]:
    return {name: ast.get_docstring(f) or "" for name, f in _functions_of(text).items()}
