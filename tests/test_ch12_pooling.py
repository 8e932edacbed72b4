"""Chapter 12: pooling."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.checks import assert_close, refuses


def random(*shape, seed=0):
    """Standard normal numbers in float64, drawn without the code under test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(B, T, D, seed=0):
    """Random hidden states with large padding, and valid in any pattern, as float64 and bool."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(B, T, generator=generator) < 0.6
    hidden = torch.where(valid[..., None], random(B, T, D, seed=seed), 100 + random(B, T, D))
    return hidden, valid


def with_weights(module, seed=5):
    """The module in float64 with parameters that do not depend on how it was initialized."""
    module = module.double().requires_grad_(False)
    for number, parameter in enumerate(module.parameters()):
        parameter.copy_(random(*parameter.shape, seed=seed + number) / 2)
    return module.requires_grad_()


# A batch of B = 3, T = 4, D = 2: right padding, left padding, holes.
PAD = [100.0, -70.0]
VALID = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]])
EMPTY = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])  # nothing real in row 1


def rows():
    """hidden (3, 4, 2), a new tensor in each call: an answer might write into it."""
    return torch.tensor(
        [
            [[2.0, 4], [4, 8], PAD, PAD],
            [PAD, PAD, [-3, -1], [-2, -5]],
            [[1, 2], PAD, [5, 0], PAD],
        ]
    )


DTYPES = [torch.bool, torch.int64, torch.uint8]

BAD_VALID = [
    pytest.param((3, 3), id="fewer positions"),
    pytest.param((3, 5), id="CLS counted already"),
    pytest.param((3, 1), id="one for each row"),
    pytest.param((1, 4), id="one row for all"),
    pytest.param((4,), id="one axis"),
    pytest.param((3, 4, 1), id="three axes"),
]


# prepend_cls -------------------------------------------------------------------------------


@pytest.mark.exercise("prepend_cls")
def test_cls_stands_before_the_first_position_of_every_row(impl):
    # (B, T, D) = (2, 3, 2): positions 0, 1, 2 move to 1, 2, 3
    x = torch.tensor([[[1.0, 2], [3, 4], [5, 6]], [[11, 12], [13, 14], [15, 16]]])
    out = impl.prepend_cls(x, torch.tensor([7.0, 8]))
    expected = [[[7.0, 8], [1, 2], [3, 4], [5, 6]], [[7, 8], [11, 12], [13, 14], [15, 16]]]
    assert_close(out, torch.tensor(expected), "CLS and the three positions")


@pytest.mark.exercise("prepend_cls")
def test_where_all_sizes_are_equal_cls_extends_the_sequence(impl):
    # (2, 2, 2): an axis taken for another still fits
    x = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])
    out = impl.prepend_cls(x, torch.tensor([-1.0, -2]))
    expected = [[[-1.0, -2], [1, 2], [3, 4]], [[-1, -2], [5, 6], [7, 8]]]
    assert_close(out, expected, "CLS and the two positions")


@pytest.mark.exercise("prepend_cls")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cls_is_real_and_the_others_stay_as_they_were(impl, dtype):
    # a 1 in front of 0 0 1 1 and of 1 0 1 0, and of a row of nothing but padding
    valid = torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=dtype)
    pair = impl.prepend_cls(rows(), torch.tensor([7.0, 8]), valid)
    assert isinstance(pair, tuple), "given valid, it returns a pair"
    expected = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 0, 1, 0], [1, 0, 0, 0, 0]], dtype=dtype)
    assert_close(pair[1], expected, "valid with CLS")
    assert_close(pair[0][:, 0], [[7.0, 8]] * 3, "CLS")


@pytest.mark.exercise("prepend_cls")
def test_a_thousand_positions_become_1001(impl):
    x, cls = random(2, 1000, 3), random(3, seed=1)
    out = impl.prepend_cls(x, cls)
    assert_close(out, torch.stack([torch.cat([cls[None], row]) for row in x]), "CLS and the rest")


@pytest.mark.exercise("prepend_cls")
def test_cls_is_one_vector_shared_by_all_rows(impl):
    # three rows read CLS with 1, 2 and 3 times feature 0, 10 times feature 1: 6 and 30 in sum
    cls = torch.tensor([7.0, 8], requires_grad=True)
    out = impl.prepend_cls(rows(), cls)
    upstream = torch.zeros(3, 5, 2)
    upstream[:, 0] = torch.tensor([[1.0, 10], [2, 10], [3, 10]])
    (grad,) = torch.autograd.grad(out, cls, upstream, allow_unused=True)
    assert grad is not None, "no gradient reaches cls"
    assert_close(grad, [6.0, 30.0], "the gradient of cls")


@pytest.mark.exercise("prepend_cls")
def test_every_position_keeps_its_gradient(impl):
    # position t of out is position t - 1 of x: the upstream numbers without those of CLS
    x, upstream = rows().requires_grad_(), random(3, 5, 2).float()
    out = impl.prepend_cls(x, torch.tensor([7.0, 8])) + 0 * x.sum()
    (grad,) = torch.autograd.grad(out, x, upstream)
    assert_close(grad, upstream[:, 1:], "the gradient of x")


@pytest.mark.exercise("prepend_cls")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_prepend_cls_keeps_the_dtype_of_x(impl, dtype):
    out = impl.prepend_cls(torch.ones(1, 1, 2, dtype=dtype), torch.tensor([7.0, 8]))
    assert_close(out, torch.tensor([[[7.0, 8], [1, 1]]], dtype=dtype), "CLS and x")


@pytest.mark.exercise("prepend_cls")
def test_prepend_cls_changes_nothing_that_came_in(impl):
    x, cls, valid = rows(), torch.tensor([7.0, 8]), VALID.clone()
    impl.prepend_cls(x, cls, valid)
    assert_close(x, rows(), "x after the call")
    assert_close(valid, VALID, "valid after the call")


@pytest.mark.exercise("prepend_cls")
@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 2), (1, 1, 2)], ids=str)
def test_prepend_cls_refuses_a_cls_of_another_shape(impl, shape):
    refuses(ValueError, "cls", impl.prepend_cls, rows(), torch.zeros(shape))


@pytest.mark.exercise("prepend_cls")
@pytest.mark.parametrize("shape", BAD_VALID)
def test_prepend_cls_refuses_valid_of_another_shape(impl, shape):
    refuses(ValueError, "valid", impl.prepend_cls, rows(), torch.zeros(2), torch.ones(shape).bool())


@pytest.mark.exercise("prepend_cls")
@given(B=st.integers(1, 3), T=st.integers(1, 4), D=st.integers(1, 3), seed=st.integers(0, 9))
def test_prepend_cls_agrees_with_reference(impl, reference, B, T, D, seed):
    (x, valid), cls = drawn(B, T, D, seed), random(D, seed=seed)
    expected, expected_valid = reference.prepend_cls(x, cls, valid)
    assert_close(impl.prepend_cls(x, cls), expected, "CLS and x")
    out, out_valid = impl.prepend_cls(x, cls, valid)
    assert_close(out, expected, "CLS and x, with valid")
    assert_close(out_valid, expected_valid, "valid with CLS")


# mean_pool ---------------------------------------------------------------------------------


@pytest.mark.exercise("mean_pool")
def test_each_row_is_averaged_over_its_own_real_positions(impl):
    # (2 + 4)/2, (4 + 8)/2; (-3 - 2)/2, (-1 - 5)/2; (1 + 5)/2, (2 + 0)/2
    # divided by T = 4 half of it; with the padding 51.5, -32 in row 0
    pooled = impl.mean_pool(rows(), VALID)
    assert_close(pooled, torch.tensor([[3.0, 6], [-2.5, -3], [3, 1]]), "the mean of real positions")


@pytest.mark.exercise("mean_pool")
def test_rows_of_unequal_lengths_have_unequal_divisors(impl):
    # 1, 2 and 4 real positions of 12: 12, 24 / 2, 48 / 4; by the average 7/3 it is 5.1, 10.3, 20.6
    hidden = torch.full((3, 4, 1), 12.0)
    valid = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]])
    assert_close(impl.mean_pool(hidden, valid), [[12.0], [12], [12]], "the mean of equal values")


@pytest.mark.exercise("mean_pool")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mean_pool_takes_valid_as_bool_or_integer(impl, dtype):
    pooled = impl.mean_pool(rows(), VALID.to(dtype))
    assert_close(pooled, [[3.0, 6], [-2.5, -3], [3, 1]], "the mean of real positions")


@pytest.mark.exercise("mean_pool")
def test_where_all_sizes_are_equal_the_mean_runs_over_positions(impl):
    # (2, 2, 2): over positions (2, 3) and (7, 8); over features 1.5, 3.5; over the batch 3, 4
    hidden = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [9, 10]]])
    pooled = impl.mean_pool(hidden, torch.tensor([[1, 1], [1, 1]]))
    assert_close(pooled, [[2.0, 3], [7, 8]], "the mean over positions")


@pytest.mark.exercise("mean_pool")
def test_the_mean_of_a_row_without_real_positions_is_zero(impl):
    assert_close(impl.mean_pool(rows(), EMPTY), [[3.0, 6], [0, 0], [3, 1]], "the means")


@pytest.mark.exercise("mean_pool")
def test_real_positions_share_the_gradient_and_padding_has_none(impl):
    # two real positions: half of (6, -2) each in row 0, of (1, 4) in row 2; nothing in row 1
    hidden = rows().requires_grad_()
    upstream = torch.tensor([[6.0, -2], [9, 9], [1, 4]])
    (grad,) = torch.autograd.grad(
        impl.mean_pool(hidden, EMPTY) + 0 * hidden[:, 0], hidden, upstream
    )
    row0, row2, none = [3.0, -1.0], [0.5, 2.0], [0.0, 0.0]
    expected = [[row0, row0, none, none], [none] * 4, [row2, none, row2, none]]
    assert_close(grad, expected, "the gradient of hidden")


@pytest.mark.exercise("mean_pool")
def test_mean_pool_changes_neither_hidden_nor_valid(impl):
    hidden, valid = rows(), VALID.clone()
    impl.mean_pool(hidden, valid)
    assert_close(hidden, rows(), "hidden after the call")
    assert_close(valid, VALID, "valid after the call")


@pytest.mark.exercise("mean_pool")
@pytest.mark.parametrize("shape", BAD_VALID)
def test_mean_pool_refuses_valid_of_another_shape(impl, shape):
    refuses(ValueError, "valid", impl.mean_pool, rows(), torch.ones(shape).bool())


@pytest.mark.exercise("mean_pool")
@given(B=st.integers(1, 3), T=st.integers(1, 5), D=st.integers(1, 3), seed=st.integers(0, 9))
def test_mean_pool_agrees_with_reference(impl, reference, B, T, D, seed):
    hidden, valid = drawn(B, T, D, seed)
    assert_close(impl.mean_pool(hidden, valid), reference.mean_pool(hidden, valid), "the means")


# max_pool ----------------------------------------------------------------------------------


@pytest.mark.exercise("max_pool")
def test_each_feature_takes_its_own_largest_real_value(impl):
    # row 1 is (-3, -1), (-2, -5): feature 0 from the second, feature 1 from the first
    # the padding has 100 for feature 0; zeros in its place would win both features of row 1
    pooled = impl.max_pool(rows(), VALID)
    assert_close(pooled, torch.tensor([[4.0, 8], [-2, -1], [5, 2]]), "the maximum of each feature")


@pytest.mark.exercise("max_pool")
def test_zeros_at_padding_do_not_win_against_negative_values(impl):
    hidden = torch.tensor([[[-3.0, -1], [-2, -5], [0, 0]]])
    assert_close(impl.max_pool(hidden, torch.tensor([[1, 1, 0]])), [[-2.0, -1]], "the maximum")


@pytest.mark.exercise("max_pool")
def test_the_maximum_may_be_far_below_zero(impl):
    # an ordinary fill such as -1e4 or -1e9 would win here
    hidden = torch.tensor([[[-3e30], [-2e30], [7.0]]])
    assert_close(impl.max_pool(hidden, torch.tensor([[1, 1, 0]])), [[-2e30]], "the maximum")


@pytest.mark.exercise("max_pool")
def test_where_all_sizes_are_equal_the_maximum_runs_over_positions(impl):
    # (2, 2, 2): over positions (3, 4), (9, 6); over features (2, 4), (5, 9)
    hidden = torch.tensor([[[1.0, 2], [3, 4]], [[5, 2], [9, 6]]])
    pooled = impl.max_pool(hidden, torch.tensor([[1, 1], [1, 1]]))
    assert_close(pooled, [[3.0, 4], [9, 6]], "the maximum over positions")


@pytest.mark.exercise("max_pool")
def test_the_maximum_of_a_row_without_real_positions_is_zero(impl):
    assert_close(impl.max_pool(rows(), EMPTY), [[4.0, 8], [0, 0], [5, 2]], "the maxima")


@pytest.mark.exercise("max_pool")
def test_the_gradient_of_a_feature_goes_to_its_winner(impl):
    # row 0: (4, 8) wins both; row 2: 5 stands at position 2, 2 at position 0; nothing in row 1
    hidden = rows().requires_grad_()
    upstream = torch.tensor([[6.0, -2], [9, 9], [1, 4]])
    (grad,) = torch.autograd.grad(impl.max_pool(hidden, EMPTY) + 0 * hidden[:, 0], hidden, upstream)
    expected = torch.zeros(3, 4, 2)
    expected[0, 1] = upstream[0]
    expected[2, 2, 0], expected[2, 0, 1] = 1.0, 4.0
    assert_close(grad, expected, "the gradient of hidden")


@pytest.mark.exercise("max_pool")
def test_max_pool_changes_neither_hidden_nor_valid(impl):
    hidden, valid = rows(), VALID.clone()
    impl.max_pool(hidden, valid)
    assert_close(hidden, rows(), "hidden after the call")
    assert_close(valid, VALID, "valid after the call")


@pytest.mark.exercise("max_pool")
@pytest.mark.parametrize("shape", BAD_VALID)
def test_max_pool_refuses_valid_of_another_shape(impl, shape):
    refuses(ValueError, "valid", impl.max_pool, rows(), torch.ones(shape).bool())


@pytest.mark.exercise("max_pool")
@given(B=st.integers(1, 3), T=st.integers(1, 5), D=st.integers(1, 3), seed=st.integers(0, 9))
def test_max_pool_agrees_with_reference(impl, reference, B, T, D, seed):
    hidden, valid = drawn(B, T, D, seed)
    assert_close(impl.max_pool(hidden, valid), reference.max_pool(hidden, valid), "the maxima")


# AttentionPool.forward ---------------------------------------------------------------------


def scoring(impl, *weight, bias=0.0):
    """An AttentionPool whose score is a given combination of the features."""
    pool = impl.AttentionPool(len(weight)).requires_grad_(False)
    pool.score.weight.copy_(torch.tensor([weight]))
    pool.score.bias.fill_(bias)
    return pool.requires_grad_()


@pytest.mark.exercise("AttentionPool.forward")
def test_weights_are_the_softmax_of_the_scores_and_padding_has_none(impl):
    # scores 0, log 3 and a blocked 9: weights 1/4, 3/4, 0; values 4, 8, 100: 1 + 6 = 7
    # feature 0 is the score itself: 3/4 log 3
    hidden = torch.tensor([[[0.0, 4], [math.log(3), 8], [9, 100]]])
    pooled = scoring(impl, 1.0, 0.0)(hidden, torch.tensor([[1, 1, 0]]))
    assert_close(pooled, torch.tensor([[0.75 * math.log(3), 7]]), "the weighted average")


@pytest.mark.exercise("AttentionPool.forward")
def test_each_row_has_weights_of_its_own(impl):
    # scores 0, log 3, log 4: row 0 blocks the last, row 1 the first, row 2 the middle one
    # 1:3, 3:4 and 1:4; values 4, 8, 60: 7, (24 + 240)/7, (4 + 240)/5
    row = [[0.0, 4], [math.log(3), 8], [math.log(4), 60]]
    valid = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    pooled = scoring(impl, 1.0, 0.0)(torch.tensor([row] * 3), valid)
    assert_close(pooled[:, 1], [7.0, 264 / 7, 244 / 5], "the weighted averages of feature 1")


@pytest.mark.exercise("AttentionPool.forward")
def test_the_weights_come_second_when_asked_for(impl):
    row = [[0.0, 4], [math.log(3), 8], [math.log(4), 60]]
    valid = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]])
    pair = scoring(impl, 1.0, 0.0)(torch.tensor([row] * 4), valid, return_weights=True)
    assert isinstance(pair, tuple), "return_weights=True gives a pair"
    expected = [[0.25, 0.75, 0], [0, 3 / 7, 4 / 7], [0, 0, 0], [1 / 8, 3 / 8, 4 / 8]]
    assert_close(pair[1], torch.tensor(expected), "weights (B, T)")
    assert_close(pair[0][:, 1], [7.0, 264 / 7, 0, 268 / 8], "the weighted averages of feature 1")


@pytest.mark.exercise("AttentionPool.forward")
def test_padding_may_have_by_far_the_highest_score(impl):
    # real scores -300 and -300 - log 3: weights 3/4 and 1/4; padding 300: e^600 in its place
    hidden = torch.tensor([[[300.0, 100], [-300, 8], [-300 - math.log(3), 4]]], dtype=torch.float64)
    pooled = scoring(impl, 1.0, 0.0).double()(hidden, torch.tensor([[0, 1, 1]]))
    assert_close(pooled[:, 1], [7.0], "the weighted average of feature 1")


@pytest.mark.exercise("AttentionPool.forward")
def test_attention_over_a_row_without_real_positions_gives_zeros(impl):
    pooled = scoring(impl, 0.0, 0.0)(rows(), EMPTY)
    assert_close(pooled, [[3.0, 6], [0, 0], [3, 1]], "the weighted averages")


@pytest.mark.exercise("AttentionPool.forward")
def test_a_row_without_real_positions_leaves_all_gradients_finite(impl):
    # row 0 and 2 have equal scores 0, weights 1/2 each, upstream u = (1, 1): the score of position
    # t gets u . (h_t - mean) / 2; row 0: (6 - 9)/2, (12 - 9)/2; row 2: (3 - 4)/2, (5 - 4)/2
    # the weight gets their sum times h: row 0 -1.5 (2, 4) + 1.5 (4, 8) = (3, 6),
    # row 2 -0.5 (1, 2) + 0.5 (5, 0) = (2, -1); row 1 adds nothing
    pool = scoring(impl, 0.0, 0.0)
    (pool(rows(), EMPTY).sum() + 0 * pool.score.weight.sum()).backward()
    assert_close(pool.score.weight.grad, [[5.0, 5.0]], "the gradient of score.weight")


@pytest.mark.exercise("AttentionPool.forward")
def test_the_gradients_go_through_weights_and_values(impl, reference):
    hidden, valid = drawn(3, 5, 4, seed=2)
    hidden, upstream = hidden.clamp(max=3).requires_grad_(), random(3, 4, seed=8)
    grads = []
    for module in (impl, reference):
        pool = with_weights(module.AttentionPool(4))
        pooled = pool(hidden, valid) + 0 * (pool.score.weight + pool.score.bias + hidden[:, 0])
        grads.append(torch.autograd.grad(pooled, (hidden, pool.score.weight), upstream))
    assert_close(grads[0][0], grads[1][0], "the gradient of hidden")
    assert_close(grads[0][1], grads[1][1], "the gradient of score.weight")


@pytest.mark.exercise("AttentionPool.forward")
@pytest.mark.parametrize("shape", BAD_VALID)
def test_attention_pooling_refuses_valid_of_another_shape(impl, shape):
    refuses(ValueError, "valid", scoring(impl, 1.0, 2.0), rows(), torch.ones(shape).bool())


@pytest.mark.exercise("AttentionPool.forward")
@given(B=st.integers(1, 3), T=st.integers(1, 5), D=st.integers(1, 3), seed=st.integers(0, 9))
def test_attention_pooling_agrees_with_reference(impl, reference, B, T, D, seed):
    hidden, valid = drawn(B, T, D, seed)
    pools = [with_weights(module.AttentionPool(D)) for module in (impl, reference)]
    (pooled, weights), expected = (pool(hidden, valid, return_weights=True) for pool in pools)
    assert_close(pooled, expected[0], "the weighted average")
    assert_close(weights, expected[1], "the weights")


# BertPooler.forward ------------------------------------------------------------------------


def pooler_of(impl, weight, bias):
    """A BertPooler with given weights."""
    pooler = impl.BertPooler(len(bias)).requires_grad_(False)
    pooler.dense.weight.copy_(torch.tensor(weight))
    pooler.dense.bias.copy_(torch.tensor(bias))
    return pooler.requires_grad_()


@pytest.mark.exercise("BertPooler.forward")
def test_the_pooler_is_tanh_of_dense_of_the_first_position(impl):
    # W = diag(1, -1): tanh(1) and tanh(-2); row 1 starts with (2, 1): tanh(2), tanh(-1)
    hidden = torch.tensor([[[1.0, 2], [9, 9], [8, 8]], [[2, 1], [7, 7], [6, 6]]])
    pooled = pooler_of(impl, [[1.0, 0], [0, -1]], [0.0, 0])(hidden)
    expected = [[0.7615942, -0.9640276], [0.9640276, -0.7615942]]
    assert_close(pooled, torch.tensor(expected), "tanh(dense(first))")


@pytest.mark.exercise("BertPooler.forward")
def test_dense_is_applied_as_it_is_and_not_transposed(impl):
    # W = [[0, 1], [0, 0]]: output 0 reads feature 1, tanh(2); transposed it is (0, tanh 1)
    pooled = pooler_of(impl, [[0.0, 1], [0, 0]], [0.0, 0])(torch.tensor([[[1.0, 2]]]))
    assert_close(pooled, [[0.9640276, 0.0]], "tanh(dense(first))")


@pytest.mark.exercise("BertPooler.forward")
def test_the_bias_is_added_inside_the_tanh(impl):
    # W = 1, b = 1, first position 1: tanh(2); the position after it holds 9
    pooled = pooler_of(impl, [[1.0]], [1.0])(torch.tensor([[[1.0], [9.0]]]))
    assert_close(pooled, [[0.9640276]], "tanh(1 + 1)")


@pytest.mark.exercise("BertPooler.forward")
def test_where_all_sizes_are_equal_it_is_the_first_position_of_every_row(impl):
    # (2, 2, 2), W = 1: rows start with (0.1, 0.2) and (0.5, 0.6)
    # the first row is (0.1, 0.2), (0.3, 0.4); the first feature (0.1, 0.3), (0.5, 0.7)
    hidden = torch.tensor([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]])
    pooled = pooler_of(impl, [[1.0, 0], [0, 1]], [0.0, 0])(hidden)
    expected = [[math.tanh(0.1), math.tanh(0.2)], [math.tanh(0.5), math.tanh(0.6)]]
    assert_close(pooled, expected, "tanh of the first positions")


@pytest.mark.exercise("BertPooler.forward")
def test_the_gradient_stays_at_the_first_position(impl):
    # d tanh(z) = 1 - tanh(z)^2: 0.4199743 at 1, 0.0706508 at -2; W = diag(1, -1), upstream (3, 5)
    hidden = torch.tensor([[[1.0, 2], [9, 9]]], requires_grad=True)
    pooled = pooler_of(impl, [[1.0, 0], [0, -1]], [0.0, 0])(hidden)
    (grad,) = torch.autograd.grad(pooled + 0 * hidden[:, 0], hidden, torch.tensor([[3.0, 5.0]]))
    assert_close(grad, [[[3 * 0.4199743, -5 * 0.0706508], [0, 0]]], "the gradient of hidden")


@pytest.mark.exercise("BertPooler.forward")
@given(B=st.integers(1, 4), T=st.integers(1, 4), D=st.integers(1, 4), seed=st.integers(0, 9))
def test_bert_pooler_agrees_with_reference(impl, reference, B, T, D, seed):
    hidden = random(B, T, D, seed=seed)
    pooled, expected = (with_weights(m.BertPooler(D))(hidden) for m in (impl, reference))
    assert_close(pooled, expected, "tanh(dense(first))")


# SequenceBinaryClassifier.forward ----------------------------------------------------------

POOLINGS = ["cls", "mean", "max", "attention", "bert"]


def silent(impl, pooling):
    """D = 2; all is 0 but the norms, so that hidden is the normed position (CLS included).

    Two features normed are -1 and 1. The head adds 10 to feature 0; BERT's dense doubles.
    """
    model = impl.SequenceBinaryClassifier(2, 2, 1, 1, pooling).requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.fill_("norm" in name and "weight" in name)
    model.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
    model.head.bias.fill_(10.0)
    if pooling == "bert":
        model.pooler.dense.weight.copy_(2 * torch.eye(2))
    return model


def classifier(module, pooling, layers=2, **options):
    """D = 6, two heads; the same weights for every module.

    An odd number of heads would keep torch's encoder off its fast path in evaluation.
    """
    model = module.SequenceBinaryClassifier(2, 6, 2, layers, pooling, d_ff=7, **options)
    return with_weights(model).eval()


@functools.cache
def trusted(reference, pooling):
    """The reference's model, made once: it keeps nothing between calls."""
    return classifier(reference, pooling)


