import ast

import pytest

from grader import forbidden, source
from grader.chapters import Misconception, all_chapters
from submissions import CHAPTER, SOLUTION, STUB

MARKED = '''def f(x):
    """Doc."""
    given = 1
    # --- solution ---
    return '''


def cut(text):
    return source.cut(text, CHAPTER)


def test_everything_below_the_marker_is_cut_and_nothing_else():
    text = MARKED + '(\n        x +\n  1)\n    # a trailing comment\n\n\ndef g():\n    "kept"\n'
    assert cut(text) == (
        'def f(x):\n    """Doc."""\n    given = 1\n'
        '    raise NotImplementedError("ch11 f")\n\n\ndef g():\n    "kept"\n'
    )


def test_a_string_that_leaves_the_indentation_is_cut_whole():
    text = MARKED + '"""\nsecret\n"""\n\n\nkept = 1\n'
    assert "secret" not in cut(text)
    assert "kept = 1" in cut(text)


def test_methods_are_cut_with_their_class_in_the_name():
    text = "class A:\n    def f(self):\n        # --- solution ---\n        return 1\n\n    x = 2\n"
    assert 'raise NotImplementedError("ch11 A.f")\n\n    x = 2\n' in cut(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n", "ch11.py:1: no '# --- solution ---' in the file"),
        ("x = 1\n# --- solution ---\n", "ch11.py:2: .* stands outside a function"),
        (MARKED + "1\n    # --- solution ---\n", "ch11.py:6: a second .* in f"),
    ],
    ids=["no marker", "outside", "two"],
)
def test_wrong_markers_are_refused_with_their_line(text, says):
    with pytest.raises(ValueError, match=says):
        source.answers(text, "ch11.py")


def test_the_stub_of_every_exercise_ends_at_its_raise():
    functions = dict(source.functions(ast.parse(STUB)))
    for exercise in CHAPTER.exercises:
        last = functions[exercise.name].body[-1]
        assert ast.unparse(last) == f"raise NotImplementedError('ch11 {exercise.name}')"
    assert source.begun(STUB, CHAPTER) == set()
    assert source.begun(SOLUTION, CHAPTER) == {exercise.name for exercise in CHAPTER.exercises}


def test_an_old_stub_is_untouched_and_a_begun_one_is_not():
    older = STUB.replace("Average each row's hidden states", "Average hidden states")
    assert older != STUB
    assert source.is_untouched(older, STUB, CHAPTER)
    begun = STUB.replace("    raise NotImplem", "    half = 1\n    raise NotImplem", 1)
    assert not source.is_untouched(begun, STUB, CHAPTER)
    assert not source.is_untouched(STUB + "\n\ndef helper():\n    return 1\n", STUB, CHAPTER)
    assert not source.is_untouched(SOLUTION, STUB, CHAPTER)


def plant(*edits, exercise="f"):
    wrong = Misconception("wrong", exercise, edits, "")
    return source.plant("y = x\n" + MARKED + "x + 1  # x\n\nz = x\n", wrong, "ch11.py")


def test_an_edit_changes_the_answer_only():
    assert plant(("x + 1", "x - 1")) == "y = x\n" + MARKED + "x - 1  # x\n\nz = x\n"


@pytest.mark.parametrize(
    ("edits", "exercise", "says"),
    [
        ([("x", "y")], "f", "must stand exactly once in f, stands 2 times"),
        ([("given", "y")], "f", "stands 0 times"),
        ([("x + 1", "y"), ("+ 1", "- 1")], "f", "two edits overlap"),
        ([("x + 1", "y")], "g", "no exercise 'g'"),
    ],
    ids=["twice", "outside the answer", "overlap", "no exercise"],
)
def test_edits_that_do_not_fit_are_refused(edits, exercise, says):
    with pytest.raises(ValueError, match=says):
        plant(*edits, exercise=exercise)


RULES = (
    "torch.softmax",
    "torch.nn.functional.softmax",
    "torch.Tensor.softmax",
    "torch.nn.TransformerEncoder*",
)
FORBIDDEN = {
    "module alias": ("import torch.nn.functional as F\ndef f(x): return F.softmax(x)", "F.softmax"),
    "whole path": (
        "import torch\ndef f(x): return torch.nn.functional.softmax(x)",
        "torch.nn.functional.softmax",
    ),
    "imported name": ("from torch import softmax as s\ndef f(x): return s(x)", "s"),
    "assigned name": ("import torch\ns = torch.softmax\ndef f(x): return s(x)", "s"),
    "method": ("def f(x): return (x @ x).softmax(-1)", "(x @ x).softmax"),
    "own helper": ("def h(x): return x.softmax(-1)\ndef f(x): return h(x)", "x.softmax"),
    "star": (
        "from torch import nn\ndef f(x): return nn.TransformerEncoderLayer(x)",
        "nn.TransformerEncoderLayer",
    ),
    "inside a chain": ("def f(x): return x.softmax(-1).sum()", "x.softmax"),
}
ALLOWED = {
    "own function": "import torch\ndef softmax(x): return x\ndef f(x): return softmax(x)",
    "another function": "import torch\ndef g(x): return torch.softmax(x)\ndef f(x): return x",
    "another name": "import torch\ndef f(x): return torch.logsumexp(x)",
    "a word in a string": "def f(x): return 'torch.softmax'",
}


@pytest.mark.parametrize(("code", "written"), FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_forbidden_calls_are_found_as_they_are_written(code, written):
    found = forbidden.forbidden_calls(ast.parse(code), "f", RULES)
    assert [call.written for call in found] == [written]


@pytest.mark.parametrize("code", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_no_library_call_is_allowed(code):
    assert forbidden.forbidden_calls(ast.parse(code), "f", RULES) == []


def test_forbidden_calls_in_a_method_reach_its_helpers():
    code = (
        "class A:\n    def h(self, x): return x.softmax(-1)\n    def f(self, x): return self.h(x)\n"
    )
    found = forbidden.forbidden_calls(ast.parse(code), "A.f", RULES)
    assert [(call.line, call.rule) for call in found] == [(2, "torch.Tensor.softmax")]


@pytest.mark.parametrize(
    "chapter", [c for c in all_chapters() if c.library == "numpy"], ids=lambda c: c.stem
)
def test_a_numpy_chapter_never_imports_torch(chapter):
    for path in (chapter.solution, chapter.stub, chapter.tests):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not any(name.split(".")[0] == "torch" for name in names), path
