"""Names the mistake: the catalogue's wrong answers run on the tests that the learner's ran on.

A wrong answer is named when it gives the learner's numbers wherever they say something, and fails
and passes the same tests. Two that do both are both named; when time runs out, none is.
"""

import time
import warnings
from collections.abc import Iterable, Mapping

import pytest
from _pytest.runner import runtestprotocol

from grader.chapters import Misconception
from grader.checks import Different, NotRefused, same_answer
from grader.items import key_of, planted_in

SECONDS = 1.0  # of processor time; after that, silence

error_of = pytest.StashKey[BaseException]()
WrongItems = Mapping[tuple, list[pytest.Function]]  # by key_of: a test's runs on wrong answers


class OutOfTime(Exception):
    pass


def diagnose(
    failed: list[pytest.Function], passed: list[pytest.Function], wrong_items: WrongItems
) -> list[Misconception]:
    """The misconceptions behind an exercise's failed tests.

    A forgotten check is one mistake and a wrong number another: each gets its own name.
    """
    refusals = [item for item in failed if isinstance(item.stash[error_of], NotRefused)]
    values = [item for item in failed if item not in refusals]
    deadline = time.process_time() + SECONDS
    try:
        found = _behind(values, passed, wrong_items, Different, deadline)
        found += _behind(refusals, passed, wrong_items, NotRefused, deadline)
    except Exception:  # out of time, or a learner's object that cannot be compared: no word
        return []
    return list(dict.fromkeys(found))


def _behind(
    failed: list[pytest.Function],
    passed: Iterable[pytest.Function],
    wrong_items: WrongItems,
    kind: type[Different],
    deadline: float,
) -> list[Misconception]:
    """Those whose failures of this kind are the learner's."""
    telling = [item for item in failed if informative(item.stash[error_of])]
    if not telling:
        return []
    order = telling + [item for item in failed if item not in telling]
    found = []
    for wrong in (planted_in(item) for item in wrong_items[key_of(order[0])]):

        def error_in(item, wrong=wrong):
            if time.process_time() > deadline:
                raise OutOfTime
            return run_aside(next(i for i in wrong_items[key_of(item)] if planted_in(i) is wrong))

        if all(_same_failure(error_in(item), item.stash[error_of]) for item in order) and not any(
            type(error_in(item)) is kind for item in passed
        ):
            found.append(wrong)
    return found


def _same_failure(error: BaseException | None, learners: BaseException) -> bool:
    """Whether a wrong answer fails as the learner's did: with its numbers, if they say anything."""
    if not isinstance(error, AssertionError):
        return False
    return not informative(learners) or same_answer(getattr(error, "actual", None), learners.actual)


def run_aside(item) -> BaseException | None:
    """Run a kept-aside item without reporting it; the error it ends in, if any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the item's own filter works in pytest's loop only
        runtestprotocol(item, nextitem=None, log=False)
    return item.stash.get(error_of, None)


def informative(error: BaseException) -> bool:
    return isinstance(error, Different) and same_answer(error.actual, error.actual)