def sequences(seed=0):
    """x (B, T, I) = (4, 5, 2) with large padding: right, left, holes and all real."""
    valid = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
    x = torch.where(valid[..., None] == 1, random(4, 5, 2, seed=seed), 30 + random(4, 5, 2))
    return x, valid


BY_HAND = [
    pytest.param("cls", [9.0, 9.0, 9.0], id="cls"),
    pytest.param("mean", [9.0, 10.0, 11.0], id="mean"),
    pytest.param("max", [9.0, 11.0, 11.0], id="max"),
    pytest.param("attention", [9.0, 10.0, 11.0], id="attention"),
    pytest.param("bert", [10 - 0.9640276] * 3, id="bert"),
]


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize(("pooling", "logits"), BY_HAND)
def test_the_logit_reads_the_pooled_positions(impl, pooling, logits):
    # positions 0 and 1 are (0, 1) and (sin 1, cos 1) = (0.84, 0.54): normed (-1, 1) and (1, -1)
    # real are position 0; both; position 1: feature 0 has the means -1, 0, 1, the maxima -1, 1, 1
    # CLS has position 0, so -1 in all rows; BERT's pooler makes tanh(-2) of it
    model = silent(impl, pooling)
    out = model(torch.zeros(3, 2, 2), torch.tensor([[1, 0], [1, 1], [0, 1]]))
    assert_close(out, torch.tensor(logits)[:, None], "10 + feature 0 of the pooled", atol=1e-4)


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_logits_are_those_of_the_reference_with_the_same_weights(impl, reference, pooling):
    x, valid = sequences()
    expected = trusted(reference, pooling)(x, valid)
    assert_close(classifier(impl, pooling)(x, valid), expected, "logits (B, 1)")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
