"""The process that runs one chapter's tests: `python -m grader.child`, started by the runner.

It reads its job from stdin, shuts stdin, limits itself, runs pytest without a terminal, and writes
one JSON record a line to the pipe that the job names. Every record carries the job's key, which
the learner's code is not given. The parent decides what the records mean.
"""

import json
import os
import sys
from dataclasses import asdict

import pytest

from grader import canaries
from grader.plugin import is_judged, new_result

MEMORY = 4 * 2**30  # bytes above what the process has when it starts
FILE_SIZE = 64 * 2**20


class CanaryItem(pytest.Item):
    """A check that must fail. One that passes shows that the framework was patched."""

    def runtest(self):
        canaries.run(self.name)

    def repr_failure(self, excinfo, style=None):
        return ""  # pytest's own takes 0.15 s and nobody reads it


class Recorder:
    """Sends what happens to the parent."""

    def __init__(self, pipe: int, key: str):
        self.pipe = os.fdopen(pipe, "w", encoding="utf-8")
        self.key = key

    def send(self, event: str, **record):
        self.pipe.write(json.dumps({"key": self.key, "event": event, **record}) + "\n")
        self.pipe.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item, settings):
        if is_judged(item):
            self.send("start", test=asdict(new_result(item)), limit=settings.timeout)

    def pytest_configure(self, config):
        config.option.tbstyle = "native"  # nobody reads the tracebacks; long ones take their time

    def pytest_collectreport(self, report):
        if report.failed:
            self.send("cannot collect", message=str(report.longrepr))

    def pytest_runtest_logreport(self, report):
        result = getattr(report, "kit", None)
        if result is not None:
            self.send("report", phase=report.when, test=asdict(result))
        elif report.when == "call" and report.nodeid.startswith("canary"):
            self.send("canary", name=report.nodeid.removeprefix("canary::"), failed=report.failed)

    def pytest_kit_diagnosis(self, exercise, wrong):
        self.send("diagnosis", exercise=exercise, wrong=wrong.id)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session):
        ended = yield
        for name in canaries.CANARIES:
            canary = CanaryItem.from_parent(session, name=name, nodeid=f"canary::{name}")
            session.config.hook.pytest_runtest_protocol(item=canary, nextitem=None)
        return ended


def main():
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(job["pipe"], False)
    limit_resources()
    recorder = Recorder(job["pipe"], job["key"])
    code = pytest.main(job["arguments"], plugins=[recorder])
    recorder.send("exit", code=int(code))
    recorder.pipe.flush()
    # A thread that the learner's code left running must not keep the process.
    sys.stdout.flush()
    os._exit(0)


def limit_resources():
    """Contain memory bombs and floods of output; where a limit is refused, go on without it."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_SIZE}
    if sys.platform == "linux":
        with open("/proc/self/status") as status:
            held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
        limits[resource.RLIMIT_DATA] = held + MEMORY
    for which, value in limits.items():
        try:
            resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
        except (ValueError, OSError):
            continue


if __name__ == "__main__":
    main()
