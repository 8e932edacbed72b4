"""A learner's file as a module, and the exercises that stand in it for one test."""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from grader import forbidden, source
from grader.chapters import Chapter

MISSING = object()


class CannotLoad(Exception):
    """The file does not become a module; the message is for the learner."""


@dataclass
class Submission:
    """The learner's module with all it needs to swap exercises in and out."""

    chapter: Chapter
    module: ModuleType
    reference: ModuleType

    def __post_init__(self):
        self.own = {e.name: _get(self.module, e.name) for e in self.chapter.exercises}

    def judge_only(self, exercises: tuple[str, ...]):
        """Put the reference's answer in the place of every exercise not named."""
        for name, own in self.own.items():
            _put(self.module, name, own if name in exercises else _get(self.reference, name))


def read(chapter: Chapter, folder: Path) -> ModuleType:
    """Load `folder`'s file of this chapter.

    Raises:
        CannotLoad: the file imports its own solution. Whatever the file itself raises passes on.
    """
    path = folder / chapter.file
    code = path.read_bytes()
    for line in source.imports_of_own_solution(code, chapter, path):
        raise CannotLoad(
            f"line {line} imports solutions.{chapter.stem}, this chapter's answer: delete the line"
        )
    return source.load(chapter.stem, code, path)


@functools.cache
def forbidden_calls(chapter: Chapter, file: Path, exercise: str) -> list[forbidden.ForbiddenCall]:
    """What the file calls against the exercise's rules; nothing for a file that does not parse."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, *source.UNREADABLE):
        return []
    others = frozenset(other.name for other in chapter.exercises) - {exercise}
    return forbidden.forbidden_calls(tree, exercise, chapter.exercise(exercise).forbids, others)


def reference(chapter: Chapter) -> ModuleType:
    return source.load(f"reference_{chapter.stem}", chapter.solution.read_bytes(), chapter.solution)


def _get(module: ModuleType, name: str):
    holder, attribute = _holder(module, name)
    return vars(holder).get(attribute, MISSING) if holder is not None else MISSING


def _put(module: ModuleType, name: str, answer: object):
    holder, attribute = _holder(module, name)
    if holder is None:
        return
    if answer is not MISSING:
        setattr(holder, attribute, answer)
    elif attribute in vars(holder):
        delattr(holder, attribute)


def _holder(module: ModuleType, name: str):
    """The module, or the class in it, that holds `name`; None for a class that is not there."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        return module, attribute
    found = vars(module).get(owner)
    return (found if isinstance(found, type) else None), attribute
