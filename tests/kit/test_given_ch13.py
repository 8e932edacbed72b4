"""Chapter 13's given code."""

import pytest
import torch

from solutions.ch04_positions import sinusoidal_positions
from solutions.ch13_encoder_classifier import EncoderBlock, EncoderClassifier


def test_a_vocabulary_of_21128_gives_1419394_parameters():
    # embeddings 21128 * 64; a block: q, k, v, o 4 * (64 * 64 + 64), feed-forward 64 * 128 + 128 and
    # 128 * 64 + 64, two norms of 2 * 64; two blocks, final norm 2 * 64, head 2 * 64 + 2
    block = 4 * (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64) + 2 * 2 * 64
    assert 21128 * 64 + 2 * block + 2 * 64 + 2 * 64 + 2 == 1_419_394
    parameters = {id(p): p.numel() for p in EncoderClassifier(21128).parameters()}
    assert sum(parameters.values()) == 1_419_394


def test_the_defaults_are_those_of_the_signature():
    model = EncoderClassifier(21128)
    assert (model.pad_id, model.max_len, len(model.blocks)) == (0, 64, 2)
    assert (model.head.out_features, model.blocks[0].attention.n_heads) == (2, 4)


def test_every_block_has_parameters_of_its_own():
    model = EncoderClassifier(8, d_model=6, n_heads=2, n_layers=3, ff_dim=5)
    assert len({p.data_ptr() for block in model.blocks for p in block.parameters()}) == 3 * 16


def test_positions_are_sinusoids_that_are_neither_learned_nor_saved():
    model = EncoderClassifier(8, d_model=6, n_heads=2, max_len=9)
    torch.testing.assert_close(model.positions, sinusoidal_positions(9, 6))
    assert "positions" not in dict(model.named_parameters())
    assert "positions" not in model.state_dict()


def test_one_probability_goes_to_every_dropout():
    model = EncoderClassifier(8, d_model=6, n_heads=2, dropout=0.3)
    rates = [part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)]
    assert rates == [0.3] * (1 + 2 * 3)  # the sum; weights and both sub-layers in two blocks


@pytest.mark.parametrize("n_heads", [0, 4])
def test_heads_must_divide_the_width(n_heads):
    with pytest.raises(ValueError, match="n_heads"):
        EncoderBlock(d_model=6, n_heads=n_heads, ff_dim=5)
    with pytest.raises(ValueError, match="n_heads"):
        EncoderClassifier(8, d_model=6, n_heads=n_heads)
