"""The process that runs one chapter's tests: `python -m grader.child`, started by the runner.

It reads its job from stdin, shuts stdin, limits itself, runs pytest without a terminal, and writes
one JSON record a line to the pipe that the job names. Every record carries the job's key, which
the learner's code is not given. The parent decides what the records mean.
"""

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from grader import canaries, items, messages, plugin, sandbox


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
        self.process = os.getpid()

    def send(self, event: str, **record):
        if os.getpid() != self.process:
            os._exit(1)  # a fork that the learner's code made must not run on as a second pytest
        self.pipe.write(json.dumps({"key": self.key, "event": event, **record}) + "\n")
        self.pipe.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item, settings):
        if items.is_judged(item):
            self.send("start", test=asdict(items.new_result(item)), limit=settings.timeout)

    def pytest_collection_finish(self):
        # Collecting runs no learner code; from here on it may run.
        sandbox.limit_resources()
        writable = [tempfile.gettempdir(), plugin.hypothesis_home(), "/dev/null", "/dev/shm"]
        sandbox.write_only_below(*map(str, writable))

    def pytest_collectreport(self, report):
        if report.failed:
            self.send("cannot collect", message=str(report.longrepr))

    def pytest_runtest_logreport(self, report):
        result = getattr(report, "kit", None)
        if result is not None:
            self.send("report", phase=report.when, test=asdict(result))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if isinstance(item, CanaryItem) and call.when == "call":
            said = messages.describe(call.excinfo.value, Path())[0] if call.excinfo else "passed"
            self.send("canary", name=item.name, failed=report.failed and said == "wrong")
        return report

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
    run(json.load(sys.stdin))


def run(order: dict):
    """Run an order's tests and end this process."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(order["pipe"], False)
    sandbox.live_and_die_with_the_parent()
    sandbox.forbid_forks_of_forks()
    recorder = Recorder(order["pipe"], order["key"])
    code = pytest.main(order["arguments"], plugins=[recorder])
    recorder.send("exit", code=int(code))
    recorder.pipe.flush()
    # No thread and no process that the learner's code left behind may hold anything up.
    for left in psutil.Process().children(recursive=True):
        left.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
