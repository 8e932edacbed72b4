"""Chapter 12's given code."""

import pytest
import torch

from solutions.ch12_pooling import POOLINGS, SequenceBinaryClassifier, real_positions


@pytest.mark.parametrize("word", ["last", "CLS", "", None], ids=repr)
def test_another_pooling_is_refused_at_construction(word):
    with pytest.raises(ValueError, match="pooling"):
        SequenceBinaryClassifier(pooling=word)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_classifier_has_the_parts_of_its_pooling(pooling):
    model = SequenceBinaryClassifier(input_dim=3, d_model=6, n_heads=2, pooling=pooling)
    assert model.pooling == pooling
    assert (model.cls is not None) == (pooling in ("cls", "bert"))
    assert (model.pooler is not None) == (pooling in ("attention", "bert"))
    assert model.project.weight.shape == (6, 3)
    assert model.head.weight.shape == (1, 6)
    assert len(model.encoder.layers) == 2


def test_cls_is_a_parameter_that_starts_small_and_random():
    torch.manual_seed(0)
    cls = SequenceBinaryClassifier(d_model=1000, n_heads=2, n_layers=1).cls
    assert cls.shape == (1000,)
    assert cls.requires_grad
    assert abs(cls.std().item() / 0.02 - 1) < 0.1


@pytest.mark.parametrize("valid", [[[1, 2]], [[0.5, 1]], [[-1, 0]]], ids=str)
def test_marks_other_than_0_and_1_are_refused(valid):
    with pytest.raises(ValueError, match="valid"):
        real_positions(torch.zeros(1, 2, 3), torch.tensor(valid))
