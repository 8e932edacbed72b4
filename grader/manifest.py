"""The tests that must run, read from a chapter's test file without running anything.

The verdict rests on this list: a test that does not come back passed is not passed.
"""

import ast
import functools
from dataclasses import dataclass

from grader.chapters import Chapter


@dataclass(frozen=True)
class Test:
    """One test function; its marker names one exercise, or several in an integration test."""

    name: str
    line: int
    exercises: tuple[str, ...]
    cases: int  # how many times it runs, by its parametrize lists
    is_property: bool  # drawn by Hypothesis

    @property
    def integration(self) -> bool:
        return len(self.exercises) > 1


def expected_tests(chapter: Chapter) -> list[Test]:
    """The chapter's test functions in the order of the file.

    Raises:
        ValueError: a test without an exercise marker, or a parametrize list that is not written
            out in the file.
    """
    return list(_tests_in(chapter.tests.read_text(encoding="utf-8"), chapter))


@functools.cache  # several parts of one report ask
def _tests_in(text: str, chapter: Chapter) -> tuple[Test, ...]:
    tree = ast.parse(text)
    lists = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    tests = []
    for node in tree.body:
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            continue
        where = f"{chapter.tests.name}:{node.lineno}: {node.name}"
        exercises: tuple[str, ...] = ()
        cases, is_property = 1, False
        for call in node.decorator_list:
            name = ast.unparse(call.func) if isinstance(call, ast.Call) else ast.unparse(call)
            if name == "pytest.mark.exercise":
                exercises = tuple(argument.value for argument in call.args)
            is_property |= name == "given"
            if name == "pytest.mark.parametrize":
                values = call.args[1]
                if isinstance(values, ast.Name):
                    values = lists.get(values.id)
                if not isinstance(values, ast.List | ast.Tuple):
                    raise ValueError(f"{where}: write the parametrize list out in this file")
                cases *= len(values.elts)
        if not exercises:
            raise ValueError(f'{where}: needs @pytest.mark.exercise("...")')
        for exercise in exercises:
            chapter.exercise(exercise)
        tests.append(Test(node.name, node.lineno, exercises, cases, is_property))
    return tuple(tests)