def test_real_positions_do_not_attend_to_padding(impl):
    # attention adds the mean of what is visible: v and o are 1, q and k are 0
    # the one real position is (6, 0), so 12 ahead in feature 0: (1, -1), and 10 + 1
    # with the padding (0, 90), or with it alone, feature 1 is ahead: 10 - 1
    model = silent(impl, "mean")
    model.project.weight.copy_(torch.eye(2))
    attention = model.encoder.layers[0].self_attn
    attention.in_proj_weight[4:].copy_(torch.eye(2))
    attention.out_proj.weight.copy_(torch.eye(2))
    x = torch.tensor([[[6.0, 0], [0, 90]]])
    assert_close(model(x, torch.tensor([[1, 0]])), [[11.0]], "10 + feature 0", atol=1e-4)


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_other_values_at_padding_and_more_of_it_change_no_logit(impl, reference, pooling):
    x, valid = sequences()
    expected = trusted(reference, pooling)(x, valid)
    x = torch.where(valid[..., None] == 1, x, -50 * random(4, 5, 2, seed=3))
    x = torch.cat([x, 70 + random(4, 2, 2)], dim=1)
    valid = torch.cat([valid, torch.zeros(4, 2, dtype=torch.int64)], dim=1)
    assert_close(classifier(impl, pooling)(x, valid), expected, "logits with other padding")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_sequence_has_the_logit_that_it_has_alone(impl, reference, pooling):
    # B = T = 4 for mean, max, attention, where batch and time exchanged would still fit
    x = random(4, 4, 2)
    model = trusted(reference, pooling)
    expected = torch.cat([model(x[b : b + 1]) for b in range(4)])
    assert_close(classifier(impl, pooling)(x), expected, "logits of the batch")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
