"""What the learner sees: a table of statuses, the failing tests, one next action."""

import io
import os

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grader.verdict import ChapterResult, ExerciseResult, TestResult, short

COLORS = {
    "done": "green",
    "wrong": "red",
    "broken": "red",
    "tampered": "red",
    "environment": "yellow",
    "in progress": "yellow",
    "not started": "dim",
}
DETAILED = 3  # failing test functions shown in full, per exercise
PRINTED_LINES = 8


def console(file=None, color: bool | None = None) -> Console:
    """A console as wide as the terminal, but never above 100 columns."""
    try:
        width = min(max(os.get_terminal_size().columns or 80, 40), 100)
    except OSError:
        width = 80
    return Console(file=file, width=width, force_terminal=color, highlight=False, soft_wrap=False)


def chapters(results: list[ChapterResult]) -> Table:
    """A line per chapter."""
    table = _table("", "chapter", "status", "tests")
    for result in results:
        table.add_row(
            str(result.chapter.number),
            result.chapter.title,
            _status(result.status),
            f"{result.passed} of {len(result.tests)}",
        )
    return table


def problems(results: list[ChapterResult]) -> list[str]:
    """What overrides all tests of a chapter, in a line each."""
    return [
        f"\nchapter {result.chapter.number}: {result.problem}: {result.problem_message}"
        for result in results
        if result.problem
    ]


def exercises(result: ChapterResult) -> Table:
    """A line per exercise."""
    table = _table("exercise", "status", "tests", "minutes", "priority", "line")
    for row in result.exercises:
        table.add_row(
            row.exercise.name,
            _status(row.status),
            f"{row.passed} of {len(row.tests)}",
            str(row.exercise.minutes),
            row.exercise.priority,
            str(row.line or "missing"),
        )
    if result.together:
        passed = sum(test.outcome == "passed" for test in result.together)
        status = Text("waits", "dim")
        if all(test.outcome != "not started" for test in result.together):
            status = _status("done" if passed == len(result.together) else "wrong")
        table.add_row("all together", status, f"{passed} of {len(result.together)}", "", "", "")
    return table


def details(result: ChapterResult) -> Group:
    """The table, and what fails."""
    parts: list = [Text(f"Chapter {result.chapter.number}: {result.chapter.title}", "bold")]
    parts += [Text(short(result.file)), Text()]
    if result.problem:
        parts.append(_paragraph(f"{result.problem}: {result.problem_message}", style="red"))
        return Group(*parts)
    parts.append(exercises(result))
    shared = _shared_message(result)
    if shared:
        parts += [Text(), _paragraph(shared, style="red")]
        return Group(*parts)
    for row in result.exercises:
        if row.status in ("wrong", "broken"):
            parts += [Text(), *_failures(result, row.exercise.name, row.tests, row.line)]
    failing = [test for test in result.together if test.outcome in ("wrong", "broken")]
    if failing:
        parts += [Text(), *_failures(result, "the exercises together", result.together, 0)]
    parts += [_paragraph(note) for note in result.notes]
    return Group(*parts)


def _failures(result: ChapterResult, name: str, tests: list[TestResult], line: int) -> list:
    failing = [test for test in tests if test.outcome in ("wrong", "broken")]
    parts: list = [Text(f"{name}: {len(failing)} of {len(tests)} tests fail", "bold red")]
    if line:
        parts[0].append(f"  {short(result.file)}:{line}", "not bold default")
    if len({test.message for test in failing}) == 1 and len(failing) > 1:
        return [*parts, Text(), _paragraph(failing[0].message, 2)]
    groups: dict[str, list[TestResult]] = {}
    for test in failing:
        groups.setdefault(test.id.split("[")[0], []).append(test)
    # The smallest input that breaks is worth a place among those shown.
    shown = sorted(groups, key=lambda name: "the smallest input" not in groups[name][0].message)
    shown = shown[:DETAILED]
    for function, cases in groups.items():
        if function not in shown:
            continue
        others = [case.id.removeprefix(function) for case in cases[1:]]
        also = f", also {' '.join(others)}" if others else ""
        parts += [
            Text(),
            _paragraph(f"{cases[0].id} (line {cases[0].line}){also}", 2),
            _paragraph(cases[0].message, 4),
        ]
        printed = cases[0].printed.strip().splitlines()[-PRINTED_LINES:]
        if printed:
            parts += [_paragraph("it printed:", 4), _paragraph("\n".join(printed), 6)]
    if len(groups) > DETAILED:
        rest = ", ".join(name for name in groups if name not in shown)
        parts += [Text(), _paragraph(f"and {rest}", 2)]
    parts += [Text(), _paragraph(f"the tests: {short(result.chapter.tests)}", 2, "dim")]
    wrong = {w.id: w for w in result.chapter.misconceptions}
    for found in dict.fromkeys(identity for test in failing for identity in test.diagnosis):
        pitfall = f"{short(result.chapter.walkthrough)}#{found}"
        parts += [Text(), _paragraph(f"looks like {found}: {wrong[found].says}", 2, "yellow")]
        parts.append(_paragraph(f"read {pitfall}", 2))
    return parts


