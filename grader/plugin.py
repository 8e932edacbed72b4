"""The pytest plugin: how a chapter's tests meet a learner's file.

Fixtures `impl` (the learner's module) and `reference` (the solution); the marker `exercise`; one
verdict per test in place of a traceback; and, when tests fail, a look through the catalogue for a
mistake that gives the same numbers.

Every test that takes `impl` is collected once for the learner and once for each misconception of
its exercises. The second kind is kept aside and runs only to diagnose, or under `--prove`.
"""

import functools
import inspect
import re
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from grader import source, submission, verdict
from grader.chapters import ROOT, Chapter, Misconception
from grader.checks import Different, NotRefused, is_not_started, same_answer

DIAGNOSIS_SECONDS = 1.0
PRINTED_KEPT = 2000
# Taken before any learner code runs: it might replace pytest's own.
SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)
FAILURES = (AssertionError, pytest.fail.Exception)
HYPOTHESIS_HOME = ROOT / ".practice" / "hypothesis"

learners_module = pytest.StashKey[submission.Submission]()
error_of = pytest.StashKey[BaseException]()


class NoAnswer(BaseException):
    """A test's time is up. Not an Exception: Hypothesis would take it for a counterexample."""


class NotRun(Exception):
    """A test left out because its exercise has hung before: one wait is enough."""


class NotAllowed(Exception):
    """An exercise calls what it should implement."""


class Waiting(Exception):
    """An integration test whose exercises do not all pass on their own yet."""


def pytest_addoption(parser):
    group = parser.getgroup("kit", "interview kit")
    group.addoption("--impl", default="exercises", help="folder whose chNN_name.py is judged")
    group.addoption("--exercise", help="run the tests of this exercise only")
    group.addoption(
        "--prove",
        action="store_true",
        help="run each test on the wrong answers of its catalogue instead of on --impl",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "exercise(*names): the exercises that this test judges")
    config.addinivalue_line("markers", "trains: a learning test, too slow to diagnose with")
    _configure_hypothesis()
    config.pluginmanager.register(Judge(config), "kit_judge")