def test_a_thousand_positions_give_one_logit(impl, reference):
    x = random(1, 1000, 2)
    with torch.no_grad():
        out, expected = (classifier(module, "cls", layers=1)(x) for module in (impl, reference))
    assert_close(out, expected, "logits (B, 1)")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_without_valid_all_positions_are_real_zeros_too(impl, reference, pooling):
    x = random(2, 5, 2)
    x[:, 3:] = 0
    expected = trusted(reference, pooling)(x, torch.ones(2, 5, dtype=torch.bool))
    assert_close(classifier(impl, pooling)(x), expected, "logits without valid")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", ["mean", "bert"])
def test_the_classifier_keeps_nothing_between_calls(impl, reference, pooling):
    # first all are real, then not; the second answer is that of a fresh model
    x, valid = sequences()
    expected = trusted(reference, pooling)(x, valid)
    model = classifier(impl, pooling)
    model(x)
    assert_close(model(x, valid), expected, "logits of the second call")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_without_real_positions_has_a_finite_logit(impl, reference, pooling):
    # evaluation without gradients, where torch's encoder makes NaN of a row that is all blocked
    # mean, max, attention: zeros times head, plus its bias; cls, bert: what CLS alone gives
    x, valid = sequences()
    valid[1] = 0
    model = trusted(reference, pooling)
    with torch.no_grad():
        expected = model.head.bias
        if pooling in ("cls", "bert"):
            expected = model(x[1:2, :1], valid[1:2, :1])[0]
        out = classifier(impl, pooling)(x, valid)
        others = model(x[[0, 2, 3]], valid[[0, 2, 3]])
    assert_close(out[1], expected, "the logit of the row without real positions")
    assert_close(out[[0, 2, 3]], others, "the logits of the others")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", ["cls", "max", "attention"])
