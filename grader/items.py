"""What the plugin asks of pytest's items: a test on the learner's file, or on a wrong answer."""

import functools
from pathlib import Path

import pytest

from grader import verdict
from grader.chapters import Chapter, Misconception


@functools.cache
def chapter_of(path: Path) -> Chapter | None:
    """The chapter that this test file judges; None for any other test file."""
    chapter = Chapter(path.stem.removeprefix("test_"))
    return chapter if path == chapter.tests and chapter.catalogue.exists() else None


def is_judged(item) -> bool:
    return isinstance(item, pytest.Function) and chapter_of(item.path) is not None


def is_property(item) -> bool:
    return getattr(item.obj, "is_hypothesis_test", False)


def exercises_of(item) -> tuple[str, ...]:
    marker = item.get_closest_marker("exercise")
    return marker.args if marker else ()


def new_result(item) -> verdict.TestResult:
    wrong = planted_in(item)
    return verdict.TestResult(
        item.name, exercises_of(item), item.location[1] + 1, wrong=wrong.id if wrong else ""
    )


def planted_in(item) -> Misconception | None:
    return item.callspec.params.get("impl") if hasattr(item, "callspec") else None


def key_of(item) -> tuple:
    """The same for a test and for its runs on wrong answers."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    case = sorted((name, id(value)) for name, value in params.items() if name != "impl")
    return (item.path, item.originalname, *case)


def loaded_as(item) -> str:
    wrong = planted_in(item)
    return f"{item.path.stem}:{wrong.id if wrong else ''}"
