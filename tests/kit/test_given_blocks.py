"""The given code of chapters 3 and 5: constructors and their checks."""

import pytest

torch = pytest.importorskip("torch")

from solutions.ch03_multihead import MultiHeadAttention  # noqa: E402
from solutions.ch05_block import FeedForward, TransformerBlock  # noqa: E402


@pytest.mark.parametrize("n_heads", [0, -2, 4])
def test_heads_must_divide_the_width(n_heads):
    with pytest.raises(ValueError, match="n_heads"):
        MultiHeadAttention(d_model=6, n_heads=n_heads)
    with pytest.raises(ValueError, match="n_heads"):
        TransformerBlock(d_model=6, n_heads=n_heads, d_ff=8)


def test_projections_have_a_bias_only_when_asked():
    names = dict(MultiHeadAttention(6, 2).named_parameters())
    assert set(names) == {f"{name}_proj.weight" for name in "qkvo"}
    names = dict(MultiHeadAttention(6, 2, bias=True).named_parameters())
    assert set(names) == {f"{n}_proj.{p}" for n in "qkvo" for p in ("weight", "bias")}


def test_a_block_has_two_norms_of_its_own():
    block = TransformerBlock(6, 2, 8, dropout=0.25)
    assert block.ln_attention is not block.ln_feedforward
    assert block.ln_attention.eps == block.ln_feedforward.eps == 1e-5
    assert block.attention.dropout.p == block.dropout.p == block.feedforward.dropout.p == 0.25


def test_the_feed_forward_goes_up_and_down_with_biases():
    feedforward = FeedForward(6, 8)
    shapes = {name: tuple(p.shape) for name, p in feedforward.named_parameters()}
    assert shapes == {
        "up_proj.weight": (8, 6),
        "up_proj.bias": (8,),
        "down_proj.weight": (6, 8),
        "down_proj.bias": (6,),
    }
