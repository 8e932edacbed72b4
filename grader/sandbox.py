"""What a process that runs a learner's code may use: memory, file sizes, and where it may write.

Each limit is tried on its own; where the system refuses one, the others hold. The parent's clock
holds everywhere.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

MEMORY = 4 * 2**30  # bytes above what the process holds when the limit is set
FILE_SIZE = 64 * 2**20

# Landlock (Linux 5.13): system calls and rights, from include/uapi/linux/landlock.h
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
NO_NEW_PRIVILEGES, PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 38, 1, 36  # for prctl
WRITE_FILE = 1 << 1
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
TRUNCATE = 1 << 14  # since the third version


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def limit_resources():
    """Contain memory bombs and floods of output."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_SIZE}
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        held = next(line.split()[1] for line in status.splitlines() if line.startswith("VmData"))
        limits[resource.RLIMIT_DATA] = int(held) * 1024 + MEMORY
    for which, value in limits.items():
        try:
            resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
        except (ValueError, OSError):
            continue


def live_and_die_with_the_parent():
    """End with the process that started this one, and inherit the orphans below it. Linux only."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)


def forbid_forks_of_forks():
    """Keep code that forks inside a test, and goes on with it, from doubling without end."""
    if hasattr(os, "register_at_fork"):
        first = os.getpid()
        os.register_at_fork(after_in_child=lambda: None if os.getppid() == first else os._exit(1))


def write_only_below(*folders: str):
    """Refuse this process and its children every change to files but these and those below them.

    Linux only; elsewhere, and on kernels without Landlock, nothing happens.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    rights = WRITE_FILE | REMOVE_AND_MAKE | (TRUNCATE if version >= 3 else 0)
    handled = ctypes.c_uint64(rights)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return
    for folder in filter(os.path.exists, folders):
        parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        of_a_file = rights & (WRITE_FILE | TRUNCATE)
        rule = _PathBeneath(rights if os.path.isdir(folder) else of_a_file, parent)
        libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(parent)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