def test_every_parameter_gets_its_gradient(impl, reference, pooling):
    # in training, with a row without real positions: finite, and CLS learns
    x, valid = sequences()
    valid[1] = 0
    grads = []
    for module in (impl, reference):
        model = classifier(module, pooling).train()
        (model(x, valid) * random(4, 1, seed=9)).sum().backward()
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        grads.append(zeros | found)
    for name in ("cls", "project.weight", "head.weight"):
        if name in grads[1]:
            assert_close(grads[0][name], grads[1][name], f"the gradient of {name}")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("pooling", ["mean", "bert"])
def test_dropout_acts_on_the_pooled_vector_in_training(impl, pooling):
    # dropped with probability 1, nothing but the head's bias is left
    model = classifier(impl, pooling)
    model.dropout.p = 1.0
    x, valid = sequences()
    expected = model.head.bias.expand(4, 1)
    assert_close(model.train()(x, valid), expected, "the head's bias alone")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
def test_the_classifier_drops_nothing_in_evaluation(impl, reference):
    x, valid = sequences()
    expected = trusted(reference, "bert")(x, valid)
    out = classifier(impl, "bert", dropout=0.5)(x, valid)
    assert_close(out, expected, "logits with dropout 0.5, in evaluation")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
def test_the_classifier_changes_neither_x_nor_valid(impl):
    x, valid = sequences()
    classifier(impl, "cls")(x, valid)
    assert_close(x, sequences()[0], "x after the call")
    assert_close(valid, sequences()[1], "valid after the call")


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@pytest.mark.parametrize("shape", BAD_VALID)
def test_the_classifier_refuses_valid_of_another_shape(impl, shape):
    model = classifier(impl, "mean", layers=1)
    refuses(ValueError, "valid", model, random(3, 4, 2), torch.ones(shape).bool())


