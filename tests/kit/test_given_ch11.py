"""Chapter 11's given code."""

import numpy as np
import pytest

from solutions.ch11_causal_classifier import gelu, initialize, normalize


def test_parameters_have_their_shapes_and_spread():
    p = initialize(vocab=50, width=64, heads=4, max_length=10, seed=1)
    assert p["heads"] == 4
    shapes = {name: value.shape for name, value in p.items() if name != "heads"}
    assert shapes == {
        "token": (50, 64),
        "position": (10, 64),
        **dict.fromkeys("qkvo", (64, 64)),
        "ff1": (64, 256),
        "ff2": (256, 64),
    }
    assert abs(p["ff1"].std() * 8 - 1) < 0.05  # 64**-0.5 = 1 / 8


def test_parameters_are_drawn_in_their_order():
    rng = np.random.default_rng(3)
    p = initialize(vocab=5, width=4, heads=2, max_length=3, seed=3)
    for name in ("token", "position", "q", "k", "v", "o", "ff1", "ff2"):
        np.testing.assert_array_equal(p[name], rng.normal(0.0, 0.5, p[name].shape))


@pytest.mark.parametrize("size", ["vocab", "width", "heads", "max_length"])
def test_sizes_below_one_are_refused(size):
    sizes = {"vocab": 5, "width": 4, "heads": 2, "max_length": 3} | {size: 0}
    with pytest.raises(ValueError, match=size):
        initialize(**sizes)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="heads=3, width=4"):
        initialize(vocab=5, width=4, heads=3, max_length=3)


def test_the_norm_and_gelu_by_hand():
    # deviations -1.5, -0.5, 0.5, 1.5, variance 1.25
    np.testing.assert_allclose(normalize(np.array([1.0, 2, 3, 4]))[0], -1.5 / 1.25001**0.5)
    np.testing.assert_allclose(gelu(np.array([1.0, -1.0])), [0.8411920, -0.1588080], atol=1e-7)
