"""The command line.

Exit codes: 0 done, or the report was made; 1 not all pass; 2 wrong usage; 3 the environment.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

from grader import EnvironmentProblem, UsageError, install, stubs, verdict
from grader.chapters import ROOT, Chapter, all_chapters, find_chapter
from grader.runner import Job, run

JSON_SCHEMA = 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader", description=__doc__.splitlines()[0])
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

    stub = verbs.add_parser("stubs", help="write exercises/ from solutions/")
    stub.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if any differs"
    )
    check = verbs.add_parser("check", help="prove tests, catalogues, documents and lint rules")
    check.add_argument("chapter", nargs="?", help="only the proofs of this chapter")

    options = parser.parse_args(arguments)
    try:
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
    except KeyboardInterrupt:
        print("\ngrader: stopped", file=sys.stderr)
        return 130


def command_test(options) -> int:
    folder = folder_of(options.impl)
    chosen = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    if options.exercise:
        chosen[0].exercise(options.exercise)
    results = []
    for chapter in chosen:
        results.append(result_of(chapter, folder, options.exercise))
        from grader import screen  # rich loads while nothing waits for it

        screen.console().print(screen.details(results[-1]))
        print()
    print(screen.next_action(results, shown_impl(options)))
    if any(result.status == "environment" for result in results):
        return 3
    return 0 if all(finished(result) for result in results) else 1


def command_grade(options) -> int:
    began = time.monotonic()
    folder = folder_of(options.impl)
    chosen = [find_chapter(options.chapter)] if options.chapter else all_chapters()
    results = [result_of(chapter, folder) for chapter in chosen]
    if options.json:
        report = {
            "schema": JSON_SCHEMA,
            "impl": options.impl,
            "seconds": round(time.monotonic() - began, 3),
            "versions": versions(),
            "chapters": [result.as_json() for result in results],
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        from grader import screen

        if options.chapter:
            screen.console().print(f"Chapter {chosen[0].number}: {chosen[0].title}\n", style="bold")
        table = screen.exercises(results[0]) if options.chapter else screen.chapters(results)
        screen.console().print(table)
        print()
        print(screen.next_action(results, shown_impl(options)))
    if any(result.status == "environment" for result in results):
        return 3
    return 1 if options.strict and not all(finished(result) for result in results) else 0


def command_stubs(options) -> int:
    if options.check:
        differing = [c for c in all_chapters() if not stubs.is_current(c)]
        for chapter in differing:
            print(f"{verdict.short(chapter.stub)} is not the stub of its solution; run make stubs")
        return 1 if differing else 0
    for line in stubs.write_all():
        print(line)
    return 0


def command_check(options) -> int:
    from grader import check

    if any(chapter.library == "torch" for chapter in all_chapters()):
        install.ensure_torch()
    return check.run(find_chapter(options.chapter) if options.chapter else None)


VERBS = {
    "test": command_test,
    "grade": command_grade,
    "stubs": command_stubs,
    "check": command_check,
}


def folder_of(impl: str) -> Path:
    folder = (ROOT / impl) if (ROOT / impl).is_dir() else Path(impl).resolve()
    if not folder.is_dir():
        raise UsageError(f"impl={impl}: there is no such folder")
    if not any((folder / chapter.file).is_file() for chapter in all_chapters()):
        raise UsageError(f"impl={impl}: holds no chapter's file, such as {all_chapters()[0].file}")
    return folder


def result_of(chapter: Chapter, folder: Path, only: str | None = None) -> verdict.ChapterResult:
    """A file that is its stub, or is not there, needs no run."""
    file = folder / chapter.file
    if not file.is_file():
        result = verdict.untouched(chapter, folder, only)
        result.notes.append(f"{verdict.short(file)} does not exist")
        return result
    if file.read_bytes() == stubs.stub_of(chapter).encode("utf-8"):
        return verdict.untouched(chapter, folder, only)
    if chapter.library == "torch":
        install.ensure_torch()
    return run(Job(chapter, folder, only))


def finished(result: verdict.ChapterResult) -> bool:
    return result.status == "done"


def shown_impl(options) -> str:
    return "" if options.impl == "exercises" else options.impl


def versions() -> dict[str, str]:
    from importlib import metadata  # slow to import

    found = {"python": platform.python_version()}
    for package in ("numpy", "torch", "pytest", "hypothesis"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
