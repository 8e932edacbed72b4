"""The command line.

Exit codes: 0 done, or the report was made; 1 not all pass; 2 wrong usage; 3 the environment.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from grader import (
    EnvironmentProblem,
    UsageError,
    install,
    lesson,
    practice,
    results,
    standing,
    stubs,
    verdict,
)
from grader.chapters import ROOT, Chapter, Exercise, all_chapters, find_chapter

JSON_SCHEMA = 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader", description="The kit's command line.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    test = verbs.add_parser("test", help="run a chapter's tests and show what fails")
    test.add_argument("chapter", nargs="?", help="11 or ch11_causal_classifier; all when left out")
    test.add_argument("exercise", nargs="?", help="only this exercise, such as mean_pool")

    grade = verbs.add_parser("grade", help="show where you stand")
    grade.add_argument("chapter", nargs="?", help="a line per exercise of this chapter")
    grade.add_argument("--json", action="store_true", help="print the report as JSON")
    grade.add_argument("--strict", action="store_true", help="exit with 1 unless all is done")
    for verb in (test, grade):
        verb.add_argument("--impl", default="exercises", help="the folder to judge (exercises)")

    watch = verbs.add_parser("watch", help="run a chapter's tests again at every save")
    watch.add_argument("chapter", nargs="?")
    watch.add_argument("exercise", nargs="?")
    watch.add_argument("--impl", default="exercises")

    hint = verbs.add_parser("hint", help="the next hint for the exercise you are at")
    hint.add_argument("chapter", nargs="?")
    hint.add_argument("exercise", nargs="?")

    reset = verbs.add_parser("reset", help="put a stub back, after keeping a copy of your work")
    reset.add_argument("chapter", nargs="?")
    reset.add_argument("exercise", nargs="?")

    diff = verbs.add_parser("diff", help="your exercise against the reference's")
    diff.add_argument("chapter", nargs="?")
    diff.add_argument("exercise", nargs="?")
    diff.add_argument("--impl", default="exercises")
    diff.add_argument("--reveal", action="store_true", help="also before your exercise passes")

    read = verbs.add_parser("read", help="the walkthrough in the terminal, answers folded")
    read.add_argument("chapter", nargs="?")
    read.add_argument("--unfold", action="store_true", help="with all answers")

    stub = verbs.add_parser("stubs", help="write exercises/ from solutions/")
    stub.add_argument("chapter", nargs="?", help="only this chapter's")
    stub.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if any differs"
    )
    bench = verbs.add_parser("bench", help="how quick the kit is on this machine")
    bench.add_argument("chapter", nargs="?", help="only this chapter's ratios")

    check = verbs.add_parser("check", help="prove tests, catalogues, documents and lint rules")
    check.add_argument("chapter", nargs="?", help="only the proofs of this chapter")

    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no child is left behind
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        if getattr(options, "exercise", None) and not options.chapter:
            raise UsageError(f"say which chapter: make {options.verb} chapter=11 exercise=...")
        return VERBS[options.verb](options)
    except UsageError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 2
    except EnvironmentProblem as problem:
        print(f"grader: {problem}", file=sys.stderr)
        return 3
    except ModuleNotFoundError as error:
        print(
            f"grader: {error.name} is not installed for {sys.executable}; "
            f"try {sys.executable} -m pip install -r requirements.txt",
            file=sys.stderr,
        )
        return 3
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does; nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("\ngrader: stopped", file=sys.stderr)
        return 130


def command_test(options) -> int:
    folder = folder_of(options.impl)
    chosen = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    if options.exercise:
        chosen[0].exercise(options.exercise)
    found = []
    for chapter in chosen:
        found.append(standing.judged(chapter, folder, options.exercise))
        from grader import screen  # rich loads while nothing waits for it

        screen.console().print(screen.details(found[-1]))
        print()
    print(screen.next_action(found, shown_impl(options)))
    return exit_code(found, strict=True)


def command_grade(options) -> int:
    began = time.monotonic()
    folder = folder_of(options.impl)
    chosen = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    found = standing.graded(chosen, folder)
    if options.json:
        report = {
            "schema": JSON_SCHEMA,
            "impl": options.impl,
            "seconds": round(time.monotonic() - began, 3),
            "versions": results.versions(),
            "chapters": [result.as_json() for result in found],
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return exit_code(found, options.strict)
    from grader import screen

    if options.chapter:
        print(f"Chapter {chosen[0].number}: {chosen[0].title}\n")
    table = screen.exercises(found[0]) if options.chapter else screen.chapters(found)
    screen.console().print(table)
    for problem in screen.problems(found):
        print(problem)
    print()
    print(screen.next_action(found, shown_impl(options)))
    return exit_code(found, options.strict)


def exit_code(found: list[verdict.ChapterResult], strict: bool) -> int:
    if any(result.status == "environment" for result in found):
        return 3
    return 1 if strict and not all(result.status == "done" for result in found) else 0


def command_watch(options) -> int:
    from grader import watch

    return watch.run(named_chapter(options), folder_of(options.impl), options.exercise)


def command_hint(options) -> int:
    chapter, exercise = chosen_exercise(options)
    number, of, text = practice.next_hint(chapter, exercise)
    from grader import screen

    print(f"{exercise.name}, chapter {chapter.number}: hint {number} of {of}\n")
    screen.console().print(screen.markdown(text))
    where = f"chapter={chapter.number} exercise={exercise.name}"
    more = f"make hint {where}" if number < of else f"make diff {where} reveal=1"
    print(f"\nNext: make test {where}\n      still stuck? {more}")
    return 0


def command_reset(options) -> int:
    chapter = named_chapter(options)
    exercise = chapter.exercise(options.exercise) if options.exercise else None
    file, copy = practice.reset(chapter, exercise)
    what = exercise.name if exercise else "the chapter"
    kept = f"; what stood there is in {verdict.short(copy)}" if copy else ""
    print(f"{verdict.short(file)}: {what} is a stub again{kept}")
    return 0


def command_diff(options) -> int:
    chapter, exercise = chosen_exercise(options)
    folder = folder_of(options.impl)
    row = standing.judged(chapter, folder, exercise.name).exercises[0]
    if row.status != "done" and not options.reveal:
        print(f"{exercise.name} is {row.status}; the difference would show the answer.")
        print(f"Next: make diff chapter={chapter.number} exercise={exercise.name} reveal=1")
        return 1
    from grader import screen

    screen.console().print(screen.difference(practice.difference(chapter, exercise, folder)))
    return 0


def command_read(options) -> int:
    chapter = named_chapter(options)
    text = chapter.walkthrough.read_text(encoding="utf-8")
    from grader import screen

    shown = lesson.for_terminal(text, options.unfold)
    console = screen.console()
    if sys.stdout.isatty():
        with console.pager(styles=True):
            console.print(screen.markdown(shown))
    else:
        console.print(screen.markdown(shown))
    return 0


def command_bench(options) -> int:
    from grader import bench

    return bench.run(find_chapter(options.chapter) if options.chapter else None)


def named_chapter(options) -> Chapter:
    if not options.chapter:
        raise UsageError(f"say which chapter: make {options.verb} chapter=11")
    return find_chapter(options.chapter)


def chosen_exercise(options) -> tuple[Chapter, Exercise]:
    """The exercise that is named, or the first that is not done."""
    if options.exercise:
        chapter = find_chapter(options.chapter)
        return chapter, chapter.exercise(options.exercise)
    chapters = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    found = practice.first_unfinished(chapters, folder_of("exercises"))
    if found is None:
        raise UsageError("every exercise is done; name one with chapter= and exercise=")
    return found


def command_stubs(options) -> int:
    chosen = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    if options.check:
        differing = [chapter for chapter in chosen if not stubs.is_current(chapter)]
        for chapter in differing:
            print(f"{verdict.short(chapter.stub)} is not the stub of its solution; run make stubs")
        return 1 if differing else 0
    for chapter in chosen:
        print(f"{verdict.short(chapter.stub)}: {stubs.write(chapter)}")
    return 0


def command_check(options) -> int:
    from grader import check

    chapter = find_chapter(options.chapter) if options.chapter else None
    if any(c.library == "torch" for c in ([chapter] if chapter else all_chapters())):
        install.ensure_torch()
    return check.run(chapter)


VERBS = {
    "test": command_test,
    "grade": command_grade,
    "watch": command_watch,
    "hint": command_hint,
    "reset": command_reset,
    "diff": command_diff,
    "read": command_read,
    "stubs": command_stubs,
    "bench": command_bench,
    "check": command_check,
}


def folder_of(impl: str) -> Path:
    folder = Path(impl).resolve() if Path(impl).is_dir() else ROOT / impl
    if not folder.is_dir():
        raise UsageError(f"impl={impl}: there is no such folder")
    if not any((folder / chapter.file).is_file() for chapter in all_chapters()):
        raise UsageError(f"impl={impl}: holds no chapter's file, such as {all_chapters()[0].file}")
    return folder


def shown_impl(options) -> str:
    return "" if options.impl == "exercises" else options.impl
