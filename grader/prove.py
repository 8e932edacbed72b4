"""The proofs of a chapter: that its tests catch what they must, and reject nothing that is right.

Each proof gives a list of faults; none means proven.
"""

import ast
import re
import tempfile
from pathlib import Path

from grader import lesson, source
from grader.chapters import PRIORITIES, ROOT, Chapter
from grader.manifest import expected_tests
from grader.runner import Job, run, run_child
from grader.stubs import stub_of

ALTERNATIVES = ROOT / "tests" / "kit" / "alternatives"
SECTIONS = ["Problem", "Ask first", "Contract", "Path", "By hand", "Pitfalls", "Cost"]
SECTIONS += ["Follow-ups", "Hints", "Sources"]
HINT_TIERS = 3


def prove(chapter: Chapter) -> list[str]:
    """All faults of a chapter."""
    checks = (reference, untouched_stub, misconceptions, alternatives, catalogue, examples)
    checks += (walkthrough,)
    return [f"{check.__name__}: {fault}" for check in checks for fault in check(chapter)]


def reference(chapter: Chapter) -> list[str]:
    """The reference passes every test."""
    result = run(Job(chapter, chapter.solution.parent))
    faults = [f"{t.id}: {t.outcome}: {t.message}" for t in result.tests if t.outcome != "passed"]
    collected = sum(test.cases for test in expected_tests(chapter))
    if len(result.tests) != collected:
        faults.append(f"{collected} tests by the test file's text, {len(result.tests)} when run")
    return faults + ([result.problem_message] if result.problem else [])


def untouched_stub(chapter: Chapter) -> list[str]:
    """On the stub, cut in memory, no test passes and every exercise is not started."""
    stub = stub_of(chapter)
    if source.begun(stub, chapter):
        return ["an answer is left in the stub: a function does not end at its raise"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / chapter.file).write_text(stub, encoding="utf-8")
        result = run(Job(chapter, Path(folder)))
    begun = [test for test in result.tests if test.outcome != "not started"]
    faults = [f"{test.id} is {test.outcome}: {test.message}" for test in begun]
    return faults + ([result.problem_message] if result.problem else [])


def misconceptions(chapter: Chapter) -> list[str]:
    """Every misconception is caught by an assertion of its own exercise; every test catches one."""
    text = chapter.solution.read_text(encoding="utf-8")
    for wrong in chapter.misconceptions:
        try:
            ast.parse(source.plant(text, wrong, chapter.catalogue.name))
        except (ValueError, SyntaxError) as error:
            return [f"{wrong.id}: {error}"]
    child = run_child(Job(chapter, chapter.solution.parent, prove=True))
    if child.running or not child.finished:
        stopped = child.running.id if child.running else "the start"
        return [f"the run stopped in {stopped}: {child.end} {child.output.decode()[-2000:]}"]
    faults = []
    for wrong in chapter.misconceptions:
        outcomes = [r for r in child.results.values() if r.wrong == wrong.id]
        own = [r for r in outcomes if r.exercises == (wrong.exercise,)]
        if wrong.crash:
            if not any(r.outcome == "broken" and r.message.startswith(wrong.crash) for r in own):
                faults.append(f"{wrong.id}: no test ends in {wrong.crash}")
        elif not any(r.outcome == "wrong" for r in own):
            broken = next((f"; {r.id}: {r.message}" for r in own if r.outcome == "broken"), "")
            faults.append(f"{wrong.id}: no test of {wrong.exercise} catches it{broken}")
    catching = {r.id.split("[")[0] for r in child.results.values() if r.outcome == "wrong"}
    for test in expected_tests(chapter):
        if test.name not in catching:
            faults.append(f"{test.name} catches no misconception")
    return faults


def alternatives(chapter: Chapter) -> list[str]:
    """Right answers written another way pass."""
    faults = []
    for folder in alternatives_of(chapter):
        result = run(Job(chapter, folder))
        for test in result.tests:
            if test.outcome not in ("passed", "not started"):
                faults.append(f"{folder.name}: {test.id}: {test.message}")
        if result.problem:
            faults.append(f"{folder.name}: {result.problem_message}")
    for exercise in chapter.exercises:
        count = sum(exercise.name in begun(chapter, folder) for folder in alternatives_of(chapter))
        if count < 2:
            faults.append(f"{exercise.name} has {count} right alternatives, needs 2")
    return faults


def alternatives_of(chapter: Chapter) -> list[Path]:
    return sorted(path.parent for path in ALTERNATIVES.glob(f"*/{chapter.file}"))


def begun(chapter: Chapter, folder: Path) -> set[str]:
    """The exercises of which this folder's file holds an answer."""
    return source.begun((folder / chapter.file).read_text(encoding="utf-8"), chapter)


def catalogue(chapter: Chapter) -> list[str]:
    """Every exercise has its numbers, a property or a reason, and three misconceptions."""
    faults = []
    properties = {e for t in expected_tests(chapter) if t.is_property for e in t.exercises}
    for exercise in chapter.exercises:
        if exercise.priority not in PRIORITIES:
            faults.append(f"{exercise.name}: priority is one of {', '.join(PRIORITIES)}")
        if bool(exercise.no_property) == (exercise.name in properties):
            faults.append(f"{exercise.name}: needs a property test, or no_property with the reason")
        count = sum(wrong.exercise == exercise.name for wrong in chapter.misconceptions)
        if count < 3:
            faults.append(f"{exercise.name} has {count} misconceptions, needs 3")
    ids = [wrong.id for wrong in chapter.misconceptions]
    faults += [f"{identity} stands twice" for identity in set(ids) if ids.count(identity) > 1]
    marked = [a.name for a in source.answers(chapter.solution.read_text("utf-8"), chapter.file)]
    listed = [exercise.name for exercise in chapter.exercises]
    if marked != listed:
        faults.append(f"the solution marks {marked}, the catalogue lists {listed}")
    return faults


def examples(chapter: Chapter) -> list[str]:
    """Every exercise's docstring has a worked example; the kit's own tests run them."""
    docstrings = source.docstrings(chapter.solution.read_text(encoding="utf-8"))
    names = [e.name for e in chapter.exercises if ">>>" not in docstrings.get(e.name, "")]
    return [f"{name} has no worked example" for name in names]


def walkthrough(chapter: Chapter) -> list[str]:
    """The walkthrough has its sections in order, every pitfall with its test, every hint."""
    if not chapter.walkthrough.exists():
        return [f"{chapter.walkthrough.name} is missing"]
    text = chapter.walkthrough.read_text(encoding="utf-8")
    parts = lesson.sections(text, 2)
    faults = []
    if list(parts) != SECTIONS:
        faults.append(f"sections are {list(parts)}, must be {SECTIONS}")
        return faults
    pitfalls = lesson.sections(parts["Pitfalls"], 3)
    tests = {test.name: test for test in expected_tests(chapter)}
    for wrong in chapter.misconceptions:
        body = pitfalls.get(wrong.id)
        if body is None:
            faults.append(f"pitfall {wrong.id} is missing")
            continue
        named = [name for name in re.findall(r"`(test_\w+)`", body) if name in tests]
        if not any(wrong.exercise in tests[name].exercises for name in named):
            faults.append(f"pitfall {wrong.id} names no test of {wrong.exercise}")
    for exercise in chapter.exercises:
        tiers = len(lesson.hints(chapter, exercise.name))
        if tiers != HINT_TIERS:
            faults.append(f"{exercise.name} has {tiers} hints, needs {HINT_TIERS}")
    return faults
