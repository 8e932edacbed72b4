"""`make bench`: how quick the kit is, as ratios to `import torch`, all measured in one run.

Times differ from machine to machine and from hour to hour; ratios taken side by side differ less.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.table import Table

from grader import install, screen, source, standing
from grader.chapters import ROOT, Chapter, all_chapters
from grader.processes import Warm, child_environment, cold

ROUNDS = 3
NUMPY_IMPORTS = "import numpy, pytest, hypothesis.strategies, pytest_timeout"
TORCH_IMPORTS = NUMPY_IMPORTS + ", torch"


def run(only: Chapter | None = None) -> int:
    chapters = [only] if only else all_chapters()
    install.ensure_torch()
    torch = seconds(lambda: python("-c", "import torch"))
    numpy_imports = seconds(lambda: python("-c", NUMPY_IMPORTS))
    torch_imports = seconds(lambda: python("-c", TORCH_IMPORTS))
    with_optim = seconds(lambda: python("-c", TORCH_IMPORTS + ", torch._dynamo"))
    print(f"import torch takes {torch:.2f} s here; median of {ROUNDS}, machine as idle as it is.\n")

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("what", "measured", "goal", "seconds"):
        table.add_column(column, justify="left" if column == "what" else "right")

    def row(what: str, value: float, goal: float, unit: str = " x", per: float = torch):
        shown = value / per
        style = "" if shown <= goal else "yellow"
        table.add_row(what, f"{shown:.2f}{unit}", f"{goal:g}{unit}", f"{value:.2f}", style=style)

    for chapter in chapters:
        cold_seconds = seconds(lambda chapter=chapter: test(chapter))
        own = own_seconds(chapter)
        if chapter.library == "torch":
            imports = torch_imports if "optim" not in chapter.solution.read_text() else with_optim
            row(f"{chapter.number} cold, overhead", cold_seconds - imports - own, 0.3)
        else:
            row(f"{chapter.number} cold, whole", cold_seconds, 0.6)
        row(f"{chapter.number} its own tests", own, 2, " s", 1)
        if sys.platform == "linux":
            warm = save_to_verdict(chapter)
            row(f"{chapter.number} save to verdict, overhead", warm - own, 0.2, " s", 1)
            row(f"{chapter.number} save to verdict, whole, per cold", warm, 0.1, per=cold_seconds)
    row("grade, nothing changed", seconds(lambda: python("-m", "grader", "grade")), 0.2)
    row("imports of a NumPy run", numpy_imports, 0.3)
    row("one diagnosis", diagnosis_seconds(chapters[0]), 1, " s", 1)
    screen.console().print(table)
    return 0


def seconds(action: Callable[[], object]) -> float:
    """The median time of an action over several rounds, after one that is not counted."""
    action()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return median(times)


def python(*arguments: str):
    subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=child_environment(), capture_output=True
    )


def test(chapter: Chapter):
    python("-m", "grader", "test", str(chapter.number), "--impl", "solutions")


def own_seconds(chapter: Chapter) -> float:
    """The call times of a chapter's tests in sum."""
    start = Warm(chapter.library) if sys.platform == "linux" else cold
    # Warm, so that the first test to use a library does not pay for its import.
    runs = [standing.judged(chapter, chapter.solution.parent, start=start) for _ in range(ROUNDS)]
    if isinstance(start, Warm):
        start.close()
    return median(sum(test.seconds for test in result.tests) for result in runs)


def save_to_verdict(chapter: Chapter) -> float:
    """From the write of a file to the last line of `watch`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / chapter.file
        text = chapter.solution.read_text(encoding="utf-8")
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-u", "-m", "grader", "watch", str(chapter.number)]
        with subprocess.Popen(
            [*command, "--impl", folder],
            cwd=ROOT,
            env=child_environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as watch:

            def shown():
                next(line for line in watch.stdout if "Ctrl-C ends" in line)

            def save():
                file.write_text(text, encoding="utf-8")
                shown()

            shown()
            time.sleep(1)  # the watcher must be listening
            taken = seconds(save)
            watch.terminate()
    return taken


def diagnosis_seconds(chapter: Chapter) -> float:
    """What a diagnosis adds: a run with one mistake, less a run with none."""
    wrong = next(w for w in chapter.misconceptions if not w.crash)
    with tempfile.TemporaryDirectory() as folder:
        text = source.plant(chapter.solution.read_text(encoding="utf-8"), wrong, chapter.stem)
        (Path(folder) / chapter.file).write_text(text, encoding="utf-8")
        with_mistake = seconds(lambda: standing.judged(chapter, Path(folder)))
    without = seconds(lambda: standing.judged(chapter, chapter.solution.parent))
    return max(with_mistake - without, 0.0)
