"""Names the mistake: the catalogue's wrong answers run on the tests that failed.

A wrong answer is named when it gives the learner's numbers in the first failed test that says
something, and fails every other one that failed too.
"""

import time
from collections.abc import Mapping

import pytest
from _pytest.runner import runtestprotocol

from grader.chapters import Misconception
from grader.checks import Different, NotRefused, same_answer
from grader.items import key_of, planted_in

SECONDS = 1.0  # after that, silence

error_of = pytest.StashKey[BaseException]()
WrongItems = Mapping[tuple, list[pytest.Function]]  # by key_of: a test's runs on wrong answers


def diagnose(failed: list[pytest.Function], wrong_items: WrongItems) -> list[Misconception]:
    """The misconceptions behind an exercise's failed tests.

    A forgotten check is one mistake and a wrong number another: each gets its own name.
    """
    refusals = [item for item in failed if isinstance(item.stash[error_of], NotRefused)]
    values = [item for item in failed if item not in refusals]
    found = _diagnose(values, wrong_items) + _diagnose(refusals, wrong_items)
    return list(dict.fromkeys(found))


def _diagnose(failed: list[pytest.Function], wrong_items: WrongItems) -> list[Misconception]:
    """Of several misconceptions, those that give the learner's numbers in the most tests."""
    deadline = time.monotonic() + SECONDS
    failed = [item for item in failed if not item.get_closest_marker("trains")]
    failed.sort(key=lambda item: not informative(item.stash[error_of]))
    candidates = [planted_in(item) for item in wrong_items[key_of(failed[0])]] if failed else []
    agreeing = {w.id: _agreements(w, failed, wrong_items, deadline) for w in candidates}
    most = max(agreeing.values(), default=0)
    if most == 0 or time.monotonic() > deadline:
        return []
    return [wrong for wrong in candidates if agreeing[wrong.id] == most]


def _agreements(
    wrong: Misconception, failed: list, wrong_items: WrongItems, deadline: float
) -> int:
    """In how many failed tests a wrong answer gives the learner's numbers; 0 rules it out."""
    count = 0
    for item in failed:
        if time.monotonic() > deadline:
            return 0
        planted = next(i for i in wrong_items[key_of(item)] if planted_in(i) is wrong)
        error, learners = run_aside(planted), item.stash[error_of]
        same = same_answer(getattr(error, "actual", None), getattr(learners, "actual", None))
        if not isinstance(error, AssertionError) or (item is failed[0] and not same):
            return 0
        count += same
    return count


def run_aside(item) -> BaseException | None:
    """Run a kept-aside item without reporting it; the error it ends in, if any."""
    runtestprotocol(item, nextitem=None, log=False)
    return item.stash.get(error_of, None)


def informative(error: BaseException) -> bool:
    return isinstance(error, Different) and same_answer(error.actual, error.actual)