@pytest.mark.exercise("SequenceBinaryClassifier.forward")
@given(
    pooling=st.sampled_from(POOLINGS),
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_the_classifier_agrees_with_reference(impl, reference, pooling, B, T, seed):
    x, valid = drawn(B, T, 2, seed)
    out, expected = (classifier(module, pooling, 1)(x, valid) for module in (impl, reference))
    assert_close(out, expected, "logits (B, 1)")


# pooled_loss -------------------------------------------------------------------------------


@pytest.mark.exercise("pooled_loss")
@pytest.mark.parametrize(("target", "margin"), [(1, 2.0), (0, -2.0)], ids=["yes", "no"])
def test_one_logit_costs_the_softplus_of_its_margin(impl, target, margin):
    # z = 2: yes costs log(1 + e^-2) = 0.1269280, no costs log(1 + e^2) = 2.1269280
    loss = impl.pooled_loss(torch.tensor([[2.0]]), torch.tensor([[target]]))
    assert_close(loss, torch.tensor(math.log1p(math.exp(-margin))), "log(1 + e^-margin)")


PAIRS = [
    pytest.param((3,), (3,), id="B and B"),
    pytest.param((3, 1), (3,), id="B,1 and B"),
    pytest.param((3,), (3, 1), id="B and B,1"),
    pytest.param((3, 1), (3, 1), id="B,1 and B,1"),
]


@pytest.mark.exercise("pooled_loss")
@pytest.mark.parametrize(("logits_shape", "targets_shape"), PAIRS)
def test_each_logit_meets_its_own_target(impl, logits_shape, targets_shape):
    # 2 with 1, -1 with 0, 3 with 0: softplus of -2, -1 and 3; every logit with every target: more
    logits = torch.tensor([2.0, -1.0, 3.0]).reshape(logits_shape)
    targets = torch.tensor([1.0, 0.0, 0.0]).reshape(targets_shape)
    expected = sum(math.log1p(math.exp(z)) for z in (-2, -1, 3)) / 3
    assert_close(impl.pooled_loss(logits, targets), expected, "the mean over pairs")


TARGET_DTYPES = [torch.bool, torch.int64, torch.uint8, torch.float16, torch.float64]


@pytest.mark.exercise("pooled_loss")
@pytest.mark.parametrize("dtype", TARGET_DTYPES, ids=str)
def test_targets_may_have_any_dtype(impl, dtype):
    loss = impl.pooled_loss(torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 0], dtype=dtype))
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert_close(loss, torch.tensor(expected), "the mean loss, in logits' dtype")


