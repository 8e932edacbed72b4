"""The two ways to judge: `assert_close` compares values, `refuses` wants an error.

Both raise an AssertionError that carries `.actual`, what the learner's code gave: the diagnosis
compares it with what the catalogue's wrong answers give. A stub's NotImplementedError passes
through both, so that "not started" is never "wrong".
"""

import re
import reprlib
import sys

import numpy as np

# rtol, atol by dtype; the half types have 8 to 11 bits of mantissa
TOLERANCES = {
    "float64": (1e-9, 1e-12),
    "float32": (1e-5, 1e-5),
    "float16": (2e-2, 2e-2),
    "bfloat16": (2e-2, 2e-2),
}


class Different(AssertionError):
    """An answer that is not the expected one; `.actual` is the answer."""

    def __init__(self, message: str, actual: object):
        super().__init__(message)
        self.actual = actual


class NotRefused(Different):
    """What must be refused was not, or not as it must be."""


def assert_close(
    actual, expected, what: str, *, rtol: float | None = None, atol: float | None = None
):
    """Fail unless `actual` has the kind, shape, dtype and values of `expected`.

    Args:
        actual:   what the learner's code gave.
        expected: an array or tensor (then the dtype must be the same), or a number or nested
                  list of numbers (then an array, a tensor or a number will do, of the same kind:
                  bool, integer or float).
        what:     what this checks, in a few words; it opens the message.
        rtol, atol: |actual - expected| <= atol + rtol * |expected|; by default from the dtype,
                  1e-9 and 1e-12 in float64. NaN equals NaN.

    Raises:
        Different: an AssertionError with `.actual`, and the first entry that differs.

    Example:
        >>> assert_close(np.array([1.0, 2.5]), [1.0, 2.0], "the running mean")
        Traceback (most recent call last):
        grader.checks.Different: the running mean: 1 of 2 values differs
          at [1]: expected 2.0, got 2.5
    """
    library = _library_of(actual, expected)
    if library is None:
        shape = tuple(np.shape(expected))
        wanted = f"an array of shape {shape}" if shape else "a number"
        raise Different(f"{what}: expected {wanted}, got {_show(actual)}", actual)
    literal = isinstance(expected, int | float | list | tuple)
    if not literal and _library_of(expected, expected) is not library:
        wanted = _library_of(expected, expected).__name__
        raise Different(f"{what}: expected a {wanted} array, got {_show(actual)}", actual)
    got, want = _array(actual, library), _array(expected, library)
    shape, wanted = tuple(got.shape), tuple(want.shape)
    if shape != wanted:
        raise Different(f"{what}: expected shape {wanted}, got {shape}", actual)
    if literal:
        if _kind(got) != _kind(want):
            raise Different(f"{what}: expected {_kind(want)} values, got {got.dtype}", actual)
        want = library.asarray(expected, dtype=got.dtype, device=got.device)
    elif got.dtype != want.dtype and _native(got) != _native(want):
        raise Different(f"{what}: expected dtype {want.dtype}, got {got.dtype}", actual)

    wide = TOLERANCES["float64"] if _kind(got) == "float" else (0.0, 0.0)
    default = TOLERANCES.get(_native(got), wide)
    rtol = default[0] if rtol is None else rtol
    atol = default[1] if atol is None else atol
    close = np.asarray(library.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True))
    if not close.all():
        index = tuple(map(int, np.argwhere(~close)[0]))
        count = int((~close).sum())
        total = f"{count} of {close.size} values differ{'s' if count == 1 else ''}"
        at = f"at {list(index)}: " if index else ""
        raise Different(
            f"{what}: {total}\n  {at}expected {want[index].item()!r}, got {got[index].item()!r}",
            actual,
        )


def refuses(error: type[Exception], argument: str, function, *args, **kwargs):
    """Fail unless `function(*args, **kwargs)` raises `error` with a message that names `argument`.

    Raises:
        NotRefused: an AssertionError; `.actual` is what was returned, or the other exception.

    Example:
        >>> refuses(ValueError, "labels", lambda labels: labels, [7])
        Traceback (most recent call last):
        grader.checks.NotRefused: expected a ValueError that names labels, got a return of [7]
    """
    wanted = f"expected {_article(error.__name__)} that names {argument}"
    try:
        actual = function(*args, **kwargs)
    except Exception as raised:
        if is_not_started(raised):
            raise
        if isinstance(raised, error) and re.search(rf"\b{re.escape(argument)}\b", str(raised)):
            return
        raise NotRefused(f"{wanted}, got {type(raised).__name__}: {raised}", raised) from raised
    raise NotRefused(f"{wanted}, got a return of {_show(actual)}", actual)


def is_not_started(error: BaseException) -> bool:
    """Whether this is a stub's own NotImplementedError, such as `ch11 mean_pool`."""
    unwritten = isinstance(error, NotImplementedError)
    return unwritten and re.fullmatch(r"ch\d\d [\w.]+", str(error)) is not None


def same_answer(first: object, second: object) -> bool:
    """Whether two `.actual` are the same informative numbers: this is what a diagnosis rests on.

    Values that many mistakes share say nothing (None, bools, all zero, all NaN) and never agree.
    """
    if _library_of(first, 0.0) is None or _library_of(first, 0.0) is not _library_of(second, 0.0):
        return False
    library = _library_of(first, 0.0)
    a, b = _array(first, library), _array(second, library)
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype or _kind(a) == "bool":
        return False
    if _kind(a) not in ("integer", "float") or not bool(((a == a) & (a != 0)).any()):
        return False
    return bool(library.isclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True).all())


def _library_of(value, expected):
    """numpy or torch, by what `value` is; None when it is no array and no number can stand in."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch
    if isinstance(value, np.ndarray | np.generic):
        return np
    if isinstance(value, int | float) and np.ndim(expected) == 0:
        return np
    return None


def _array(value, library):
    """An array or tensor of the value, cut off from any gradient."""
    return value.detach() if hasattr(value, "detach") else library.asarray(value)


def _native(array) -> str:
    """The dtype's name, whatever the order of its bytes."""
    dtype = array.dtype
    dtype = dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype
    return str(dtype).removeprefix("torch.")


def _kind(array) -> str:
    name = _native(array)
    if name == "bool":
        return "bool"
    return "integer" if "int" in name else "float" if "float" in name else name


def _show(value: object) -> str:
    if isinstance(getattr(value, "shape", None), tuple) and len(value.shape) > 0:
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'AEIOU' else 'a'} {word}"
