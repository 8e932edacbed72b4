"""Chapter 7's given code."""

import pytest
import torch
from torch import nn

from solutions.ch05_block import parameter_ledger
from solutions.ch07_decoder import Config, TransformerLM, check_targets, check_tokens

SIZES = {"vocab_size": 50, "block_size": 12, "d_model": 32, "n_heads": 4, "n_layers": 3, "d_ff": 80}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TransformerLM(Config(**SIZES, dropout=0.25))


def test_blocks_are_built_separately(model):
    assert isinstance(model.blocks, nn.ModuleList)
    assert len({id(block) for block in model.blocks}) == 3
    assert len({p.data_ptr() for p in model.parameters()}) == len(list(model.parameters()))


@pytest.mark.parametrize("n_layers", [1, 3])
def test_parameters_are_those_of_the_ledger(n_layers):
    sizes = SIZES | {"n_layers": n_layers}
    model = TransformerLM(Config(**sizes))
    ledger = parameter_ledger(**{name: sizes[name] for name in sizes if name != "n_heads"})
    for part in ("token_embedding", "position_embedding", "blocks", "final_norm", "head"):
        counted = sum(p.numel() for p in model.get_submodule(part).parameters())
        assert counted == ledger[part], part
    assert sum(p.numel() for p in model.parameters()) == ledger["total"]


def test_the_head_is_neither_tied_nor_biased(model):
    assert model.head.weight is not model.token_embedding.weight
    assert model.head.bias is None


def test_weights_start_with_standard_deviation_0_02_and_biases_at_0(model):
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            assert (parameter == float(name.endswith("weight"))).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:  # the error of a spread from n numbers is about 0.02 / sqrt(2 n), n >= 384
            assert abs(parameter.std().item() / 0.02 - 1) < 0.15, name
            assert abs(parameter.mean().item()) < 0.005, name


def test_dropout_goes_to_the_embedding_and_to_every_block(model):
    rates = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25}
    assert isinstance(model.embedding_dropout, nn.Dropout)


def test_a_config_cannot_be_changed_after_its_check(model):
    with pytest.raises(AttributeError):
        model.config.n_heads = 5


def test_tokens_up_to_block_size_pass_the_check():
    check_tokens(torch.zeros(2, 12, dtype=torch.int64), 12)
    with pytest.raises(ValueError, match="13 positions, block_size is 12"):
        check_tokens(torch.zeros(2, 13, dtype=torch.int64), 12)


def test_one_scored_target_is_enough():
    targets = torch.full((2, 3), -100)
    with pytest.raises(ValueError, match="targets are all -100"):
        check_targets(targets, (2, 3))
    targets[1, 2] = 0
    check_targets(targets, (2, 3))