@pytest.mark.exercise("pooled_loss")
def test_logits_of_200_cost_what_they_should(impl):
    # right by 200: free; wrong by 200: 200, on both sides
    logits = torch.tensor([200.0, -200.0, 200.0, -200.0])
    assert_close(impl.pooled_loss(logits, torch.tensor([1, 0, 0, 1])), 100.0, "the loss at +-200")


@pytest.mark.exercise("pooled_loss")
def test_the_gradient_is_the_probability_less_the_target(impl):
    # (sigmoid(z) - y) / B: (1/2 - 1)/4, (3/4 - 0)/4, and at +-200, wrong, (1 - 0)/4, (0 - 1)/4
    logits = torch.tensor([[0.0], [math.log(3)], [200], [-200]], requires_grad=True)
    loss = impl.pooled_loss(logits, torch.tensor([1, 0, 0, 1]))
    (grad,) = torch.autograd.grad(loss + 0 * logits.sum(), logits)
    assert_close(grad, [[-0.125], [0.1875], [0.25], [-0.25]], "the gradient of the logits")


BAD_ROWS = [
    pytest.param((3, 1), (2,), "targets", id="fewer targets"),
    pytest.param((1, 1), (3,), "targets", id="one logit for all"),
    pytest.param((3,), (1,), "targets", id="one target for all"),
    pytest.param((3,), (1, 3), "targets", id="targets in a row"),
    pytest.param((3, 2), (3,), "logits", id="two logits each"),
    pytest.param((3, 4, 1), (3, 1), "logits", id="a logit for each position"),
    pytest.param((), (1,), "logits", id="no axis"),
]


