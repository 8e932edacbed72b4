"""Setting up from any state, and what is said when it cannot be done."""

import os
import shutil
import subprocess
import sys

import pytest

from grader import EnvironmentProblem, install
from grader.chapters import ROOT

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def bare(tmp_path):
    """The setup script in a folder of its own, with tools but without any Python."""
    (tmp_path / "grader").mkdir()
    shutil.copy(ROOT / "grader" / "setup.sh", tmp_path / "grader")
    (tmp_path / "requirements.txt").write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "cmp", "cp", "rm", "dirname", "mkdir"):
        (tools / tool).symlink_to(shutil.which(tool))
    return tmp_path


def setup(folder, path=None):
    return subprocess.run(
        ["sh", "grader/setup.sh", "requirements.txt"],
        cwd=folder,
        env={"PATH": str(path or folder / "tools")},
        capture_output=True,
        text=True,
    )


def interpreter(folder, body):
    """A stand-in for python3."""
    script = folder / "tools" / "python3"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_without_python_it_says_what_to_install(bare):
    done = setup(bare)
    assert done.returncode == 3
    assert "needs Python 3.11 or newer" in done.stderr
    assert "sudo apt install python3" in done.stderr


def test_an_old_python_is_no_python(bare):
    interpreter(bare, "exit 1")
    assert "needs Python 3.11 or newer" in setup(bare).stderr


def test_without_the_venv_module_it_says_what_to_install(bare):
    interpreter(bare, 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
    done = setup(bare)
    assert done.returncode == 3
    assert "sudo apt install python3-venv" in done.stderr


STATES = {
    "none": "true",
    "a half-made folder": "mkdir -p .venv/bin && echo broken > .venv/bin/python",
    "a link to a Python that is gone": "mkdir -p .venv/bin && ln -s /gone/python .venv/bin/python",
    "a file of that name": "echo > .venv",
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_it_sets_up_from_any_state(bare, state):
    subprocess.run(state, shell=True, cwd=bare, check=True)
    done = setup(bare, f"{os.path.dirname(os.path.realpath(sys.executable))}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert (bare / ".venv" / "installed-requirements.txt").exists()
    again = setup(bare)  # no Python on the path: nothing is left to do
    assert (again.returncode, again.stderr) == (0, "")


def test_a_missing_torch_elsewhere_is_told_and_not_installed(monkeypatch):
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(install.sys, "prefix", "/usr")
    with pytest.raises(EnvironmentProblem, match="-m pip install -r requirements-torch.txt"):
        install.ensure_torch()


@pytest.mark.parametrize(
    ("index", "says", "asked"),
    [("", "several GB", False), ("http://127.0.0.1:9", "does not answer", False)],
    ids=["no index", "an index that does not answer"],
)
def test_torch_falls_back_to_the_ordinary_index(monkeypatch, capsys, index, says, asked):
    commands = []
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(install.sys, "prefix", str(ROOT / ".venv"))
    monkeypatch.setenv("TORCH_INDEX", index)
    monkeypatch.setattr(
        install.subprocess,
        "run",
        lambda command, **_: commands.append(command) or subprocess.CompletedProcess(command, 0),
    )
    install.ensure_torch()
    assert says in capsys.readouterr().err
    assert ("--index-url" in commands[0]) is asked
