"""How a process that runs a job is started: cold from nothing, or warm by a fork.

Either way the process leads a group of its own, has an empty stdin, prints into one pipe and sends
its records into another.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from grader.chapters import ROOT

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
START_LIMIT = 60  # seconds for a warm process to load its libraries


@dataclass
class Process:
    """A running job. `output` and `records` are the pipes' read ends; the caller closes them."""

    pid: int
    output: int
    records: int
    wait: Callable[[float | None], int | None]  # seconds; exit code, negative for a signal


class Starter(Protocol):
    def __call__(self, order: dict, scratch: str) -> Process: ...


def child_environment() -> dict[str, str]:
    """One thread, no plugins but those named, no options of the user's own shell."""
    dropped = ("PYTEST_", "PYTHONWARNINGS", "PYTHONOPTIMIZE")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    environment |= dict.fromkeys(THREADS, "1")
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    return environment | {"PYTHONBREAKPOINT": "0"}  # nobody could answer a debugger there


def cold(order: dict, scratch: str) -> Process:
    """Start `python -m grader.child`; how the reference behaviour is defined."""
    records, records_end = os.pipe()
    output, output_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "grader.child"],
        cwd=ROOT,
        env=child_environment() | {"TMPDIR": scratch},
        stdin=subprocess.PIPE,
        stdout=output_end,
        stderr=output_end,
        pass_fds=[records_end],
        start_new_session=True,
    )
    os.close(records_end)
    os.close(output_end)
    with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code will say how
        process.stdin.write(json.dumps(order | {"pipe": records_end}).encode())
        process.stdin.close()

    def wait(seconds: float | None) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Process(process.pid, output, records, wait)


class Warm:
    """Starts each job by a fork of a process that has torch, pytest and NumPy loaded.

    That process (`python -m grader.warm`) runs nothing itself, so it has one thread and forks
    safely. Linux only.
    """

    def __init__(self, library: str):
        self.library = library
        self.server: subprocess.Popen | None = None
        self.control: socket.socket | None = None

    def __call__(self, order: dict, scratch: str) -> Process:
        if self.server is None or self.server.poll() is not None:
            self._start_server()
        records, records_end = os.pipe()
        output, output_end = os.pipe()
        message = json.dumps(order | {"scratch": scratch}).encode()
        socket.send_fds(self.control, [message], [records_end, output_end])
        os.close(records_end)
        os.close(output_end)
        pid = self._receive(START_LIMIT)["pid"]
        code: int | None = None

        def wait(seconds: float | None) -> int | None:
            nonlocal code
            if code is None:
                with contextlib.suppress(TimeoutError):
                    code = self._receive(seconds)["code"]
            return code

        return Process(pid, output, records, wait)

    def close(self):
        if self.server is not None:
            self.control.close()
            self.server.wait()
            self.server = None

    def _start_server(self):
        self.control, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "grader.warm", str(far_end.fileno()), self.library],
                cwd=ROOT,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[far_end.fileno()],
                start_new_session=True,
            )

    def _receive(self, seconds: float | None) -> dict:
        self.control.settimeout(seconds)
        return json.loads(self.control.recv(4096))
