"""What an error in a test says to the learner, and which outcome it is."""

import inspect
import linecache
import re
from pathlib import Path

import pytest

from grader import submission, verdict
from grader.checks import is_not_started

LONGEST = 2000  # characters of a message
LONGEST_LINE = 100  # of a line of source
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
    try:
        outcome, message = _described(error, file)
    except BaseException:  # the error is the learner's own object, and so is what its str() does
        return "broken", f"{type(error).__name__}, whose message cannot be shown"
    return outcome, clean(message)


def clean(text: str) -> str:
    """Text that is safe to print: no control characters, no lone surrogates, not too long."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} ... ({len(text):,} characters)"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", lambda m: repr(m[0])[1:-1], text)


def _described(error: BaseException, file: Path) -> tuple[str, str]:
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
        return "wrong", f"{str(error) or failed_line(error)}{where}{smallest_input(error)}"
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
    if (
        isinstance(error, AttributeError)
        and inspect.ismodule(error.obj)
        and error.obj.__file__ == str(file)
    ):
        return "broken", f"{verdict.short(file)} has no {error.name}"
    return "broken", f"{type(error).__name__}: {error}{where}{smallest_input(error)}"


def learners_lines(error: BaseException, file: Path) -> str:
    """The learner's own frames of a traceback, the innermost last, at most three."""
    own: list[tuple[int, str]] = []
    frame = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_filename == str(file):
            own = [*own[-2:], (frame.tb_lineno, code.co_name)]
        frame = frame.tb_next
    return "".join(
        f"\n  {verdict.short(file)}:{line} in {name}: "
        + linecache.getline(str(file), line).strip()[:LONGEST_LINE]
        for line, name in own
    )


def failed_line(error: BaseException) -> str:
    """The line of a bare assert, in place of the message that it does not have."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    line = linecache.getline(frame.tb_frame.f_code.co_filename, frame.tb_lineno).strip()
    return f"this fails: {line}"[:LONGEST_LINE]


def smallest_input(error: BaseException) -> str:
    """The input to which Hypothesis has shrunk the failure, without the fixtures."""
    for note in getattr(error, "__notes__", []):
        drawn = re.findall(r"^    (?!impl=|reference=)(\w+=.*),$", note, flags=re.M)
        if drawn and note.endswith("\n)"):
            return f"\n  the smallest input that breaks: {', '.join(drawn)}"
    return ""
