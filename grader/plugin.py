"""The pytest plugin: how a chapter's tests meet a learner's file.

Fixtures `impl` (the learner's module) and `reference` (the solution); the marker `exercise`; one
verdict per test in place of a traceback; and, when tests fail, a look through the catalogue for a
mistake that gives the same numbers.

Every test that takes `impl` is collected once for the learner and once for each misconception of
its exercises. The second kind is kept aside and runs only to diagnose, or under `--prove`.
"""

import functools
import os
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from grader import diagnosis, source, submission, verdict
from grader.chapters import ROOT, Chapter
from grader.checks import is_not_started
from grader.items import (
    chapter_of,
    exercises_of,
    is_judged,
    is_property,
    key_of,
    loaded_as,
    new_result,
    planted_in,
)
from grader.messages import (
    SKIPS,
    NoAnswer,
    NotAllowed,
    NotRun,
    Waiting,
    clean,
    describe,
    learners_lines,
)

PRINTED_KEPT = 2000


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

    configuration.set_hypothesis_home_dir(hypothesis_home())
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


@functools.cache
def hypothesis_home() -> Path:
    """Where Hypothesis keeps its files: with the learner's, or apart on a read-only disk."""
    home = ROOT / ".practice" / "hypothesis"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return home


@pytest.fixture(scope="module")
def impl(request):
    """The learner's module, or the reference with one misconception planted in it."""
    return request.config.pluginmanager.get_plugin("kit_judge").load(request)


@pytest.fixture(scope="module")
def reference(request):
    """The solution's module."""
    return submission.reference(chapter_of(request.path))


class Judge:
    def __init__(self, config):
        self.folder = (config.invocation_params.dir / config.getoption("impl")).resolve()
        self.proving = config.getoption("prove")
        self.only = config.getoption("exercise")
        self.wrong_items: dict[tuple, list[pytest.Function]] = defaultdict(list)
        self.now: pytest.Item | None = None
        self.recursion_limit = sys.getrecursionlimit()
        self.loaded: dict[str, submission.Submission] = {}
        self.results: dict[Chapter, dict[str, verdict.TestResult]] = defaultdict(dict)
        self.unanswered: dict[str, str] = {}  # exercises, and the test in which each hung
        self.passes: dict[tuple, list[pytest.Function]] = defaultdict(list)
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

    @pytest.hookimpl(tryfirst=True)
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
            # pytest renders tracebacks that nobody would see, for most of a diagnosis's time.
            item.repr_failure = item._repr_failure_py = lambda *_, **__: ""
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
        self._undo_side_effects()
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

    def _undo_side_effects(self):
        """One exercise's changes to the process must not reach another's tests."""
        os.chdir(ROOT)
        sys.setrecursionlimit(self.recursion_limit)
        if "numpy" in sys.modules:
            sys.modules["numpy"].seterr(divide="warn", over="warn", under="ignore", invalid="warn")

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
            module = self._learners_module(chapter)
        else:
            text = source.plant(chapter.solution.read_text(encoding="utf-8"), wrong, chapter.stem)
            module = source.load(f"{chapter.stem}_{wrong.id}", text, chapter.solution)
        loaded = submission.Submission(chapter, module, submission.reference(chapter))
        loaded.judge_only(exercises_of(self.now))
        self.loaded[loaded_as(self.now)] = loaded
        return module

    def _learners_module(self, chapter: Chapter):
        """The learner's file; whatever keeps it from loading is said once and kept by pytest."""
        try:
            return submission.read(chapter, self.folder)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except NotImplementedError as error:
            if not is_not_started(error):
                raise
            raise submission.CannotLoad(
                f"{error} is called while the file loads, and is not written yet"
                + learners_lines(error, self.folder / chapter.file)
            ) from None
        except (Exception, *SKIPS):
            raise
        except BaseException as error:
            raise submission.CannotLoad(describe(error, self.folder / chapter.file)[1]) from None

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
        result.seconds = call.duration if call.when == "call" else 0.0
        report.kit = result
        report.outcome = "passed" if result.outcome == "passed" else "failed"
        report.longrepr = result.message or None
        if hasattr(report, "wasxfail"):
            del report.wasxfail
        if planted_in(item):
            if error is not None:
                item.stash[diagnosis.error_of] = error
            return report
        earlier = self.results[chapter_of(item.path)].get(item.name)
        if earlier is None or earlier.outcome == "passed":
            result.seconds += earlier.seconds if earlier else 0.0
            self.results[chapter_of(item.path)][item.name] = result
        if isinstance(error, NoAnswer) and call.when == "call":
            self.unanswered.update(dict.fromkeys(result.exercises, item.name))
        self._keep_for_diagnosis(item, call.when, result, error)
        return report

    def _keep_for_diagnosis(self, item, when: str, result: verdict.TestResult, error):
        """Worked examples only: a property takes long, an integration test has many causes."""
        slow = is_property(item) or item.get_closest_marker("trains")
        if slow or len(result.exercises) > 1:
            return
        key = (chapter_of(item.path), result.exercises[0])
        if result.outcome == "wrong":
            item.stash[diagnosis.error_of] = error
            self.failures[key].append(item)
        elif when == "call" and result.outcome == "passed":
            self.passes[key].append(item)

    def _result(self, item, when: str, error: BaseException | None) -> verdict.TestResult:
        chapter = chapter_of(item.path)
        result = new_result(item)
        if error is None:
            return result
        file = self.folder / chapter.file
        result.outcome, result.message = describe(error, file)
        loading = when == "setup" and loaded_as(item) not in self.loaded
        if result.outcome == "broken" and loading and not isinstance(error, NotRun):
            result.message = f"{verdict.short(file)} cannot be loaded: {result.message}"
        printed = "".join(text for _, kind, text in item._report_sections if kind == "stdout")
        result.printed = clean(printed[-PRINTED_KEPT:])
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session):
        ended = yield
        for (chapter, exercise), items in self.failures.items():
            passed = self.passes[(chapter, exercise)]
            for wrong in diagnosis.diagnose(items, passed, self.wrong_items):
                for item in items:
                    self.results[chapter][item.name].diagnosis.append(wrong.id)
                session.config.hook.pytest_kit_diagnosis(exercise=exercise, wrong=wrong)
        return ended

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
            result = verdict.judge(chapter, self.folder, results, self.only, missing=None)
            terminalreporter.ensure_newline()
            text = screen.as_text(screen.details(result), color=terminalreporter.hasmarkup)
            terminalreporter.write_line(text)


class Hooks:
    def pytest_kit_diagnosis(self, exercise, wrong):
        """A misconception gives this exercise's numbers."""


def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Hooks)
