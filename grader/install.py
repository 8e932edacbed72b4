"""Installs PyTorch when a chapter first needs it.

Plain pip brings a CUDA build of several GB on Linux, so PyTorch's own index of CPU builds comes
first; where it cannot be reached, pip's ordinary index.
"""

import importlib.util
import os
import subprocess
import sys

from grader import EnvironmentProblem
from grader.chapters import ROOT

REACH_LIMIT = 5  # seconds to find out whether an index answers


def ensure_torch():
    """Return when torch can be imported; install it into the kit's own .venv if need be.

    Raises:
        EnvironmentProblem: torch is missing from an interpreter of the user's own, or pip failed.
    """
    if importlib.util.find_spec("torch"):
        return
    if os.path.realpath(sys.prefix) != os.path.realpath(ROOT / ".venv"):
        raise EnvironmentProblem(
            f"this chapter needs PyTorch, which {sys.executable} does not have: "
            f"{sys.executable} -m pip install -r requirements-torch.txt"
        )
    index = os.environ.get("TORCH_INDEX", "")
    if index and not _answers(index):
        print("PyTorch's CPU index does not answer; pip's ordinary index it is.", file=sys.stderr)
        index = ""
    size = "about 200 MB" if index or sys.platform != "linux" else "up to several GB with CUDA"
    print(f"This chapter needs PyTorch: installing it once, {size} ...", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["-r", str(ROOT / "requirements-torch.txt")]
    command += ["--index-url", index] if index else []
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise EnvironmentProblem("pip could not install PyTorch; the lines above say why")
    importlib.invalidate_caches()


def _answers(index: str) -> bool:
    import urllib.request  # slow to import, and hardly ever needed

    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=REACH_LIMIT).close()
    except (OSError, ValueError):
        return False
    return True