def _shared_message(result: ChapterResult) -> str:
    """The one message when every test says the same, as for a file that cannot be loaded."""
    messages = {test.message for test in result.tests if test.outcome == "broken"}
    stuck = [t for t in result.tests if t.outcome not in ("broken", "not started")]
    return messages.pop() if len(messages) == 1 and not stuck and len(result.tests) > 1 else ""


def next_action(results: list[ChapterResult], impl: str = "") -> str:
    """The last line: what to do now, and the command that shows whether it is right."""
    result = next((r for r in results if r.status != "done"), results[-1])
    what, exercise = next_step(result)
    chapter = f"make test chapter={result.chapter.number}"
    where = f" impl={impl}" if impl else ""
    if result.status == "done" and len(results) > 1:
        return "Next: every chapter is done; answer the follow-ups in walkthroughs/"
    if result.status == "done":
        return f"Next: {chapter}{where}" if exercise else f"Next: {what}"
    named = f" exercise={exercise}" if exercise else ""
    return f"Next: {what}, then\n      {chapter}{named}{where}"


def next_step(result: ChapterResult) -> tuple[str, str]:
    """What to do now, and the exercise at which to do it, if it is one."""
    file = short(result.file)
    if result.problem == "environment":
        return "install what requirements.txt lists, or rm -rf .venv", ""
    if not result.file.exists():
        return f"write {file} with make stubs", ""
    if result.status == "done":
        if len(result.exercises) < len(result.chapter.exercises):
            return f"{result.exercises[0].exercise.name} is done", result.exercises[0].exercise.name
        return (
            f"the chapter is done; answer the follow-ups in {short(result.chapter.walkthrough)}",
            "",
        )
    if result.problem or _shared_message(result):
        return f"mend {file}", ""
    first = _first_unfinished(result)
    if first is None:
        return "make the exercises work together", ""
    verb = "mend" if first.status in ("wrong", "broken") else "write"
    line = f":{first.line}" if first.line else ""
    return f"{verb} {first.exercise.name} in {file}{line}", first.exercise.name


def _first_unfinished(result: ChapterResult) -> ExerciseResult | None:
    unfinished = [row for row in result.exercises if row.status != "done"]
    failing = [row for row in unfinished if row.status in ("wrong", "broken")]
    return next(iter(failing + unfinished), None)


def markdown(text: str):
    from rich.markdown import Markdown  # slow to import, and most commands show none

    return Markdown(text, hyperlinks=False)


def difference(lines: list[str]) -> Text:
    """A unified diff: what is the learner's in red, what is the reference's in green."""
    shown = Text()
    for line in lines:
        style = {"-": "red", "+": "green"}.get(line[:1], "")
        shown.append(line + "\n", style)
    return shown


def as_text(renderable, color: bool = False) -> str:
    buffer = io.StringIO()
    console(buffer, color).print(renderable)
    return buffer.getvalue()


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in ("", "exercise", "status", "tests"))
    return table


def _status(status: str) -> Text:
    return Text(status, COLORS[status])


def _paragraph(text: str, indent: int = 0, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, indent), expand=False)
