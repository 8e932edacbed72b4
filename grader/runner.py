"""Runs a chapter's tests in a child process and owns the verdict.

The parent never runs learner code. It knows which tests must come back (grader/manifest.py) and
believes only records that carry the key of this run. A test passed if its setup, call and teardown
all came back passed; whatever else happened to the child, an exit code or a printed line never is
a verdict.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from grader import results, sandbox, verdict
from grader.canaries import CANARIES
from grader.chapters import ROOT, Chapter
from grader.processes import Process, Starter, cold

PHASES = {"setup", "call", "teardown"}
UNUSED_PLUGINS = ("terminal", "cacheprovider", "unraisableexception", "threadexception")
UNUSED_PLUGINS += ("faulthandler", "junitxml", "doctest", "unittest", "logging", "setuponly")
START_LIMIT = 60  # seconds for the child to import its libraries and collect
GRACE = 3  # seconds past a test's own limit before the child is killed
REST_LIMIT = 30  # seconds for diagnosis and canaries
OUTPUT_KEPT = 64 * 1024
MEMORY = sandbox.MEMORY + 2**30  # bytes for a process with its children and their shared memory
LOOK = 0.2  # seconds between two looks at the memory
SIGNALS = {signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "abort", signal.SIGKILL: "killed"}


@dataclass(frozen=True)
class Job:
    chapter: Chapter
    folder: Path
    only: str | None = None
    prove: bool = False
    tests: tuple[str, ...] = ()  # names of test functions; empty for all
    limit: float = 0  # seconds for a test; 0 for pyproject.toml's


@dataclass
class Run:
    """What one child sent, and how it ended."""

    results: dict[str, verdict.TestResult] = field(default_factory=dict)
    phases: dict[str, set[str]] = field(default_factory=dict)
    canaries: dict[str, bool] = field(default_factory=dict)
    running: verdict.TestResult | None = None  # the test that has started and not finished
    limit: float = 0.0
    loaded: bool = False  # whether any test's setup passed, which loads the file
    uncollectable: str = ""
    forged: bool = False
    internal_error: bool = False  # pytest's own, or wrong arguments
    finished: bool = False
    end: str = ""
    output: bytes = b""
    output_dropped: int = 0


def run(job: Job, start: Starter = cold) -> verdict.ChapterResult:
    """Judge a chapter's file; a child that dies is replaced for the tests it did not reach."""
    began = time.monotonic()
    tests: dict[str, verdict.TestResult] = {}
    problem = message = ""
    missing = "this test did not run"
    notes: list[str] = []
    remaining = job
    while True:
        child = run_child(remaining, start)
        tests.update(child.results)
        problem, message = _problem(child)
        if child.output_dropped:
            notes.append(f"{child.output_dropped:,} bytes of output were dropped")
        if problem or not child.running:
            break
        died = tests[child.running.id] = child.running
        died.outcome, died.message = "broken", child.end
        if not child.loaded:
            file = verdict.short(job.folder / job.chapter.file)
            missing = died.message = f"{file} cannot be loaded: {child.end}"
            break
        left = tuple(_tests_left(job, tests, died))
        if not left:
            break
        remaining = replace(job, tests=left)
    result = verdict.judge(job.chapter, job.folder, tests, job.only, missing)
    result.problem, result.problem_message, result.notes = problem, message, notes
    if result.status in ("wrong", "broken", "environment"):
        if not reference_passes(job.chapter, start):
            result.problem = "environment"
            result.problem_message = message or "the reference itself fails here"
        elif result.problem == "environment":
            result.problem = "broken"
    result.seconds = time.monotonic() - began
    return result


def reference_passes(chapter: Chapter, start: Starter) -> bool:
    """Whether the solution passes on this machine; remembered until files or versions change."""
    folder = chapter.solution.parent
    result = results.load(chapter, folder)
    if result is None:
        result = verdict.judge(chapter, folder, run_child(Job(chapter, folder), start).results)
        results.save(result)
    return result.status == "done"


def _problem(child: Run) -> tuple[str, str]:
    """The status that overrides all tests, and its message; empty when there is none."""
    if child.forged:
        return "broken", "something other than the grader wrote to the grader's pipe"
    if child.uncollectable:
        return "environment", child.uncollectable
    if (not child.results and not child.running) or child.internal_error:
        printed = child.output.decode(errors="replace").strip().splitlines()[-8:]
        return "environment", "\n".join([f"pytest could not run the tests {child.end}", *printed])
    if child.running:
        return "", ""
    if not child.finished:
        return "broken", f"the test process ended early: {child.end}"
    if len(child.canaries) < len(CANARIES) or not all(child.canaries.values()):
        return "tampered", "a check that must fail passed: your file changes what judges it"
    return "", ""


