"""A process with its libraries loaded, which forks a child for each job: see processes.Warm."""

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from grader import child, sandbox


def preload(library: str):
    """Import what a chapter's tests will import; nothing here runs an operation or a thread."""
    import hypothesis.strategies  # noqa: F401
    import numpy.testing  # noqa: F401
    import pytest_timeout  # noqa: F401

    if library == "torch":
        import torch._dynamo  # any optimizer imports it, and it takes longer than torch itself
        import torch.optim
        import torch.testing
        import torch.utils.data  # noqa: F401


def serve(control: socket.socket):
    """Fork a child for each order until the other side closes."""
    while True:
        message, pipes, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            run(json.loads(message), *pipes)
        for pipe in pipes:
            os.close(pipe)
        control.send(json.dumps({"pid": pid}).encode())
        _, status = os.waitpid(pid, 0)
        control.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def run(order: dict, records: int, output: int):
    """In the fork: become what a cold child is from the start, and run the job."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ["TMPDIR"] = order["scratch"]
    tempfile.tempdir = None
    child.run(order | {"pipe": records})


def main():
    control = socket.socket(fileno=int(sys.argv[1]))
    sandbox.live_and_die_with_the_parent()
    preload(sys.argv[2])
    threads = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Threads:")
    )
    if threads != "1":
        raise RuntimeError(f"a process with {threads} threads must not fork")
    serve(control)


if __name__ == "__main__":
    main()