@pytest.mark.exercise("pooled_loss")
@pytest.mark.parametrize(("logits_shape", "targets_shape", "argument"), BAD_ROWS)
def test_pooled_loss_refuses_shapes(impl, logits_shape, targets_shape, argument):
    logits, targets = torch.zeros(logits_shape), torch.zeros(targets_shape)
    refuses(ValueError, argument, impl.pooled_loss, logits, targets)


@pytest.mark.exercise("pooled_loss")
@pytest.mark.parametrize("value", [2, -1, 0.5, math.nan], ids=str)
def test_pooled_loss_refuses_targets_that_are_neither_0_nor_1(impl, value):
    targets = torch.tensor([1, value])
    refuses(ValueError, "targets", impl.pooled_loss, torch.zeros(2, 1), targets)


@pytest.mark.exercise("pooled_loss")
@given(
    pairs=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=1, max_size=4),
    column=st.booleans(),
)
def test_pooled_loss_agrees_with_reference(impl, reference, pairs, column):
    logits = torch.tensor([z for z, _ in pairs], dtype=torch.float64)
    targets = torch.tensor([y for _, y in pairs])
    logits = logits[:, None] if column else logits
    expected = reference.pooled_loss(logits, targets)
    assert_close(impl.pooled_loss(logits, targets), expected, "the mean loss")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise(
    "prepend_cls",
    "mean_pool",
    "max_pool",
    "AttentionPool.forward",
    "BertPooler.forward",
    "SequenceBinaryClassifier.forward",
    "pooled_loss",
)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_file_as_written_agrees_with_reference(impl, reference, pooling):
    x, valid = sequences()
    losses = []
    for module in (impl, reference):
        logits = classifier(module, pooling)(x, valid)
        losses.append(module.pooled_loss(logits, torch.tensor([1, 0, 0, 1])))
    assert_close(losses[0], losses[1], "the loss, end to end")
