"""The chapters: where their files are and what their catalogues say.

A chapter has one stem, `ch11_causal_classifier`, and every path follows from it. Its catalogue,
`tests/catalogue/<stem>.toml`, lists the exercises and the wrong answers people really give.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grader import UsageError

ROOT = Path(__file__).resolve().parent.parent
PRIORITIES = ("core", "often", "deep")


@dataclass(frozen=True)
class Exercise:
    """One stub: a function, or a method as `Class.method`."""

    name: str
    minutes: int
    priority: str
    forbids: tuple[str, ...] = ()  # calls it must not make; see grader/forbidden.py
    no_property: str = ""  # why no property test can draw this exercise's inputs


@dataclass(frozen=True)
class Misconception:
    """One wrong answer, as edits of the reference's answer."""

    id: str
    exercise: str
    edits: tuple[tuple[str, str], ...]
    says: str
    source: str = ""
    crash: str = ""  # the exception, when this mistake can only crash and no assertion sees it


@dataclass(frozen=True)
class Chapter:
    stem: str

    @property
    def number(self) -> int:
        return int(self.stem[2:4])

    @property
    def file(self) -> str:
        return f"{self.stem}.py"

    @property
    def solution(self) -> Path:
        return ROOT / "solutions" / self.file

    @property
    def stub(self) -> Path:
        return ROOT / "exercises" / self.file

    @property
    def tests(self) -> Path:
        return ROOT / "tests" / f"test_{self.file}"

    @property
    def catalogue(self) -> Path:
        return ROOT / "tests" / "catalogue" / f"{self.stem}.toml"

    @property
    def walkthrough(self) -> Path:
        return ROOT / "walkthroughs" / f"{self.stem}.md"

    @cached_property
    def _entries(self) -> dict:
        return tomllib.loads(self.catalogue.read_text(encoding="utf-8"))

    @property
    def title(self) -> str:
        return self._entries["title"]

    @property
    def library(self) -> str:
        """`numpy` or `torch`: what the chapter needs installed."""
        return self._entries["library"]

    @cached_property
    def exercises(self) -> tuple[Exercise, ...]:
        return tuple(
            Exercise(**{**entry, "forbids": tuple(entry.get("forbids", ()))})
            for entry in self._entries["exercise"]
        )

    @cached_property
    def misconceptions(self) -> tuple[Misconception, ...]:
        return tuple(
            Misconception(**{**entry, "edits": tuple(map(tuple, entry["edits"]))})
            for entry in self._entries.get("misconception", [])
        )

    def exercise(self, name: str) -> Exercise:
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        names = ", ".join(exercise.name for exercise in self.exercises)
        raise UsageError(f"chapter {self.number} has no exercise {name!r}; it has {names}")


def all_chapters() -> list[Chapter]:
    return [Chapter(path.stem) for path in sorted((ROOT / "tests" / "catalogue").glob("ch*.toml"))]


def find_chapter(text: str) -> Chapter:
    """The chapter meant by `11`, `011`, `ch11` or `ch11_causal_classifier`."""
    match = re.fullmatch(r"(?:ch)?0*(\d{1,4})(?:_\w+)?", text)
    for chapter in all_chapters():
        if text == chapter.stem or (match and "_" not in text and int(match[1]) == chapter.number):
            return chapter
        if text in [exercise.name for exercise in chapter.exercises]:
            raise UsageError(
                f"{text} is an exercise of chapter {chapter.number}: "
                f"make test chapter={chapter.number} exercise={text}"
            )
    listing = "; ".join(f"{chapter.number} {chapter.title}" for chapter in all_chapters())
    raise UsageError(f"there is no chapter {text!r}; there are: {listing}")
