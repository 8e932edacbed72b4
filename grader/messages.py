"""What an error in a test says to the learner, and which outcome it is."""

import inspect
import re
from pathlib import Path

import pytest

from grader import submission, verdict
from grader.checks import is_not_started

# Taken before any learner code runs: it might replace pytest's own.
SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)
FAILURES = (AssertionError, pytest.fail.Exception)


class NoAnswer(BaseException):
    """A test's time is up. Not an Exception: Hypothesis would take it for a counterexample."""


class NotRun(Exception):
    """A test left out because its exercise has hung before: one wait is enough."""


class NotAllowed(Exception):
    """An exercise calls what it should implement."""


class Waiting(Exception):
    """An integration test whose exercises do not all pass on their own yet."""


def describe(error: BaseException, file: Path) -> tuple[str, str]:
    """The outcome (`not started`, `wrong` or `broken`) and the message for the learner."""
    where = learners_lines(error, file)
    if is_not_started(error):
        return "not started", str(error)
    if isinstance(error, Waiting):
        return "not started", str(error)
    if isinstance(error, NotAllowed):
        return "wrong", str(error)
    if isinstance(error, SKIPS):
        return "wrong", f"a skip is not a pass{where}"
    if type(error).__name__ == "FlakyFailure":
        return "wrong", "the same input failed once and passed once: does state stay between calls?"
    if isinstance(error, OSError) and "reading from stdin" in str(error):
        return "wrong", f"input() and reading from stdin are not available in tests{where}"
    if isinstance(error, FAILURES):
        return "wrong", f"{str(error) or 'an assert fails'}{where}{smallest_input(error)}"
    if isinstance(error, NotRun):
        return "broken", str(error)
    if isinstance(error, NoAnswer):
        return "broken", f"{error}{where}"
    if isinstance(error, SystemExit):
        return "broken", f"sys.exit() was called{where}"
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return "broken", f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    if isinstance(error, submission.CannotLoad):
        return "broken", str(error)
    if isinstance(error, FileNotFoundError) and error.filename == str(file):
        return "broken", "the file does not exist; `make stubs` writes it"
    if isinstance(error, AttributeError) and getattr(error.obj, "__file__", None) == str(file):
        return "broken", f"{verdict.short(file)} has no {error.name}"
    return "broken", f"{type(error).__name__}: {error}{where}{smallest_input(error)}"


def learners_lines(error: BaseException, file: Path) -> str:
    """The learner's own frames of a traceback, the innermost last, at most three."""
    frames = [f for f in inspect.getinnerframes(error.__traceback__) if f.filename == str(file)]
    return "".join(
        f"\n  {verdict.short(file)}:{frame.lineno} in {frame.function}"
        + (f": {frame.code_context[0].strip()}" if frame.code_context else "")
        for frame in frames[-3:]
    )


def smallest_input(error: BaseException) -> str:
    """The input to which Hypothesis has shrunk the failure, without the fixtures."""
    for note in getattr(error, "__notes__", []):
        drawn = re.findall(r"^    (?!impl=|reference=)(\w+=.*),$", note, flags=re.M)
        if drawn and note.endswith("\n)"):
            return f"\n  the smallest input that breaks: {', '.join(drawn)}"
    return ""
