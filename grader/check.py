"""`make check`: everything that must hold before a change is good."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

from grader import prove
from grader.chapters import ROOT, Chapter, all_chapters
from grader.processes import child_environment

PYTEST = ["pytest", "-q", "--no-header", "-p", "pytest_timeout"]
FAULTS, DOCUMENTS = "tests/kit/test_faults.py", "tests/kit/test_documents.py"
COMMANDS = {
    "lint": ["ruff", "check", "--quiet", "."],
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "the grader's faults": [*PYTEST, FAULTS],
    "documents and figures": [*PYTEST, DOCUMENTS],
    "the kit's other tests": [*PYTEST, "tests/kit", f"--ignore={FAULTS}", f"--ignore={DOCUMENTS}"],
}


def run(chapter: Chapter | None = None) -> int:
    """Run every step, or one chapter's, on all cores; print a line for each and what is wrong."""
    chapters = [chapter] if chapter else all_chapters()
    steps = [(name, partial(_command, command)) for name, command in COMMANDS.items()]
    steps = [] if chapter else steps
    steps += [(f"proofs of {chapter.stem}", partial(prove.prove, chapter)) for chapter in chapters]
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(_timed, step): name for name, step in steps}
        for done in as_completed(running):
            faults, seconds = done.result()
            failed += bool(faults)
            print(f"{'FAILED' if faults else 'ok':8}{running[done]} ({seconds:.1f} s)", flush=True)
            for fault in faults:
                print("        " + fault.replace("\n", "\n        "))
    print(f"{len(steps) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _timed(step) -> tuple[list[str], float]:
    began = time.monotonic()
    return step(), time.monotonic() - began


def _command(command: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
    )
    return [(done.stdout + done.stderr).strip()] if done.returncode else []
