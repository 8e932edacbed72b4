"""From test outcomes to statuses: what the grader says of an exercise and of a chapter."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from grader import source
from grader.chapters import Chapter, Exercise
from grader.manifest import expected_tests


@dataclass
class TestResult:
    """One test's outcome: passed, wrong, broken or not started."""

    id: str
    exercises: tuple[str, ...]
    line: int
    outcome: str = "passed"
    message: str = ""
    printed: str = ""
    diagnosis: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of the test's own call
    wrong: str = ""  # the misconception it ran on, when it did not run on the learner's file

    def as_json(self) -> dict:
        entry = asdict(self)
        return {key: entry[key] for key in ("id", "outcome", "message", "diagnosis")}


def from_record(record: dict) -> TestResult:
    return TestResult(**{**record, "exercises": tuple(record["exercises"])})


@dataclass
class ExerciseResult:
    exercise: Exercise
    line: int  # where it stands in the learner's file; 0 when it is not there
    tests: list[TestResult]

    @property
    def status(self) -> str:
        return _status([test.outcome for test in self.tests])

    @property
    def passed(self) -> int:
        return sum(test.outcome == "passed" for test in self.tests)


@dataclass
class ChapterResult:
    """A chapter's exercises, and the tests that judge several of them together."""

    chapter: Chapter
    file: Path
    exercises: list[ExerciseResult]
    together: list[TestResult]
    problem: str = ""  # environment, tampered or broken: nothing else counts then
    problem_message: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tests(self) -> list[TestResult]:
        return [test for exercise in self.exercises for test in exercise.tests] + self.together

    @property
    def status(self) -> str:
        if self.problem:
            return self.problem
        statuses = [exercise.status for exercise in self.exercises]
        return _status(statuses + [t.outcome for t in self.together if "done" in statuses])

    @property
    def passed(self) -> int:
        return sum(test.outcome == "passed" for test in self.tests)

    def as_json(self) -> dict:
        return {
            "id": self.chapter.stem,
            "number": self.chapter.number,
            "title": self.chapter.title,
            "status": self.status,
            "message": self.problem_message,
            "passed": self.passed,
            "total": len(self.tests),
            "seconds": round(self.seconds, 3),
            "exercises": [
                {
                    "name": result.exercise.name,
                    "status": result.status,
                    "minutes": result.exercise.minutes,
                    "priority": result.exercise.priority,
                    "passed": result.passed,
                    "total": len(result.tests),
                    "tests": [test.as_json() for test in result.tests],
                }
                for result in self.exercises
            ],
            "together": [test.as_json() for test in self.together],
        }


def _status(parts: list[str]) -> str:
    """The first that applies; `parts` are outcomes of tests or statuses of exercises."""
    for status in ("broken", "wrong"):
        if status in parts:
            return status
    if parts and all(part in ("passed", "done") for part in parts):
        return "done"
    return "not started" if all(part == "not started" for part in parts) else "in progress"


def judge(
    chapter: Chapter,
    folder: Path,
    results: dict[str, TestResult],
    only: str | None = None,
    missing: str | None = "this test did not run",
) -> ChapterResult:
    """Put test results in the order of the chapter; a test without a result is broken.

    `missing` is the message of such a test; None leaves it out.
    """
    file = folder / chapter.file
    names = [exercise.name for exercise in chapter.exercises]
    lines = source.lines_of(file.read_bytes(), names) if file.is_file() else {}
    by_exercise: dict[str, list[TestResult]] = {name: [] for name in names}
    together = []
    for test in expected_tests(chapter):
        found = [r for r in results.values() if r.id.split("[")[0] == test.name]
        if missing is not None:
            found += [
                TestResult(test.name, test.exercises, test.line, "broken", missing)
                for _ in range(test.cases - len(found))
            ]
        if test.integration:
            together += found
        else:
            by_exercise[test.exercises[0]] += found
    exercises = [
        ExerciseResult(exercise, lines.get(exercise.name, 0), by_exercise[exercise.name])
        for exercise in chapter.exercises
        if only in (None, exercise.name) and (missing is not None or by_exercise[exercise.name])
    ]
    return ChapterResult(chapter, file, exercises, [] if only else together)


def untouched(chapter: Chapter, folder: Path, only: str | None = None) -> ChapterResult:
    """The result of a file that is its stub byte for byte: nothing needs to run."""
    results = {}
    for test in expected_tests(chapter):
        waits = source.not_started(chapter, test.exercises[-1])
        for case in range(test.cases):
            identity = test.name if test.cases == 1 else f"{test.name}[{case}]"
            results[identity] = TestResult(
                identity, test.exercises, test.line, "not started", waits
            )
    return judge(chapter, folder, results, only)


def short(path: Path) -> str:
    """A path as the learner would type it: relative to where they stand, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # not below, or where they stand is gone
        return str(path)
