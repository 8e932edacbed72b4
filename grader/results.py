"""Results kept under .practice/, each under a hash of all that it depends on."""

import ast
import contextlib
import hashlib
import json
import platform
from dataclasses import asdict
from pathlib import Path

from grader import verdict
from grader.chapters import ROOT, Chapter

FOLDER = ROOT / ".practice" / "results"
PACKAGES = ("numpy", "torch", "pytest", "pytest-timeout", "hypothesis")


def load(chapter: Chapter, folder: Path) -> verdict.ChapterResult | None:
    """What this file scored when nothing it depends on was different."""
    try:
        kept = json.loads(_place(chapter, folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if kept.get("key") != key(chapter, folder):
        return None
    results = [verdict.from_record(record) for record in kept["tests"]]
    return verdict.judge(chapter, folder, {result.id: result for result in results})


def save(result: verdict.ChapterResult):
    """Keep a result, unless chance had a part in it: a hang may be a busy machine's."""
    if result.problem or result.status == "broken":
        return
    place = _place(result.chapter, result.file.parent)
    kept = {"key": key(result.chapter, result.file.parent)}
    kept["tests"] = [asdict(test) for test in result.tests]
    with contextlib.suppress(OSError):  # on a read-only disk nothing is remembered
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(kept), encoding="utf-8")


def key(chapter: Chapter, folder: Path) -> str:
    """A hash of the file, what judges it, what either imports, and the versions in use."""
    digest = hashlib.sha256()
    own = [folder / chapter.file, chapter.tests, chapter.solution]
    judges = sorted(ROOT.glob("grader/*.py"))
    for path in [*own, chapter.catalogue, *judges, *imported_solutions(own)]:
        digest.update(path.read_bytes() if path.is_file() else b"missing")
    digest.update(json.dumps(versions()).encode())
    return digest.hexdigest()


def imported_solutions(paths: list[Path]) -> list[Path]:
    """The files of solutions/ that these import, directly or through one another."""
    found: set[Path] = set()
    todo = list(paths)
    while todo:
        for path in _imports(todo.pop()) - found:
            found.add(path)
            todo.append(path)
    return sorted(found)


def _imports(path: Path) -> set[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    files = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names}
    return {file for file in files if file.is_relative_to(ROOT / "solutions") and file.is_file()}


def versions() -> dict[str, str]:
    """Of Python and of each package that is installed; imports none of them."""
    from importlib import metadata  # slow to import

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _place(chapter: Chapter, folder: Path) -> Path:
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return FOLDER / f"{chapter.stem}-{name}.json"
