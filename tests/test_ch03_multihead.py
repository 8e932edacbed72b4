"""Chapter 3: multi-head attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grader.checks import assert_close, refuses

LOG3 = math.log(3)  # a match of 1 then weighs 3, against 1 for a match of 0


def places(B, T, H, K):
    """x (B, T, D) and the same numbers as heads (B, H, T, K); each spells its place as b t h k."""
    b, t, h, k = torch.meshgrid(*map(torch.arange, (B, T, H, K)), indexing="ij")
    number = (1000 * b + 100 * t + 10 * h + k).double()  # (B, T, H, K)
    return number.flatten(2), number.transpose(1, 2).contiguous()


SIZES = [
    pytest.param(2, 5, 3, 4, id="all sizes different"),
    pytest.param(3, 3, 3, 3, id="all sizes equal"),
]


# split_heads -------------------------------------------------------------------------------


@pytest.mark.exercise("split_heads")
def test_each_head_takes_its_own_columns_of_every_token(impl):
    # tokens 0 1 2 3, 4 5 6 7 and 8 9 10 11; head 0 takes columns 0 and 1, head 1 columns 2 and 3
    # a reshape to (1, 2, 3, 2) without a transpose gives head 1 = 6 7, 8 9, 10 11
    heads = impl.split_heads(torch.arange(12.0).reshape(1, 3, 4), 2)
    expected = [[[[0.0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]]
    assert_close(heads, expected, "heads (B, H, T, K)")


@pytest.mark.exercise("split_heads")
@pytest.mark.parametrize(("B", "T", "H", "K"), SIZES)
def test_every_number_goes_to_its_batch_head_token_and_feature(impl, B, T, H, K):
    # 1234 must stand at batch 1, token 2, head 3, feature 4
    x, heads = places(B, T, H, K)
    assert_close(
        impl.split_heads(x, H), heads, "heads (B, H, T, K), each 1000 b + 100 t + 10 h + k"
    )


@pytest.mark.exercise("split_heads")
def test_the_gradient_of_a_split_goes_back_to_its_place(impl):
    # splitting only moves numbers, so an entry's gradient is the one that arrives at its new place
    # and 1 from the plain sum, which is all that an answer outside the graph would get
    x, upstream = places(2, 5, 3, 4)
    start = torch.zeros_like(x, requires_grad=True)
    ((impl.split_heads(start, 3) * upstream).sum() + start.sum()).backward()
    assert_close(start.grad, x + 1, "the gradient of x")


@pytest.mark.exercise("split_heads")
@pytest.mark.parametrize("n_heads", [4, 12, 0, -2], ids=["4 of 6", "12 of 6", "none", "negative"])
def test_split_heads_refuses_heads_that_do_not_divide_the_width(impl, n_heads):
    refuses(ValueError, "n_heads", impl.split_heads, torch.ones(2, 3, 6), n_heads)


@pytest.mark.exercise("split_heads")
@given(B=st.integers(1, 3), T=st.integers(1, 4), H=st.integers(1, 4), K=st.integers(1, 4))
def test_split_heads_agrees_with_reference(impl, reference, B, T, H, K):
    x = torch.arange(float(B * T * H * K)).reshape(B, T, H * K)
    assert_close(impl.split_heads(x, H), reference.split_heads(x, H), "heads (B, H, T, K)")


# merge_heads -------------------------------------------------------------------------------


@pytest.mark.exercise("merge_heads")
def test_the_heads_of_a_token_stand_side_by_side(impl):
    # sample 0: head 0 holds 0 1 and 2 3 for its two tokens, head 1 holds 4 5 and 6 7
    # sample 1 the same from 8 on; without a transpose the first token would be 0 1 2 3
    merged = impl.merge_heads(torch.arange(16.0).reshape(2, 2, 2, 2))
    expected = [[[0.0, 1, 4, 5], [2, 3, 6, 7]], [[8, 9, 12, 13], [10, 11, 14, 15]]]
    assert_close(merged, expected, "tokens (B, T, D)")


@pytest.mark.exercise("merge_heads")
@pytest.mark.parametrize(("B", "T", "H", "K"), SIZES)
def test_every_number_goes_back_to_its_batch_token_head_and_feature(impl, B, T, H, K):
    # 1234 stands at batch 1, head 3, token 2, feature 4, and must go to column 3 K + 4 of token 2
    x, heads = places(B, T, H, K)
    assert_close(impl.merge_heads(heads), x, "tokens (B, T, D), each 1000 b + 100 t + 10 h + k")


@pytest.mark.exercise("merge_heads")
def test_the_gradient_of_a_merge_goes_back_to_its_place(impl):
    upstream, heads = places(2, 5, 3, 4)
    start = torch.zeros_like(heads, requires_grad=True)
    ((impl.merge_heads(start) * upstream).sum() + start.sum()).backward()
    assert_close(start.grad, heads + 1, "the gradient of the heads")


@pytest.mark.exercise("merge_heads")
@given(B=st.integers(1, 3), T=st.integers(1, 4), H=st.integers(1, 4), K=st.integers(1, 4))
def test_merge_heads_undoes_split_heads(impl, reference, B, T, H, K):
    x = torch.arange(float(B * T * H * K)).reshape(B, T, H * K)
    assert_close(impl.merge_heads(reference.split_heads(x, H)), x, "x, split and merged")


@pytest.mark.exercise("merge_heads")
@given(B=st.integers(1, 3), T=st.integers(1, 4), H=st.integers(1, 4), K=st.integers(1, 4))
def test_merge_heads_agrees_with_reference(impl, reference, B, T, H, K):
    x = torch.arange(float(B * T * H * K)).reshape(B, H, T, K)
    assert_close(impl.merge_heads(x), reference.merge_heads(x), "tokens (B, T, D)")


# MultiHeadAttention.forward ------------------------------------------------------------------


def built(module, D, H, dropout=0.0, o_bias=None, **weights):
    """An attention with these weights for q, k, v and o; only o may have a bias.

    A weight is (D, D), as nn.Linear keeps it, or a number: a multiple of the identity. What is
    not given is the identity. Any dropout draw passes; the seed lets a failure repeat itself.
    """
    attention = module.MultiHeadAttention(D, H, dropout, o_bias is not None)
    with torch.no_grad():
        for name in "qkvo":
            weight = torch.as_tensor(weights.get(name, 1.0))
            projection = getattr(attention, f"{name}_proj")
            projection.weight.copy_(weight if weight.ndim else weight * torch.eye(D))
            if o_bias is not None:
                projection.bias.copy_(torch.tensor(o_bias) if name == "o" else torch.zeros(D))
    torch.manual_seed(0)
    return attention


def random_attention(module, H, K, dtype=torch.float64, seed=0):
    """An attention with biases, all numbers drawn here, projection by projection."""
    rng = torch.Generator().manual_seed(seed)
    attention = module.MultiHeadAttention(H * K, H, bias=True).to(dtype)
    with torch.no_grad():
        for name in "qkvo":
            projection = getattr(attention, f"{name}_proj")
            for parameter in (projection.weight, projection.bias):
                numbers = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
                parameter.copy_(numbers / math.sqrt(H * K))
    return attention


def random_input(*shape, dtype=torch.float64, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


def a_mask(kind, B, H, T, S):
    """A mask of the kind that a case names; "random" ones may block all keys of a query."""
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
    if kind == "padding":
        return (torch.arange(S) >= S - torch.arange(B)[:, None])[:, None, None]  # (B, 1, 1, S)
    shape = {"random": (B, 1, T, S), "random, by head": (B, H, T, S)}[kind]
    return torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.4


# Two heads of one feature each: the first column is head 0's whole world, the second is head 1's.
TOKENS = torch.tensor([[[1.0, 0], [0, 1], [1, 2]]])


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_each_head_mixes_its_values_by_its_own_scores(impl):
    # head 0 (q = k = v = 1 0 1): a query of 1 weighs 3 1 3 out of 7, a query of 0 weighs all alike:
    #   6/7, 2/3, 6/7
    # head 1 (0 1 2): query 0 weighs alike: 1; query 1 weighs 1 3 9: (3 + 18) / 13;
    #   query 2 weighs 1 9 81: (9 + 162) / 91
    out = built(impl, 2, 2, q=LOG3)(TOKENS)
    expected = [[[6 / 7, 1], [2 / 3, 21 / 13], [6 / 7, 171 / 91]]]
    assert_close(out, expected, "the heads side by side")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_each_head_gives_its_own_weights(impl):
    # as above, a row for each query: head 0 asks 1 0 of the keys 1 0 1, head 1 asks 0 1 of 0 1 2
    _, weights = built(impl, 2, 2, q=LOG3)(TOKENS[:, :2], TOKENS, return_weights=True)
    head_0 = [[3 / 7, 1 / 7, 3 / 7], [1 / 3, 1 / 3, 1 / 3]]
    head_1 = [[1 / 3, 1 / 3, 1 / 3], [1 / 13, 3 / 13, 9 / 13]]
    assert_close(weights, [[head_0, head_1]], "weights (B, H, T, S)")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_queries_come_from_x_and_keys_and_values_from_context(impl):
    # as many keys as queries, so every mix-up has the right shape
    # head 0: queries 1 0, keys and values 1 0: (3 * 1 + 1 * 0) / 4, and 1/2
    # head 1: queries 0 1, keys and values 1 3: 2, and weights 3 27: (3 * 1 + 27 * 3) / 30 = 2.8
    x, context = torch.tensor([[[1.0, 0], [0, 1]]]), torch.tensor([[[1.0, 1], [0, 3]]])
    out = built(impl, 2, 2, q=LOG3)(x, context)
    assert_close(out, [[[0.75, 2], [0.5, 2.8]]], "x asks, context answers")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_each_projection_does_its_own_work(impl):
    # tokens a = (1, 0), b = (0, 1); nn.Linear is x @ weight.T, so a row of a weight is an output
    # head 0: q reads log 3 of column 1 (a: 0, b: log 3), k reads column 0 (a: 1, b: 0), v reads
    #   4 of column 0 (a: 4, b: 0): query a weighs alike: 2; query b weighs 3 to 1: 3
    # head 1: q and k are 0, v reads 6 of column 1 (0, 6): 3 for both
    # o gives head 0 + 10 of head 1, and head 1: (32, 3) and (33, 3)
    q, k = torch.tensor([[0.0, LOG3], [0, 0]]), torch.tensor([[1.0, 0], [0, 0]])
    v, o = torch.tensor([[4.0, 0], [0, 6]]), torch.tensor([[1.0, 10], [0, 1]])
    out = built(impl, 2, 2, q=q, k=k, v=v, o=o)(torch.eye(2)[None])
    assert_close(out, [[[32.0, 3], [33, 3]]], "out")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_scores_are_divided_by_the_root_of_the_heads_width(impl):
    # two heads of width 4, and q doubles: scores are 2 log 3 (q k) / sqrt(4) = log 3 (q k)
    # head 0 of a matches itself with 1, head 1 with 2, b matches nothing: 3 to 1 and 9 to 1
    # divided by sqrt(8), the whole width: 0.6850 in place of 0.75
    a, b = [1.0, 0, 0, 0, 1, 1, 0, 0], [0.0] * 8
    out = built(impl, 8, 2, q=2 * LOG3)(torch.tensor([[a, b]]))
    expected = [[[0.75, 0, 0, 0, 0.9, 0.9, 0, 0], [0.5, 0, 0, 0, 0.5, 0.5, 0, 0]]]
    assert_close(out, expected, "out")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_samples_of_a_batch_do_not_see_each_other(impl):
    # queries of 0 average each sample on its own: 1 2 6 to 3, 10 20 60 to 30, 0 0 0 to 0
    # and 100 more in the other head
    column = torch.tensor([[1.0, 2, 6], [10, 20, 60], [0, 0, 0]])
    out = built(impl, 2, 2, q=0.0)(torch.stack([column, column + 100], dim=-1))
    mean = [[[m, m + 100.0]] * 3 for m in (3.0, 30.0, 0.0)]
    assert_close(out, mean, "the mean of each sample")


# A mask of True = blocked. Queries of 0 give equal weights to what is left.
COLUMNS = torch.tensor([[[1.0, 10], [2, 20], [6, 60]]])


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_mask_of_two_axes_blocks_where_it_is_true(impl):
    # causal: means of 1, of 1 2, of 1 2 6
    mask = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]]).bool()
    out = built(impl, 2, 2, q=0.0)(COLUMNS, mask=mask)
    assert_close(out, [[[1.0, 10], [1.5, 15], [3, 30]]], "the running mean")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_padding_mask_hides_keys_and_not_queries(impl):
    # lengths 3, 2, 1 in a mask (B, 1, 1, S): means of 1 2 6, of 1 2 and of 1, at every query
    mask = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 1]]).bool()[:, None, None]
    out = built(impl, 2, 2, q=0.0)(COLUMNS.expand(3, 3, 2), mask=mask)
    expected = [[[3.0, 30]] * 3, [[1.5, 15]] * 3, [[1.0, 10]] * 3]
    assert_close(out, expected, "the mean over each row's real tokens")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_mask_of_four_axes_may_differ_between_heads(impl):
    # head 0 must not see token 2, head 1 must not see token 0: means of 1 2, and of 20 60
    mask = torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()[None, :, None]  # (1, H, 1, S)
    out = built(impl, 2, 2, q=0.0)(COLUMNS, mask=mask)
    assert_close(out, [[[1.5, 40.0]] * 3], "each head under its own mask")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_mask_holds_for_a_context_too(impl):
    # two queries, three keys of context: the first sees 1, the second 2 and 6
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]]).bool()
    out = built(impl, 2, 2, q=0.0)(torch.zeros(1, 2, 2), COLUMNS, mask)
    assert_close(out, [[[1.0, 10], [4, 40]]], "the means of what each query sees")


# The first of two queries sees nothing, the second sees the first token.
BLIND = torch.tensor([[1, 1], [0, 1]]).bool()


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_query_that_sees_nothing_gets_the_output_bias(impl):
    # o_proj gets 0 and gives its bias (7, 8); the second query adds the first token, (1, 10)
    out = built(impl, 2, 2, q=0.0, o_bias=(7.0, 8.0))(COLUMNS[:, :2], mask=BLIND)
    assert_close(out, [[[7.0, 8], [8, 18]]], "out")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_query_that_sees_nothing_has_weights_of_zero(impl):
    _, weights = built(impl, 2, 2, q=0.0)(COLUMNS[:, :2], mask=BLIND, return_weights=True)
    assert_close(weights, [[[[0.0, 0], [1, 0]]] * 2], "weights (B, H, T, S)")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_query_that_sees_nothing_leaves_the_gradients_finite(impl):
    # upstream (3, -5) reaches no one, (2, 4) reaches the one token that was seen
    x = COLUMNS[:, :2].clone().requires_grad_()
    out = built(impl, 2, 2, q=0.0)(x, mask=BLIND)
    (grad,) = torch.autograd.grad(out, x, torch.tensor([[[3.0, -5], [2, 4]]]))
    assert_close(grad, [[[2.0, 4], [0, 0]]], "the gradient of x")


# Dropout: with probability 1 nothing is left to chance.


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_in_training_dropout_acts_between_weights_and_output_projection(impl):
    # every weight is dropped: o_proj gets 0 and gives its bias, whatever the tokens are
    attention = built(impl, 2, 2, dropout=1.0, o_bias=(7.0, 8.0), q=LOG3).train()
    assert_close(attention(TOKENS), [[[7.0, 8]] * 3], "out when every weight is dropped")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_in_training_weights_are_given_as_before_dropout(impl):
    # queries and keys 1 0 and 0 1, a match weighs 3 to 1; dropped, each would be 0 or twice as much
    attention = built(impl, 2, 2, dropout=0.5, q=LOG3).train()
    _, weights = attention(TOKENS[:, :2], return_weights=True)
    expected = [[[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.25, 0.75]]]]
    assert_close(weights, expected, "weights (B, H, T, S)")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_in_evaluation_nothing_is_dropped(impl):
    # as without dropout: head 0 mixes 1 0 by 3 to 1 and evenly, head 1 mixes 0 1; then the bias
    attention = built(impl, 2, 2, dropout=1.0, o_bias=(7.0, 8.0), q=LOG3).eval()
    assert_close(attention(TOKENS[:, :2]), [[[7.75, 8.5], [7.5, 8.75]]], "out in evaluation")


def values_that_show_the_weights(impl):
    """What half a dropout leaves of 120 weights of 1/4: (B, T, H, 2, S).

    The value of token j is 1 at feature j and at feature S + j of each head, so the mixture shows
    each weight twice.
    """
    B, T, S, H = 3, 5, 4, 2
    context = torch.eye(S).repeat(B, 1, 2 * H)  # (B, S, H * 2 * S)
    attention = built(impl, H * 2 * S, H, dropout=0.5, q=0.0).train()
    return attention(torch.zeros(B, T, H * 2 * S), context).reshape(B, T, H, 2, S)


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_dropped_weight_takes_the_whole_value_with_it(impl):
    # two features with equal values: they stay or go together, whichever weights are drawn
    shown = values_that_show_the_weights(impl)
    assert_close(shown[..., 1, :], shown[..., 0, :], "the second showing of each weight")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_a_weight_that_stays_is_divided_by_what_is_kept(impl):
    # each weight of 1/4 becomes 0, or (1/4) / (1 - 0.5) = 1/2: a (a - 1/2) is 0 for these two only
    shown = values_that_show_the_weights(impl)
    assert_close(shown * (shown - 0.5), torch.zeros(3, 5, 2, 2, 4), "a (a - 1/2) for each weight a")


AXES = [
    pytest.param(0, id="samples"),
    pytest.param(1, id="queries"),
    pytest.param(2, id="heads"),
    pytest.param(4, id="keys"),
]


@pytest.mark.exercise("MultiHeadAttention.forward")
@pytest.mark.parametrize("axis", AXES)
def test_every_weight_is_drawn_on_its_own(impl, axis):
    # 120 draws: that none of them differs along an axis by chance has probability 2^-60 or less
    shown = values_that_show_the_weights(impl)
    first = shown.narrow(axis, 0, 1)
    assert not torch.equal(shown, first.expand_as(shown)), "one draw serves the whole axis"


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_in_training_a_query_that_sees_nothing_gets_the_output_bias(impl):
    attention = built(impl, 2, 2, dropout=0.5, o_bias=(7.0, 8.0), q=0.0).train()
    out = attention(COLUMNS[:, :2], mask=torch.ones(2, 2).bool())
    assert_close(out, [[[7.0, 8], [7, 8]]], "out")


# Against PyTorch's own.


def torchs_own(attention, H):
    """nn.MultiheadAttention with the weights of this one."""
    weight = attention.o_proj.weight
    own = nn.MultiheadAttention(len(weight), H, batch_first=True, dtype=weight.dtype)
    rows = [getattr(attention, f"{name}_proj") for name in "qkv"]
    state = {
        "in_proj_weight": torch.cat([row.weight for row in rows]),
        "in_proj_bias": torch.cat([row.bias for row in rows]),
        "out_proj.weight": weight,
        "out_proj.bias": attention.o_proj.bias,
    }
    own.load_state_dict(state)
    return own


KINDS = [
    pytest.param(5, "none", id="self-attention"),
    pytest.param(5, "causal", id="causal"),
    pytest.param(5, "padding", id="padding"),
    pytest.param(7, "none", id="cross-attention"),
    pytest.param(7, "padding", id="cross-attention, padding"),
    pytest.param(7, "causal", id="the last queries of a longer context"),
]


@pytest.mark.exercise("MultiHeadAttention.forward")
@pytest.mark.parametrize(("S", "kind"), KINDS)
def test_out_and_weights_equal_those_of_nn_multiheadattention(impl, S, kind):
    B, T, H, K = 2, 5, 3, 4
    attention = random_attention(impl, H, K, torch.float32)
    x = random_input(B, T, H * K, dtype=torch.float32)
    context = None if S == T else random_input(B, S, H * K, dtype=torch.float32, seed=3)
    mask = a_mask(kind, B, H, T, S)
    out, weights = attention(x, context, mask, return_weights=True)

    source = x if context is None else context
    rows = None if mask is None else mask.expand(B, H, T, S).flatten(0, 1)  # (B * H, T, S)
    own = torchs_own(attention, H)
    expected = own(x, source, source, attn_mask=rows, average_attn_weights=False)
    assert_close(out, expected[0], "out", rtol=0, atol=1e-5)
    assert_close(weights, expected[1], "weights", rtol=0, atol=1e-5)


@pytest.mark.exercise("MultiHeadAttention.forward")
@pytest.mark.parametrize("S", [5, 7], ids=["self-attention", "cross-attention"])
def test_gradients_equal_those_of_nn_multiheadattention(impl, S):
    # a random upstream gradient; in_proj holds q, k and v below each other
    T, H, K = 5, 3, 4
    attention = random_attention(impl, H, K)
    own = torchs_own(attention, H)
    x = random_input(2, T, H * K).requires_grad_()
    context = None if S == T else random_input(2, S, H * K, seed=3).requires_grad_()
    source, inputs = (x, [x]) if context is None else (context, [x, context])
    upstream = random_input(2, T, H * K, seed=4)

    projections = [getattr(attention, f"{name}_proj") for name in "qkvo"]
    parameters = [p.weight for p in projections] + [p.bias for p in projections]
    out = attention(x, context)
    grads = torch.autograd.grad(out, inputs + parameters, upstream, materialize_grads=True)
    parameters = [own.in_proj_weight, own.out_proj.weight, own.in_proj_bias, own.out_proj.bias]
    expected = torch.autograd.grad(own(x, source, source)[0], inputs + parameters, upstream)
    n = len(inputs)
    assert_close(torch.cat(grads[:n], 1), torch.cat(expected[:n], 1), "gradients of x, context")
    assert_close(torch.cat(grads[n:-4]), torch.cat(expected[n:-2]), "gradients of q, k, v, o")
    assert_close(torch.cat(grads[-4:]), torch.cat(expected[-2:]), "gradients of their biases")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_gradients_agree_with_finite_differences(impl):
    # with a mask under which query 0 of sample 0 sees nothing
    attention = random_attention(impl, 2, 3)
    x = random_input(2, 3, 6).requires_grad_()
    context = random_input(2, 4, 6, seed=3).requires_grad_()
    mask = torch.zeros(2, 1, 3, 4).bool()
    mask[0, 0, 0] = mask[1, 0, 2, 1] = True
    right = torch.autograd.gradcheck(
        lambda x, context: attention(x, context, mask, return_weights=True),
        (x, context),
        raise_exception=False,
    )
    assert right, "the gradients of x or context are not those of finite differences"


# What comes in.


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_nothing_that_came_in_is_changed(impl):
    x, context = random_input(2, 3, 6), random_input(2, 5, 6, seed=3)
    mask = a_mask("causal", 2, 2, 3, 5)
    random_attention(impl, 2, 3)(x, context, mask)
    assert_close(x, random_input(2, 3, 6), "x after the call")
    assert_close(context, random_input(2, 5, 6, seed=3), "context after the call")
    assert_close(mask, a_mask("causal", 2, 2, 3, 5), "mask after the call")


@pytest.mark.exercise("MultiHeadAttention.forward")
def test_no_call_remembers_the_one_before(impl):
    # a context and a mask that leaves its last token; another context and no mask; no context
    attention = built(impl, 2, 2, q=0.0)
    attention(COLUMNS, 5 * COLUMNS, torch.tensor([[True, True, False]] * 3))
    assert_close(attention(COLUMNS, 2 * COLUMNS), [[[6.0, 60]] * 3], "the mean, in a second call")
    assert_close(attention(COLUMNS), [[[3.0, 30]] * 3], "the mean, in a third call")


BAD_MASKS = [
    pytest.param(torch.zeros(2, 3, 3).bool(), id="three axes, as many samples as heads"),
    pytest.param(torch.zeros(1, 3, 3).bool(), id="three axes, the first of size 1"),
    pytest.param(torch.zeros(3).bool(), id="one axis"),
    pytest.param(torch.zeros(2, 3).bool(), id="one row for each sample"),
    pytest.param(torch.zeros(1, 3, 3, 3).bool(), id="another number of heads"),
    pytest.param(torch.zeros(3, 3), id="floats"),
    pytest.param(torch.zeros(3, 3).long(), id="integers"),
]


@pytest.mark.exercise("MultiHeadAttention.forward")
@pytest.mark.parametrize("mask", BAD_MASKS)
def test_forward_refuses_a_bad_mask(impl, mask):
    refuses(ValueError, "mask", built(impl, 4, 2), torch.ones(2, 3, 4), None, mask)


BAD_INPUTS = [
    pytest.param((3, 4), (2, 5, 4), "x", id="x without a batch"),
    pytest.param((2, 3, 4), (5, 4), "context", id="context without a batch"),
    pytest.param((2, 3, 4), (1, 5, 4), "context", id="one context for two samples"),
]


@pytest.mark.exercise("MultiHeadAttention.forward")
@pytest.mark.parametrize(("x", "context", "argument"), BAD_INPUTS)
def test_forward_refuses_inputs_that_do_not_belong_together(impl, x, context, argument):
    refuses(ValueError, argument, built(impl, 4, 2), torch.ones(x), torch.ones(context))


@pytest.mark.exercise("MultiHeadAttention.forward")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    S=st.integers(0, 4),
    H=st.integers(1, 3),
    K=st.integers(1, 3),
    kind=st.sampled_from(["none", "padding", "random", "random, by head"]),
)
def test_forward_agrees_with_reference(impl, reference, B, T, S, H, K, kind):
    # S = 0 stands for self-attention
    x, context = random_input(B, T, H * K), random_input(B, S, H * K, seed=3) if S else None
    mask = a_mask(kind, B, H, T, S or T)
    out, weights = random_attention(impl, H, K)(x, context, mask, return_weights=True)
    expected = random_attention(reference, H, K)(x, context, mask, return_weights=True)
    assert_close(out, expected[0], "out")
    assert_close(weights, expected[1], "weights")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise("split_heads", "merge_heads", "MultiHeadAttention.forward")
def test_the_file_as_written_agrees_with_reference(impl, reference):
    x, context = random_input(2, 5, 12), random_input(2, 7, 12, seed=3)
    mask = a_mask("random, by head", 2, 3, 5, 7)
    out = random_attention(impl, 3, 4)(x, context, mask)
    assert_close(out, random_attention(reference, 3, 4)(x, context, mask), "out, end to end")
