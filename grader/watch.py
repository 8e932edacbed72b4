"""`make watch`: the tests again at every save, quickly, whatever the file does."""

import sys
from pathlib import Path

from grader import install, screen, standing, verdict
from grader.chapters import ROOT, Chapter
from grader.processes import Starter, Warm, cold

SETTLE = 50  # milliseconds in which an editor's several writes count as one save


def run(chapter: Chapter, folder: Path, exercise: str | None) -> int:
    """Judge, show, wait for a save; until Ctrl-C."""
    from watchfiles import watch

    if exercise:
        chapter.exercise(exercise)
    if chapter.library == "torch":
        install.ensure_torch()
    start: Starter = Warm(chapter.library) if sys.platform == "linux" else cold
    console = screen.console()
    watched = [folder, ROOT / "solutions", ROOT / "tests"]
    changes = watch(*watched, step=SETTLE, debounce=10 * SETTLE)
    try:
        show(console, chapter, standing.judged(chapter, folder, exercise, start))
        for changed in changes:
            if any(path.endswith((".py", ".toml")) for _, path in changed):
                show(console, chapter, standing.judged(chapter, folder, exercise, start))
    except KeyboardInterrupt:
        pass
    finally:
        if isinstance(start, Warm):
            start.close()
    return 0


def show(console, chapter: Chapter, result: verdict.ChapterResult):
    console.clear()
    console.print(screen.details(result))
    console.print()
    console.print(f"Next: {screen.next_step(result)[0]}")
    console.print("      Runs again when you save; Ctrl-C ends.", style="dim")