def _configure_hypothesis():
    from hypothesis import HealthCheck, Phase, configuration, settings

    HYPOTHESIS_HOME.mkdir(parents=True, exist_ok=True)
    configuration.set_hypothesis_home_dir(HYPOTHESIS_HOME)
    settings.register_profile(
        "kit",
        derandomize=True,
        report_multiple_bugs=False,
        database=None,
        deadline=None,
        max_examples=25,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("kit")


@pytest.fixture(scope="module")
def impl(request):
    """The learner's module, or the reference with one misconception planted in it."""
    return request.config.pluginmanager.get_plugin("kit_judge").load(request)


@pytest.fixture(scope="module")
def reference(request):
    """The solution's module."""
    return submission.reference(chapter_of(request.path))


@functools.cache
def chapter_of(path: Path) -> Chapter | None:
    """The chapter that this test file judges; None for any other test file."""
    chapter = Chapter(path.stem.removeprefix("test_"))
    return chapter if path == chapter.tests and chapter.catalogue.exists() else None


class Judge:
    def __init__(self, config):
        self.folder = (config.invocation_params.dir / config.getoption("impl")).resolve()
        self.proving = config.getoption("prove")
        self.only = config.getoption("exercise")
        self.wrong_items: dict[tuple, list[pytest.Function]] = defaultdict(list)
        self.now: pytest.Item | None = None
        self.loaded: dict[str, submission.Submission] = {}
        self.results: dict[Chapter, dict[str, verdict.TestResult]] = defaultdict(dict)
        self.unanswered: dict[str, str] = {}  # exercises, and the test in which each hung
        self.failures: dict[tuple, list[pytest.Function]] = defaultdict(list)

    # Collection ----------------------------------------------------------------------------

    def pytest_generate_tests(self, metafunc):
        chapter = chapter_of(metafunc.definition.path)
        if chapter is None or "impl" not in metafunc.fixturenames:
            return
        names = exercises_of(metafunc.definition)
        wrong = [w for w in chapter.misconceptions if w.exercise in names]
        # HIDDEN_PARAM leaves the learner's own tests with their plain names.
        metafunc.parametrize(
            "impl",
            [pytest.param(None, id=pytest.HIDDEN_PARAM)]
            + [pytest.param(w, id=w.id) for w in wrong],
            indirect=True,
            scope="module",
        )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        judged, others, wrong = [], [], []
        for item in items:
            if not is_judged(item):
                others.append(item)
                continue
            if self.only and exercises_of(item) != (self.only,):
                continue
            # A right answer may overflow on its way; only values are judged.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if planted_in(item):
                self.wrong_items[key_of(item)].append(item)
                wrong.append(item)
            else:
                judged.append(item)
        judged.sort(key=lambda item: len(exercises_of(item)) > 1)
        items[:] = wrong if self.proving else others + judged

    # Before each test ----------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if not is_judged(item):
            return
        self.now = item
        names = exercises_of(item)
        if len(names) > 1 and not self.proving:
            waits = [name for name in names if self._unfinished(item, name)]
            if waits:
                raise Waiting(f"waits for {', '.join(waits)}")
        if not planted_in(item):
            self._refuse_forbidden_calls(item, names)
            for hung in (self.unanswered[n] for n in names if n in self.unanswered):
                raise NotRun(f"not run, since {hung} gave no answer")
        already = self.loaded.get(loaded_as(item))
        if already:
            already.judge_only(names)

    def _refuse_forbidden_calls(self, item, names: tuple[str, ...]):
        chapter = chapter_of(item.path)
        file = self.folder / chapter.file
        for name in names:
            for call in submission.forbidden_calls(chapter, file, name):
                where = f"{verdict.short(file)}:{call.line}"
                raise NotAllowed(f"{name} must not use {call.rule}\n  {where}: {call.written}")

    def _unfinished(self, item, name: str) -> bool:
        results = self.results[chapter_of(item.path)].values()
        return any(r.outcome != "passed" for r in results if r.exercises == (name,))

    def load(self, request):
        """What the fixture `impl` gives: loaded once, then dressed anew for each test."""
        chapter = chapter_of(request.path)
        wrong = request.param
        if wrong is None:
            module = submission.read(chapter, self.folder)
        else:
            text = source.plant(chapter.solution.read_text(encoding="utf-8"), wrong, chapter.stem)
            module = source.load(f"{chapter.stem}_{wrong.id}", text, chapter.solution)
        loaded = submission.Submission(chapter, module, submission.reference(chapter))
        loaded.judge_only(exercises_of(self.now))
        self.loaded[loaded_as(self.now)] = loaded
        return module

    # The limit -----------------------------------------------------------------------------

    def pytest_timeout_set_timer(self, item, settings):
        if not hasattr(signal, "setitimer"):
            return None

        def ring(*_):
            raise NoAnswer(f"no answer in {settings.timeout:g} s")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, 1)  # rings again each second
        item.cancel_timeout = lambda: None
        return True

    def pytest_timeout_cancel_timer(self, item):
        if not hasattr(signal, "setitimer"):
            return None
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    # After each test -----------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, NoAnswer):
            signal.setitimer(signal.ITIMER_REAL, 0)  # another ring would hit pytest itself
        report = yield
        if not is_judged(item):
            return report
        result = self._result(item, call.when, error)
        report.kit = result
        report.outcome = "passed" if result.outcome == "passed" else "failed"
        report.longrepr = result.message or None
        if hasattr(report, "wasxfail"):
            del report.wasxfail
        if planted_in(item):
            if error is not None:
                item.stash[error_of] = error
            return report
        earlier = self.results[chapter_of(item.path)].get(item.name)
        if earlier is None or earlier.outcome == "passed":
            self.results[chapter_of(item.path)][item.name] = result
        if isinstance(error, NoAnswer) and call.when == "call":
            self.unanswered.update(dict.fromkeys(result.exercises, item.name))
        if result.outcome == "wrong" and len(result.exercises) == 1 and not is_property(item):
            item.stash[error_of] = error
            self.failures[(chapter_of(item.path), result.exercises[0])].append(item)
        return report

    def _result(self, item, when: str, error: BaseException | None) -> verdict.TestResult:
        chapter = chapter_of(item.path)
        result = new_result(item)
        if error is None:
            return result
        file = self.folder / chapter.file
        result.outcome, result.message = describe(error, file)
        if result.outcome == "broken" and when == "setup" and not isinstance(error, NotRun):
            result.message = f"{verdict.short(file)} cannot be loaded: {result.message}"
        printed = "".join(text for _, kind, text in item._report_sections if kind == "stdout")
        result.printed = printed[-PRINTED_KEPT:]
        return result

    # Diagnosis -----------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session):
        ended = yield
        for (chapter, exercise), items in self.failures.items():
            refusals = [i for i in items if isinstance(i.stash[error_of], NotRefused)]
            values = [i for i in items if i not in refusals]
            # A forgotten check is one mistake and a wrong number another: each has its own name.
            for wrong in dict.fromkeys(self._diagnose(values) + self._diagnose(refusals)):
                for item in items:
                    self.results[chapter][item.name].diagnosis.append(wrong.id)
                session.config.hook.pytest_kit_diagnosis(exercise=exercise, wrong=wrong)
        return ended

    def _diagnose(self, failed: list[pytest.Function]) -> list[Misconception]:
        """The misconceptions that give the learner's numbers and fail the same tests.

        Of several, those that give the learner's numbers in the most tests.
        """
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        failed = [item for item in failed if not item.get_closest_marker("trains")]
        failed.sort(key=lambda item: not informative(item.stash[error_of]))
        agreeing: dict[str, int] = {}
        candidates = (
            [planted_in(item) for item in self.wrong_items[key_of(failed[0])]] if failed else []
        )
        for wrong in candidates:
            agreed = self._agreements(wrong, failed, deadline)
            if agreed:
                agreeing[wrong.id] = agreed
        if time.monotonic() > deadline:
            return []
        most = max(agreeing.values(), default=0)
        return [wrong for wrong in candidates if agreeing.get(wrong.id) == most]

    def _agreements(self, wrong: Misconception, failed: list, deadline: float) -> int:
        """In how many failed tests a wrong answer gives the learner's numbers; 0 rules it out."""
        count = 0
        for item in failed:
            if time.monotonic() > deadline:
                return 0
            planted = next(i for i in self.wrong_items[key_of(item)] if planted_in(i) is wrong)
            error, learners = run_aside(planted), item.stash[error_of]
            same = same_answer(getattr(error, "actual", None), getattr(learners, "actual", None))
            if not isinstance(error, AssertionError) or (item is failed[0] and not same):
                return 0
            count += same
        return count

    # Plain pytest's terminal ---------------------------------------------------------------

    def pytest_report_teststatus(self, report):
        result = getattr(report, "kit", None)
        if result is None or result.outcome == "passed":
            return None
        letter = {"not started": "-", "wrong": "F", "broken": "E"}[result.outcome]
        return result.outcome, letter, result.outcome.upper()

    def pytest_terminal_summary(self, terminalreporter):
        from grader import screen

        for chapter, results in self.results.items():
            result = verdict.judge(chapter, self.folder, results, only=self.only)
            terminalreporter.ensure_newline()
            text = screen.as_text(screen.details(result), color=terminalreporter.hasmarkup)
            terminalreporter.write_line(text)


class Hooks:
    def pytest_kit_diagnosis(self, exercise, wrong):
        """A misconception gives this exercise's numbers."""


def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Hooks)


# Items -------------------------------------------------------------------------------------


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


def run_aside(item) -> BaseException | None:
    """Run a kept-aside item without reporting it; the error it ends in, if any."""
    runtestprotocol(item, nextitem=None, log=False)
    return item.stash.get(error_of, None)


def informative(error: BaseException) -> bool:
    return isinstance(error, Different) and same_answer(error.actual, error.actual)


# What an error says to the learner -----------------------------------------------------------


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
