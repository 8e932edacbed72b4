"""Chapter 2: scaled dot-product attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional as F

from grader.checks import assert_close, refuses

LN2, LN3, LN5 = math.log(2), math.log(3), math.log(5)


def numbers(*rows, dtype=torch.float64):
    """A tensor of these rows, or of these numbers."""
    return torch.tensor(rows, dtype=dtype)


def blocked(*rows):
    """A mask of these rows of 0 and 1; 1 is blocked."""
    return torch.tensor(rows, dtype=torch.bool)


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def zeros_and_ones(mask):
    """The entries of a mask as integers, once it is bool."""
    assert mask.dtype == torch.bool, f"the mask must be bool, got {mask.dtype}"
    return mask.int()


# softmax -----------------------------------------------------------------------------------


@pytest.mark.exercise("softmax")
def test_weights_are_exponentials_over_their_sum(impl):
    # exp gives 1, 2 and 5; their sum is 8
    weights = impl.softmax(numbers(0.0, LN2, LN5), 0)
    assert_close(weights, numbers(1 / 8, 2 / 8, 5 / 8), "exp(x) / sum of exp(x)")


DIMS = [
    pytest.param(0, numbers([1 / 4, 4 / 5, 1 / 3], [3 / 4, 1 / 5, 2 / 3]), id="dim 0"),
    pytest.param(1, numbers([1 / 6, 4 / 6, 1 / 6], [3 / 6, 1 / 6, 2 / 6]), id="dim 1"),
    pytest.param(-1, numbers([1 / 6, 4 / 6, 1 / 6], [3 / 6, 1 / 6, 2 / 6]), id="dim -1"),
    pytest.param(-2, numbers([1 / 4, 4 / 5, 1 / 3], [3 / 4, 1 / 5, 2 / 3]), id="dim -2"),
]


@pytest.mark.exercise("softmax")
@pytest.mark.parametrize(("dim", "expected"), DIMS)
def test_weights_sum_to_one_along_dim(impl, dim, expected):
    # exp gives the rows (1, 4, 1) and (3, 1, 2): column sums 4, 5, 3 and row sums 6, 6
    x = numbers([0.0, 2 * LN2, 0.0], [LN3, 0.0, LN2])
    assert_close(impl.softmax(x, dim), expected, f"the weights along dim {dim}")


@pytest.mark.exercise("softmax")
def test_entries_of_ten_thousand_are_ordinary(impl):
    # each row is (0, ln 3, far less) plus a number of its own, which cancels
    rows = [[0.0, LN3, -2e4], [1e4, 1e4 + LN3, -1e4], [-1e4, LN3 - 1e4, -3e4]]
    weights = impl.softmax(numbers(*rows), 1)
    assert_close(weights, numbers(*[[1 / 4, 3 / 4, 0.0]] * 3), "the weights at 0, 10^4 and -10^4")


@pytest.mark.exercise("softmax")
def test_minus_infinity_gets_no_weight(impl):
    # whatever stands beside it, (0, ln 3) or both less 20000
    weights = impl.softmax(numbers([-math.inf, 0.0, LN3], [-math.inf, -2e4, LN3 - 2e4]), 1)
    assert_close(weights, numbers(*[[0.0, 1 / 4, 3 / 4]] * 2), "the weights beside -inf")


@pytest.mark.exercise("softmax")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_softmax_keeps_the_dtype(impl, dtype):
    weights = impl.softmax(numbers([0.0, LN3], dtype=dtype), -1)
    assert_close(weights, numbers([1 / 4, 3 / 4], dtype=dtype), "the weights, in x's dtype")


@pytest.mark.exercise("softmax")
def test_the_gradient_passes_through_the_sum(impl):
    # y = (1/4, 3/4), upstream g = (3, 1): y (g - y.g) with y.g = 3/2, so (3/8, -3/8)
    # with the sum taken for a constant: y g = (3/4, 3/4)
    x = numbers(0.0, LN3).requires_grad_()
    impl.softmax(x, 0).backward(numbers(3.0, 1.0))
    assert_close(x.grad, numbers(3 / 8, -3 / 8), "the gradient of x")


@pytest.mark.exercise("softmax")
def test_softmax_passes_gradcheck(impl):
    x = normal(2, 3, 2).requires_grad_()
    right = gradcheck(lambda x: impl.softmax(x, 1), x, raise_exception=False)
    assert right, "the gradient of softmax(x, 1) is not what finite differences give"


@pytest.mark.exercise("softmax")
def test_softmax_does_not_change_x(impl):
    x = numbers([1.0, 2.0], [5.0, 3.0])
    impl.softmax(x, 1)
    assert_close(x, numbers([1.0, 2.0], [5.0, 3.0]), "x after the call")


@pytest.mark.exercise("softmax")
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    seed=st.integers(0, 9),
)
def test_softmax_agrees_with_reference(impl, reference, sizes, axis, seed):
    x, dim = normal(*sizes, seed=seed), axis % len(sizes)
    assert_close(impl.softmax(x, dim), reference.softmax(x, dim), "the weights")


# causal_mask -------------------------------------------------------------------------------


@pytest.mark.exercise("causal_mask")
def test_each_query_sees_the_past_and_itself(impl):
    # the cat sat: `the` sees itself, `cat` the first two, `sat` all three
    mask = zeros_and_ones(impl.causal_mask(3))
    assert_close(mask, [[0, 1, 1], [0, 0, 1], [0, 0, 0]], "1 where the key is in the future")


LAST_QUERIES = [
    pytest.param(1, 3, [[0, 0, 0]], id="1 of 3"),
    pytest.param(2, 3, [[0, 0, 1], [0, 0, 0]], id="2 of 3"),
    pytest.param(3, 5, [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], id="3 of 5"),
    pytest.param(2, 2, [[0, 1], [0, 0]], id="2 of 2"),
]


@pytest.mark.exercise("causal_mask")
@pytest.mark.parametrize(("t_q", "t_k", "expected"), LAST_QUERIES)
def test_the_queries_are_the_last_positions(impl, t_q, t_k, expected):
    # query i stands at t_k - t_q + i: keys after that are blocked
    mask = zeros_and_ones(impl.causal_mask(t_q, t_k))
    assert_close(mask, expected, "1 where the key is in the future")


@pytest.mark.exercise("causal_mask")
def test_each_call_gives_a_new_mask(impl):
    # joined in place with a padding mask, as in `mask |= padding`, the first must not stay so
    mask = impl.causal_mask(2)
    mask |= True
    again = zeros_and_ones(impl.causal_mask(2))
    assert_close(again, [[0, 1], [0, 0]], "the mask of a second call")


BAD_SIZES = [
    pytest.param(4, 3, id="more queries than keys"),
    pytest.param(0, 3, id="no query"),
    pytest.param(0, None, id="no query and no key"),
    pytest.param(-1, 3, id="negative"),
    pytest.param(2, 0, id="no key"),
]


@pytest.mark.exercise("causal_mask")
@pytest.mark.parametrize(("t_q", "t_k"), BAD_SIZES)
def test_causal_mask_refuses(impl, t_q, t_k):
    refuses(ValueError, "t_q", impl.causal_mask, t_q, t_k)


@pytest.mark.exercise("causal_mask")
@given(t_q=st.integers(1, 5), earlier=st.integers(0, 4))
def test_causal_mask_agrees_with_reference(impl, reference, t_q, earlier):
    expected = reference.causal_mask(t_q, t_q + earlier)
    assert_close(impl.causal_mask(t_q, t_q + earlier), expected, "the mask, True = blocked")


# padding_mask ------------------------------------------------------------------------------


@pytest.mark.exercise("padding_mask")
def test_keys_after_the_real_tokens_are_blocked(impl):
    # lengths 2, 0 and 3 of 4: nothing is left of the second row
    mask = zeros_and_ones(impl.padding_mask([2, 0, 3], 4))
    expected = [[[[0, 0, 1, 1]]], [[[1, 1, 1, 1]]], [[[0, 0, 0, 1]]]]
    assert_close(mask, expected, "1 where the key is padding")


@pytest.mark.exercise("padding_mask")
def test_padding_joins_a_causal_mask_by_or(impl):
    # two real tokens of three: the causal triangle, and the last key blocked for every query
    mask = zeros_and_ones(blocked([0, 1, 1], [0, 0, 1], [0, 0, 0]) | impl.padding_mask([2], 3))
    assert_close(mask, [[[[0, 1, 1], [0, 0, 1], [0, 0, 1]]]], "causal | padding")


@pytest.mark.exercise("padding_mask")
def test_each_row_has_its_own_length_when_all_sizes_are_equal(impl):
    # three rows of three: a mask without the two middle axes would broadcast over them unseen
    mask = zeros_and_ones(impl.padding_mask([1, 2, 3], 3))
    expected = [[[[0, 1, 1]]], [[[0, 0, 1]]], [[[0, 0, 0]]]]
    assert_close(mask, expected, "1 where the key is padding")


INTEGERS = [torch.int64, torch.int32, torch.uint8]


@pytest.mark.exercise("padding_mask")
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_lengths_may_be_a_tensor_of_any_integer_dtype(impl, dtype):
    mask = zeros_and_ones(impl.padding_mask(torch.tensor([1, 2], dtype=dtype), 3))
    assert_close(mask, [[[[0, 1, 1]]], [[[0, 0, 1]]]], "1 where the key is padding")


@pytest.mark.exercise("padding_mask")
def test_small_integers_count_past_their_own_range(impl):
    # 200 fits a byte, 300 does not: keys 200 to 299 are blocked
    mask = zeros_and_ones(impl.padding_mask(torch.tensor([200], dtype=torch.uint8), 300))
    assert_close(mask, [[[[0] * 200 + [1] * 100]]], "1 where the key is padding")


@pytest.mark.exercise("padding_mask")
def test_padding_mask_does_not_change_lengths(impl):
    lengths = torch.tensor([2, 0, 3])
    impl.padding_mask(lengths, 4)
    assert_close(lengths, torch.tensor([2, 0, 3]), "lengths after the call")


BAD_LENGTHS = [
    pytest.param([1, 4], id="longer than max_length"),
    pytest.param([-1, 2], id="negative"),
    pytest.param([1.0, 2.0], id="floats"),
    pytest.param(torch.tensor([True, False]), id="bools"),
    pytest.param([[1, 2]], id="two axes"),
    pytest.param(torch.tensor(2), id="no axis"),
]


@pytest.mark.exercise("padding_mask")
@pytest.mark.parametrize("lengths", BAD_LENGTHS)
def test_padding_mask_refuses(impl, lengths):
    refuses(ValueError, "lengths", impl.padding_mask, lengths, 3)


@pytest.mark.exercise("padding_mask")
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), more=st.integers(0, 2))
def test_padding_mask_agrees_with_reference(impl, reference, lengths, more):
    max_length = max(lengths) + more
    expected = reference.padding_mask(lengths, max_length)
    assert_close(impl.padding_mask(lengths, max_length), expected, "the mask, True = blocked")


# scaled_dot_product_attention --------------------------------------------------------------


def attend(impl, q, k, v, mask=None):
    """The output and the weights."""
    result = impl.scaled_dot_product_attention(q, k, v, mask, return_weights=True)
    assert isinstance(result, tuple), "return_weights=True gives (out, weights)"
    return result


def weights_of(impl, q, k, mask=None):
    """The weights alone, which do not depend on the values."""
    return attend(impl, q, k, k, mask)[1]


@pytest.mark.exercise("scaled_dot_product_attention")
def test_the_nearer_key_gets_more_weight(impl):
    # scores 1/sqrt(2) and 0: weights 1 / (1 + exp(-1/sqrt(2))) = 0.6697615 and 0.3302385
    # not scaled: 0.7310586; divided by K = 2 and not by its root: 0.6224593
    weights = weights_of(impl, numbers([1, 0]), numbers([1, 0], [0, 1]))
    assert_close(weights, numbers([0.6697615, 0.3302385]), "the weights of the two keys", rtol=1e-6)


@pytest.mark.exercise("scaled_dot_product_attention")
def test_the_output_is_the_weighted_mean_of_the_values(impl):
    # scores 0 and ln 3: weights 1/4 and 3/4; values (4, 0, 8) and (8, 4, 0)
    q, k, v = numbers([1]), numbers([0], [LN3]), numbers([4, 0, 8], [8, 4, 0])
    out = impl.scaled_dot_product_attention(q, k, v)
    assert_close(
        out, numbers([7.0, 3.0, 2.0]), "a quarter of one value, three quarters of the other"
    )


@pytest.mark.exercise("scaled_dot_product_attention")
def test_the_weights_of_each_query_sum_to_one(impl):
    # scores q k^T = [[0, ln 3], [0, 0]]: rows (1, 3) / 4 and (1, 1) / 2
    # softmax over the queries: columns (1, 1) / 2 and (3, 1) / 4
    weights = weights_of(impl, numbers([1], [0]), numbers([0], [LN3]))
    assert_close(weights, numbers([1 / 4, 3 / 4], [1 / 2, 1 / 2]), "the weights, a row per query")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_scores_are_divided_by_the_root_of_the_head_width(impl):
    # three heads of width 4, all ones against ones and zeros: scores 4 / sqrt(4) = 2 and 0
    # by the model's width 12: 4 / sqrt(12) = 1.155; by the number of heads: 4 / sqrt(3) = 2.309
    q, k = normal(2, 3, 1, 4), normal(2, 3, 2, 4)
    q[...] = 1.0
    k[:, :, 0], k[:, :, 1] = 1.0, 0.0
    first = 1 / (1 + math.exp(-2))
    assert_close(
        weights_of(impl, q, k), numbers(*[[[[first, 1 - first]]] * 3] * 2), "sigmoid(2), the rest"
    )


@pytest.mark.exercise("scaled_dot_product_attention")
def test_a_blocked_key_gets_no_weight(impl):
    # scores 2, 1, 3, the last blocked: softmax of 2 and 1 is sigmoid(1) = 0.7310586, 0.2689414
    # multiplied by zero instead: 0.6652410, 0.2447285, 0.0900306
    # zeroed after the softmax: 0.2447285, 0.0900306, 0; turned around: 0, 0, 1
    weights = weights_of(impl, numbers([1]), numbers([2], [1], [3]), blocked([0, 0, 1]))
    assert_close(
        weights, numbers([0.7310586, 0.2689414, 0.0]), "the weights of three keys", rtol=1e-6
    )


@pytest.mark.exercise("scaled_dot_product_attention")
def test_zero_queries_under_a_causal_mask_give_the_running_mean(impl):
    # equal scores: 1, (1 + 2) / 2, (1 + 2 + 6) / 3; with the mask turned around: 4, 6, 0
    zero, mask = numbers([0], [0], [0]), blocked([0, 1, 1], [0, 0, 1], [0, 0, 0])
    out = impl.scaled_dot_product_attention(zero, zero, numbers([1], [2], [6]), mask)
    assert_close(out, numbers([1.0], [1.5], [3.0]), "the running mean of 1, 2, 6")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_without_a_mask_every_query_sees_every_key(impl):
    # equal scores: (1 + 2 + 6) / 3 for each of three queries
    zero = numbers([0], [0], [0])
    out = impl.scaled_dot_product_attention(zero, zero, numbers([1], [2], [6]))
    assert_close(out, numbers([3.0], [3.0], [3.0]), "the mean of 1, 2, 6, three times")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_each_row_of_the_batch_has_its_own_padding(impl):
    # equal scores, values 1, 2, 6; lengths 1, 2, 3: means 1, 1.5, 3, in both heads
    q, k = torch.zeros(3, 2, 1, 4), torch.zeros(3, 2, 3, 4)
    v = torch.tensor([1.0, 2.0, 6.0])[:, None].repeat(3, 2, 1, 1)
    mask = blocked([0, 1, 1], [0, 0, 1], [0, 0, 0])[:, None, None, :]
    out = impl.scaled_dot_product_attention(q, k, v, mask)
    assert_close(out, [[[[1.0]]] * 2, [[[1.5]]] * 2, [[[3.0]]] * 2], "the mean of each row's own")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_a_query_that_sees_no_key_gets_zeros(impl):
    # the first query sees key 0 alone, the second none
    q, k, v = numbers([1], [1]), numbers([2], [3]), numbers([5, 7], [11, 13])
    out, weights = attend(impl, q, k, v, blocked([0, 1], [1, 1]))
    assert_close(weights, numbers([1.0, 0.0], [0.0, 0.0]), "the weights")
    assert_close(out, numbers([5.0, 7.0], [0.0, 0.0]), "the output")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_a_query_that_sees_no_key_hands_back_no_gradient(impl):
    # query 0: scores 0 and ln 3, weights w = (1/4, 3/4), values 0 and 4, upstream 2
    #   grad v = 2 w = (1/2, 3/2); grad w = (0, 8), times w: 6
    #   grad scores = w (grad w - 6) = (-3/2, 3/2); grad q = 3/2 ln 3; grad k = grad scores
    # query 1 sees nothing: its upstream 7 must add 0, and no NaN
    q = numbers([1], [1]).requires_grad_()
    k = numbers([0], [LN3]).requires_grad_()
    v = numbers([0], [4]).requires_grad_()
    out = impl.scaled_dot_product_attention(q, k, v, blocked([0, 0], [1, 1]))
    out.backward(numbers([2], [7]))
    assert_close(q.grad, numbers([1.5 * LN3], [0.0]), "the gradient of q")
    assert_close(k.grad, numbers([-1.5], [1.5]), "the gradient of k")
    assert_close(v.grad, numbers([0.5], [1.5]), "the gradient of v")


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_stands_a_left_padded_causal_row(impl, dtype):
    # key 0 is padding: query 0 sees nothing, query 1 itself; scores -20, far below where
    # the smallest half, -65504, plus the score is still finite; upstream 2 and 7
    q = numbers([1], [1], dtype=dtype).requires_grad_()
    k = numbers([-20], [-20], dtype=dtype)
    v = numbers([3], [5], dtype=dtype).requires_grad_()
    mask = blocked([1, 1], [1, 0])
    out, weights = attend(impl, q, k, v, mask)
    out.backward(numbers([2], [7], dtype=dtype))
    assert_close(weights, numbers([0.0, 0.0], [0.0, 1.0], dtype=dtype), "the weights")
    assert_close(v.grad, numbers([0.0], [7.0], dtype=dtype), "the gradient of v")
    assert_close(q.grad, numbers([0.0], [0.0], dtype=dtype), "the gradient of q")


FAR = [pytest.param(-2e4, id="far below zero"), pytest.param(2e4, id="far above zero")]


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("score", FAR)
def test_blocked_keys_lose_to_any_score(impl, score):
    # scores s and s - 1, the third key blocked at 0: sigmoid(1) and the rest
    # a fill of -10000 wins against -20000 and takes all the weight
    q, k = numbers([1]), numbers([score], [score - 1], [0])
    weights = weights_of(impl, q, k, blocked([0, 0, 1]))
    assert_close(
        weights, numbers([0.7310586, 0.2689414, 0.0]), "the weights of three keys", rtol=1e-6
    )


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("changed", ["k", "v"])
def test_the_future_leaks_neither_through_keys_nor_through_values(impl, reference, changed):
    # positions 3 and 4 become others: what 0, 1 and 2 give stays as it was
    q, k, v = (normal(2, 3, 5, 4, seed=seed) for seed in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    before = reference.scaled_dot_product_attention(q, k, v, mask)
    future = {"k": k, "v": v}[changed]
    future[..., 3:, :] = 10 * normal(2, 3, 2, 4, seed=3)
    out = impl.scaled_dot_product_attention(q, k, v, mask)
    assert_close(out[..., :3, :], before[..., :3, :], f"positions 0 to 2, with another {changed}")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_a_padded_row_gives_what_it_gives_alone(impl, reference):
    # lengths 2 and 4 of 4
    q, k, v = (normal(2, 3, 4, 5, seed=seed) for seed in range(3))
    mask = blocked([0, 0, 1, 1], [0, 0, 0, 0])[:, None, None, :]
    alone = reference.scaled_dot_product_attention(*(x[0, :, :2] for x in (q, k, v)))
    out = impl.scaled_dot_product_attention(q, k, v, mask)
    assert_close(out[0, :, :2], alone, "the real positions of the shorter row")


MASKS = [
    pytest.param(None, id="no mask"),
    pytest.param(torch.ones(4, 6, dtype=torch.bool).triu(3), id="causal"),
    pytest.param((torch.arange(6) >= torch.tensor([3, 6])[:, None])[:, None, None], id="padding"),
    pytest.param(torch.arange(6) >= 4, id="keys alone"),
    pytest.param(torch.tensor([True, False, False])[:, None, None], id="a head that sees nothing"),
    pytest.param(torch.arange(4)[:, None] == 1, id="a query that sees nothing"),
]


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_agrees_with_torch(impl, mask, dtype):
    # PyTorch's mask has the other polarity, True = may attend, and zeros where all is blocked
    q = normal(2, 3, 4, 8, seed=0, dtype=dtype)
    k = normal(2, 3, 6, 8, seed=1, dtype=dtype)
    v = normal(2, 3, 6, 8, seed=2, dtype=dtype)
    attended = None if mask is None else ~mask.expand(2, 3, 4, 6)
    expected = F.scaled_dot_product_attention(q, k, v, attended)
    out = impl.scaled_dot_product_attention(q, k, v, mask)
    assert_close(out, expected, "the output, against PyTorch's")


LEADING = [
    pytest.param((), id="T,K"),
    pytest.param((2,), id="B,T,K"),
    pytest.param((2, 3), id="B,H,T,K"),
    pytest.param((2, 1, 3), id="three leading axes"),
]


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("leading", LEADING)
def test_any_leading_axes_will_do(impl, leading):
    # two queries, three keys with scores ln 3, 0, 0 and values 5, 10, 0: (3 5 + 10) / 5 = 5
    q, k, v = numbers([2], [2]), numbers([LN3 / 2], [0], [0]), numbers([5], [10], [0])
    q, k, v = (x.repeat(*leading, 1, 1) for x in (q, k, v))
    out = impl.scaled_dot_product_attention(q, k, v)
    assert_close(out, torch.full((*leading, 2, 1), 5.0, dtype=torch.float64), "the output")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_equal_sizes_hide_no_exchanged_axes(impl):
    # B = H = T = S = K = 2, so that any two axes could be exchanged without an error
    q, k, v = (normal(2, 2, 2, 2, seed=seed) for seed in range(3))
    out = impl.scaled_dot_product_attention(q, k, v)
    assert_close(out, F.scaled_dot_product_attention(q, k, v), "the output, against PyTorch's")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_only_the_output_comes_back_unless_weights_are_asked_for(impl):
    # one key: all weight on it
    out = impl.scaled_dot_product_attention(numbers([1]), numbers([1]), numbers([5, 7]))
    assert_close(out, numbers([5.0, 7.0]), "the output alone")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_attention_changes_none_of_its_inputs(impl):
    q, k, v = (normal(2, 3, 4, seed=seed) for seed in range(3))
    mask = blocked([1, 1, 1], [0, 0, 1], [0, 0, 0])
    impl.scaled_dot_product_attention(q, k, v, mask)
    for seed, (name, x) in enumerate({"q": q, "k": k, "v": v}.items()):
        assert_close(x, normal(2, 3, 4, seed=seed), f"{name} after the call")
    assert_close(mask, blocked([1, 1, 1], [0, 0, 1], [0, 0, 0]), "mask after the call")


@pytest.mark.exercise("scaled_dot_product_attention")
def test_attention_passes_gradcheck(impl):
    # the first query sees nothing, the second all, the third two keys
    q, k, v = normal(2, 3, 2), normal(2, 4, 2, seed=1), normal(2, 4, 1, seed=2)
    mask = blocked([1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1])
    right = gradcheck(
        lambda q, k, v: impl.scaled_dot_product_attention(q, k, v, mask),
        [x.requires_grad_() for x in (q, k, v)],
        raise_exception=False,
    )
    assert right, "the gradients of q, k and v are not what finite differences give"


BAD_MASKS = [
    pytest.param(torch.tensor([[0.0, 1.0, 0.0]]), id="floats 0 and 1"),
    pytest.param(torch.tensor([[0, 1, 0]]), id="integers 0 and 1"),
    pytest.param(torch.tensor([[0, 1, 0]], dtype=torch.uint8), id="bytes 0 and 1"),
    pytest.param(torch.tensor([[0.0, -math.inf, 0.0]]), id="floats to add"),
    pytest.param(torch.zeros(4, 1, 1, 3, dtype=torch.bool), id="more axes than the scores"),
    pytest.param(torch.zeros(5, 1, 3, dtype=torch.bool), id="another leading axis"),
    pytest.param(torch.zeros(3, 2, dtype=torch.bool), id="S and T exchanged"),
]


@pytest.mark.exercise("scaled_dot_product_attention")
@pytest.mark.parametrize("mask", BAD_MASKS)
def test_attention_refuses_a_bad_mask(impl, mask):
    q, k = torch.zeros(1, 2, 4), torch.zeros(1, 3, 4)
    refuses(ValueError, "mask", impl.scaled_dot_product_attention, q, k, k, mask)


@pytest.mark.exercise("scaled_dot_product_attention")
@given(
    leading=st.lists(st.integers(1, 3), max_size=2),
    t_q=st.integers(1, 3),
    t_k=st.integers(1, 4),
    width=st.integers(1, 3),
    value_width=st.integers(1, 3),
    seed=st.integers(0, 9),
    masked=st.booleans(),
)
def test_attention_agrees_with_reference(
    impl, reference, leading, t_q, t_k, width, value_width, seed, masked
):
    q = normal(*leading, t_q, width, seed=seed)
    k = normal(*leading, t_k, width, seed=seed + 10)
    v = normal(*leading, t_k, value_width, seed=seed + 20)
    mask = normal(*leading, t_q, t_k, seed=seed + 30) > 0 if masked else None
    out, weights = attend(impl, q, k, v, mask)
    expected_out, expected_weights = attend(reference, q, k, v, mask)
    assert_close(weights, expected_weights, "the weights")
    assert_close(out, expected_out, "the output")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise("softmax", "causal_mask", "padding_mask", "scaled_dot_product_attention")
def test_the_file_as_written_agrees_with_torch(impl):
    # two cached keys and three new ones, the second row without its last token
    q, k, v = normal(2, 3, 3, 4), normal(2, 3, 5, 4, seed=1), normal(2, 3, 5, 4, seed=2)
    mask = impl.causal_mask(3, 5) | impl.padding_mask([5, 4], 5)
    out, weights = attend(impl, q, k, v, mask)
    expected = F.scaled_dot_product_attention(q, k, v, ~mask)
    assert_close(out, expected, "causal and padded attention")
    assert_close(impl.softmax(weights.log(), dim=-1), weights, "softmax of the weights' logarithms")
