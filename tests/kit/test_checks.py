import doctest

import numpy as np
import pytest

from grader import checks
from grader.checks import assert_close, refuses, same_answer


def test_equal_arrays_pass():
    assert_close(np.array([1.0, 2.0]), np.array([1.0, 2.0]), "values")
    assert_close(np.array([1.0, np.nan]), [1.0, np.nan], "values with NaN")
    assert_close(np.float64(2.0), 2.0, "a number")
    assert_close(np.array(2.0), 2.0, "an array without axes")
    assert_close(np.array([1e-13]), [0.0], "rounding")


DIFFERENT = {
    "value": (np.array([1.0, 1.5]), [1.0, 3.0], r"at \[1\]: expected 3.0, got 1.5"),
    "NaN": (np.array([np.nan]), [0.0], "got nan"),
    "shape": (np.zeros((1, 2)), np.zeros(2), r"expected shape \(2,\), got \(1, 2\)"),
    "broadcast": (np.zeros(1), np.zeros(3), r"expected shape \(3,\), got \(1,\)"),
    "dtype": (np.zeros(2, np.float32), np.zeros(2), "expected dtype float64, got float32"),
    "integers": (np.array([1, 2]), [1.0, 2.0], "expected float values, got int64"),
    "bools": (np.array([True]), [1], "expected integer values, got bool"),
    "None": (None, [1.0], r"expected an array of shape \(1,\), got None"),
    "a list": ([1.0], [1.0], r"expected an array of shape \(1,\), got \[1.0\]"),
    "a string": ("1.0", 1.0, "expected a number, got '1.0'"),
    "NotImplemented": (NotImplemented, 1.0, "expected a number, got NotImplemented"),
}


@pytest.mark.parametrize(("actual", "expected", "says"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_difference_is_said_and_carried(actual, expected, says):
    with pytest.raises(AssertionError, match=says) as caught:
        assert_close(actual, expected, "what")
    assert caught.value.actual is actual
    assert str(caught.value).startswith("what: ")


def test_a_refusal_must_name_the_argument():
    def refuse(x):
        raise ValueError(f"x must be positive, got {x}")

    refuses(ValueError, "x", refuse, -1)
    with pytest.raises(AssertionError, match="names mask, got ValueError: x must be positive"):
        refuses(ValueError, "mask", refuse, -1)


def test_a_refusal_by_another_exception_or_none_is_wrong():
    with pytest.raises(AssertionError, match="got IndexError") as caught:
        refuses(ValueError, "x", lambda: [][0])
    assert isinstance(caught.value.actual, IndexError)
    with pytest.raises(AssertionError, match="got a return of 3") as caught:
        refuses(ValueError, "x", lambda: 3)
    assert caught.value.actual == 3


def test_a_stub_passes_through_a_refusal_and_another_not_implemented_does_not():
    def stub(message):
        raise NotImplementedError(message)

    with pytest.raises(NotImplementedError):
        refuses(NotImplementedError, "mean_pool", stub, "ch11 mean_pool")
    refuses(NotImplementedError, "chapter 10", stub, "the cache is the subject of chapter 10")
    with pytest.raises(AssertionError):
        refuses(ValueError, "x", stub, "todo")


@pytest.mark.parametrize(
    "value", [None, True, np.zeros(3), np.full(2, np.nan), "text", []], ids=str
)
def test_values_without_information_agree_with_nothing(value):
    assert not same_answer(value, value)


def test_informative_values_agree_with_themselves_only():
    assert same_answer(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    assert same_answer(1.5, np.float64(1.5))
    assert not same_answer(np.array([1.0, 2.0]), np.array([1.0, 2.1]))
    assert not same_answer(np.array([1.0, 2.0]), np.array([[1.0, 2.0]]))


def test_the_docstrings_examples_print_what_they_say():
    assert doctest.testmod(checks).failed == 0


def test_tensors_are_judged_like_arrays():
    torch = pytest.importorskip("torch")
    assert_close(torch.tensor([0.1, 0.2]), [0.1, 0.2], "float32 literals")
    assert_close(torch.tensor([0.8], dtype=torch.float64), [0.8], "float64 literals")
    assert_close(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0]).bfloat16(), "half")
    with pytest.raises(AssertionError, match="expected dtype torch.float32, got torch.float64"):
        assert_close(torch.zeros(1, dtype=torch.float64), torch.zeros(1), "dtype")
    with pytest.raises(AssertionError, match=r"expected an array of shape \(1, 3\), got None"):
        assert_close(None, torch.zeros(1, 3), "kind")
    with pytest.raises(AssertionError, match="expected a torch array, got ndarray of shape"):
        assert_close(np.zeros(2), torch.zeros(2), "kind")
    with pytest.raises(AssertionError, match=r"at \[1\]: expected 2.0, got 3.0"):
        assert_close(torch.tensor([1.0, 3.0], requires_grad=True), [1.0, 2.0], "values")
    assert not same_answer(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert same_answer(torch.ones(2, requires_grad=True), torch.ones(2))