def _tests_left(job: Job, tests: dict, died: verdict.TestResult):
    """The tests that have no result, but for those of the exercise that killed the child."""
    for test in verdict.expected_tests(job.chapter):
        if job.only and test.exercises != (job.only,):
            continue
        ran = [r for r in tests.values() if r.id.split("[")[0] == test.name]
        if ran and len(ran) == test.cases:
            continue
        if set(test.exercises) & set(died.exercises):
            continue
        yield test.name


def run_child(job: Job, start: Starter = cold) -> Run:
    key = secrets.token_hex(16)
    arguments = ["-p", "pytest_timeout"]
    # What pytest brings and nothing here needs: together a tenth of a second.
    for unused in UNUSED_PLUGINS:
        arguments += ["-p", f"no:{unused}"]
    # The checks say what differs; rewritten asserts would only cost time.
    arguments += ["--assert=plain", "--import-mode=importlib", "--noconftest"]
    arguments += [f"--impl={job.folder}"]
    arguments += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    arguments += [f"--exercise={job.only}"] if job.only else []
    arguments += ["--prove"] if job.prove else []
    arguments += ["-o", f"timeout={job.limit}"] if job.limit else []
    arguments += [f"{job.chapter.tests}::{name}" for name in job.tests] or [str(job.chapter.tests)]
    order = {"key": key, "arguments": arguments}
    result = Run()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        process = start(order, scratch)
        try:
            _listen(process, key, result)
        finally:
            _end_group(process)
    for test in list(result.results.values()):
        if test.outcome == "passed" and result.phases[test.id] != PHASES:
            del result.results[test.id]
    return result


def _listen(process: Process, key: str, result: Run):
    """Read records and output until the child closes both or its time is up."""
    deadline = time.monotonic() + START_LIMIT
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.records, selectors.EVENT_READ)
        selector.register(process.output, selectors.EVENT_READ)
        while not result.finished and selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                waited = (
                    f"no answer in {result.limit:g} s" if result.running else "no answer in time"
                )
                result.end = f"{waited}, and the process had to be killed"
                return
            if _memory(process.pid) > MEMORY:
                result.end = "out of memory: the process and its children had to be killed"
                return
            for ready, _ in selector.select(min(left, LOOK)):
                data = os.read(ready.fd, 65536)
                if not data:
                    selector.unregister(ready.fileobj)
                elif ready.fd == process.output:
                    kept = data[: OUTPUT_KEPT - len(result.output)]
                    result.output += kept
                    result.output_dropped += len(data) - len(kept)
                else:
                    *whole, pending = (pending + data).split(b"\n")
                    for line in whole:
                        _take(line, key, result)
                    limit = result.limit + GRACE if result.running else REST_LIMIT
                    deadline = time.monotonic() + limit
    if not result.finished:
        code = process.wait(GRACE)
        result.end = "the process closed its pipe and went on"
        if code is not None:
            result.end = _how_it_ended(code)
    elif result.running:
        result.end = "the run was ended from inside the test"


def _memory(pid: int) -> int:
    """The resident memory of a process and all below it."""
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
        return sum(each.memory_info().rss for each in tree)
    except psutil.Error:
        return 0


def _take(line: bytes, key: str, result: Run):
    """Take one record into the run."""
    try:
        record = json.loads(line)
        if record["key"] != key:
            raise ValueError("not this run's key")
    except (ValueError, TypeError, KeyError):
        result.forged = True
        return
    match record["event"]:
        case "start":
            result.running, result.limit = verdict.from_record(record["test"]), record["limit"]
        case "report":
            test = verdict.from_record(record["test"])
            phase = record["phase"]
            result.phases.setdefault(test.id, set()).add(phase)
            result.loaded |= test.outcome == "passed"
            earlier = result.results.get(test.id)
            if earlier is None or earlier.outcome == "passed":
                result.results[test.id] = test
            if phase == "teardown":
                result.running = None
        case "diagnosis":
            for test in result.results.values():
                if test.exercises == (record["exercise"],) and test.outcome == "wrong":
                    test.diagnosis.append(record["wrong"])
        case "canary":
            result.canaries[record["name"]] = record["failed"]
        case "cannot collect":
            result.uncollectable = record["message"]
        case "exit":
            result.finished = True
            result.internal_error = record["code"] in (3, 4)


def _how_it_ended(code: int) -> str:
    if code < 0:
        name = SIGNALS.get(-code, signal.Signals(-code).name)
        return f"the process died ({name})"
    return f"the process ended with exit code {code}"


def _end_group(process: Process):
    with contextlib.suppress(psutil.Error):
        for below in psutil.Process(process.pid).children(recursive=True):
            below.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(None)
    os.close(process.records)
    os.close(process.output)
