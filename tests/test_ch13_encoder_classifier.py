"""Chapter 13: an encoder as a classifier."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grader.checks import assert_close, refuses

N = 1 / math.sqrt(1 + 1e-5)  # a token (1, 3) is normed to (-N, N): variance 1, eps 1e-5
LOG3 = math.log(3)
SINGLE = {"rtol": 1e-6, "atol": 1e-6}  # 1 / n of a count is float32, also in a model of float64


def random(*shape, seed=0):
    """Standard normal numbers in float64, drawn without the code under test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(module, dtype=torch.float64):
    """All parameters random, gains and biases too, drawn here in the order of their names."""
    parameters = sorted(module.to(dtype).named_parameters())
    sizes = [parameter.numel() for _, parameter in parameters]
    state, numbers = {}, random(sum(sizes), seed=100).split(sizes)
    for (name, parameter), own in zip(parameters, numbers, strict=True):
        shape = parameter.shape
        gain = name.endswith("weight") and len(shape) == 1
        state[name] = own.reshape(shape) / math.sqrt(shape[-1]) + gain
    module.load_state_dict(state)
    return module


def simplify(block, attend=0.0, think=0.0):
    """Make a block one that can be followed on paper.

    Queries and keys are 0, so attention averages what it sees: it adds `attend` times the mean of
    the normed tokens. The feed-forward adds `think` times the normed token: gelu(z) - gelu(-z) = z.
    """
    block.requires_grad_(False)
    attention, feedforward = block.attention, block.feedforward
    eye = torch.eye(block.ln_attention.weight.numel())
    for name, scale in {"q": 0.0, "k": 0.0, "v": 1.0, "o": attend}.items():
        projection = getattr(attention, f"{name}_proj")
        projection.weight.copy_(scale * eye)
        projection.bias.zero_()
    feedforward.up_proj.weight.copy_(torch.cat([eye, -eye]))
    feedforward.up_proj.bias.zero_()
    feedforward.down_proj.weight.copy_(think * torch.cat([eye, -eye], dim=1))
    feedforward.down_proj.bias.zero_()
    return block


def ask_loudly(block, *loud):
    """Queries `loud` log 3 / 2 times the normed token, a factor for each feature; keys as it is."""
    factors = torch.tensor(loud) * LOG3 / 2
    block.attention.q_proj.weight.copy_(torch.diag(factors))
    block.attention.k_proj.weight.copy_(torch.eye(len(loud)))


def share(loud, match=1.0):
    """The weight on one of two keys that match with -+match N^2 when a query is `loud`."""
    return 1 / (1 + math.exp(-loud * LOG3 * match * N**2))


def torchs_own(blocks, H, final_norm=None):
    """nn.TransformerEncoder with the weights of these blocks."""
    D, width = blocks[0].ln_attention.weight.numel(), blocks[0].feedforward.up_proj.bias.numel()
    layer = nn.TransformerEncoderLayer(
        D, H, width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, len(blocks), final_norm, enable_nested_tensor=False)
    encoder = encoder.to(blocks[0].ln_attention.weight.dtype)
    for block, own in zip(blocks, encoder.layers, strict=True):
        q_k_v = [getattr(block.attention, f"{name}_proj") for name in "qkv"]
        state = {
            "self_attn.in_proj_weight": torch.cat([projection.weight for projection in q_k_v]),
            "self_attn.in_proj_bias": torch.cat([projection.bias for projection in q_k_v]),
        }
        others = {
            "self_attn.out_proj": block.attention.o_proj,
            "linear1": block.feedforward.up_proj,
            "linear2": block.feedforward.down_proj,
            "norm1": block.ln_attention,
            "norm2": block.ln_feedforward,
        }
        for name, part in others.items():
            state |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
        own.load_state_dict(state)
    return encoder


def parameters_of(block):
    """The weights of q, k and v, their biases, then weight and bias of each other part."""
    q_k_v = [getattr(block.attention, f"{name}_proj") for name in "qkv"]
    others = [block.attention.o_proj, block.feedforward.up_proj, block.feedforward.down_proj]
    others += [block.ln_attention, block.ln_feedforward]
    parameters = [projection.weight for projection in q_k_v]
    parameters += [projection.bias for projection in q_k_v]
    return parameters + [p for part in others for p in (part.weight, part.bias)]


def parameters_of_torchs(layer):
    """The same of a layer of nn.TransformerEncoder, which keeps q, k and v below each other."""
    others = [layer.self_attn.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2]
    parameters = [layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias]
    return parameters + [p for part in others for p in (part.weight, part.bias)]


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def gradients(out, inputs, upstream):
    """Of the sum of out times upstream, with zeros for what out does not depend on."""
    out = out + sum(0 * x.sum() for x in inputs)  # keeps the graph whole when an answer left it
    return torch.autograd.grad(out, inputs, upstream)


# EncoderBlock.forward ------------------------------------------------------------------------


def block_of(module, attend=0.0, think=0.0, D=2, H=1, dropout=0.0):
    return simplify(module.EncoderBlock(D, H, 2 * D, dropout), attend, think)


def random_block(module, H=3, K=4, width=7, dtype=torch.float64):
    return randomize(module.EncoderBlock(H * K, H, width), dtype)


def second(given_back):
    """The second of the two things that a block gives with return_weights."""
    pair = isinstance(given_back, tuple) and len(given_back) == 2
    assert pair, f"return_weights gives (out, weights), got a {type(given_back).__name__}"
    return given_back[1]


def three_tokens():
    """Normed, these are (-N, N), (N, -N), (-N, N); new for each test, which may change them."""
    return torch.tensor([[[0.0, 2], [2, 0], [0, 2]]])


@pytest.mark.exercise("EncoderBlock.forward")
def test_a_block_whose_sub_layers_give_zero_is_the_identity(impl):
    # a norm on the stream itself would make (-1, 1) of (2, 6); without residuals all is 0
    hidden = torch.tensor([[[2.0, 6], [5, 1], [0, 8]], [[1, 1], [7, 3], [-4, 4]]])
    assert_close(block_of(impl)(hidden), hidden, "out")


@pytest.mark.exercise("EncoderBlock.forward")
def test_attention_reads_the_normed_token_and_adds_to_the_raw_one(impl):
    # (1, 3) is normed to (-N, N), and attention multiplies by 10: (1 - 10 N, 3 + 10 N), near -9, 13
    # post-LN norms the sum: (-1, 1); a norm inside the branch, behind attention: near (0, 4)
    out = block_of(impl, attend=10.0)(torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[1 - 10 * N, 3 + 10 * N]]], "hidden + attention(norm(hidden))")


@pytest.mark.exercise("EncoderBlock.forward")
def test_the_feed_forward_reads_the_normed_token_and_adds_to_the_raw_one(impl):
    # as above, by the other branch
    out = block_of(impl, think=10.0)(torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[1 - 10 * N, 3 + 10 * N]]], "hidden + feedforward(norm(hidden))")


@pytest.mark.exercise("EncoderBlock.forward")
def test_the_feed_forward_reads_what_attention_has_added(impl):
    # attention turns (2, 4) round: (2 + 2 N, 4 - 2 N), near (4, 2), normed to (M, -M)
    # the feed-forward adds (-3 M, 3 M): near (1, 5)
    # both from the same input: near (7, -1); the feed-forward first: near (3, 3)
    half = 2 * N - 1  # the deviation of the sum
    M = half / math.sqrt(half**2 + 1e-5)
    out = block_of(impl, attend=-2.0, think=-3.0)(torch.tensor([[[2.0, 4]]]))
    assert_close(out, [[[2 + 2 * N - 3 * M, 4 - 2 * N + 3 * M]]], "out")


@pytest.mark.exercise("EncoderBlock.forward")
def test_each_sub_layer_has_the_norm_of_its_own(impl):
    # the first norm doubles: (1, 3) + 2 (-1, 1) = (-1, 5)
    # the second trebles and adds 5: (-3, 3) + 5 = (2, 8); the feed-forward doubles: (3, 21)
    # the first norm twice: (-5, 9). Written down to eps, which is small here
    block = block_of(impl, attend=1.0, think=2.0)
    block.ln_attention.weight.fill_(2.0)
    block.ln_feedforward.weight.fill_(3.0)
    block.ln_feedforward.bias.fill_(5.0)
    out = block(torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[3.0, 21.0]]], "out", rtol=0, atol=1e-3)


@pytest.mark.exercise("EncoderBlock.forward")
def test_without_a_mask_each_token_averages_all_of_them(impl):
    # the mean of (-N, N), (N, -N), (-N, N) is (-N/3, N/3), and every token adds it
    # causal, the first adds (-N, N) and the second 0
    out = block_of(impl, attend=1.0)(three_tokens())
    expected = [[[0 - N / 3, 2 + N / 3], [2 - N / 3, 0 + N / 3], [0 - N / 3, 2 + N / 3]]]
    assert_close(out, expected, "hidden + the mean of all")


@pytest.mark.exercise("EncoderBlock.forward")
def test_a_padding_mask_hides_keys_from_every_query(impl):
    # row 0 hides its last key: -N and N cancel, nothing is added, to the padded query neither
    # row 1 hides its second: the mean is (-N, N)
    # read as True = may attend: row 0 adds (-N, N) everywhere, row 1 (N, -N)
    mask = torch.tensor([[0, 0, 1], [0, 1, 0]]).bool()[:, None, None]  # (B, 1, 1, T)
    out = block_of(impl, attend=1.0)(three_tokens().repeat(2, 1, 1), mask)
    added = torch.tensor([[[0.0, 0]] * 3, [[-N, N]] * 3])
    assert_close(out - three_tokens(), added, "the mean of what is not blocked")


@pytest.mark.exercise("EncoderBlock.forward")
def test_a_mask_of_two_axes_blocks_pair_by_pair(impl):
    # query 0 sees keys 0 and 1 (0), query 1 sees key 1 (N, -N), query 2 sees key 0 (-N, N)
    mask = torch.tensor([[0, 0, 1], [1, 0, 1], [0, 1, 1]]).bool()
    out = block_of(impl, attend=1.0)(three_tokens(), mask)
    assert_close(
        out - three_tokens(), [[[0.0, 0], [N, -N], [-N, N]]], "the mean of what each query sees"
    )


@pytest.mark.exercise("EncoderBlock.forward")
@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(torch.zeros(2, 2, 2).bool(), id="three axes, B = H = T"),
        pytest.param(torch.zeros(2, 2), id="float"),
        pytest.param(torch.zeros(2, 1, 1, 3).bool(), id="another length"),
    ],
)
def test_a_block_refuses_a_bad_mask(impl, mask):
    # (B, T, T) would broadcast as (1, B, T, T): sample 1's mask on head 1 of every sample
    refuses(ValueError, "mask", block_of(impl, H=2), torch.ones(2, 2, 2), mask)


@pytest.mark.exercise("EncoderBlock.forward")
def test_weights_are_those_of_the_normed_tokens_head_by_head(impl):
    # head h sees feature h of (-N, N), (N, -N): scores of log 3 / 2 for itself, minus that for the
    # other: 3 to 1; head 1 asks twice as loud: 9 to 1. Raw tokens would give 1 to 1 and 9 to 1
    block = block_of(impl, H=2)
    ask_loudly(block, 1.0, 2.0)
    given_back = block(torch.tensor([[[5.0, 7], [7, 5]]]), return_weights=True)
    expected = [[[[w, 1 - w], [1 - w, w]] for w in (share(1.0), share(2.0))]]
    assert_close(second(given_back), expected, "weights (B, H, T, T)")


@pytest.mark.exercise("EncoderBlock.forward")
def test_out_is_the_same_with_weights_and_without(impl):
    # as in the mean of all three
    given_back = block_of(impl, attend=1.0)(three_tokens(), return_weights=True)
    second(given_back)
    expected = [[[0 - N / 3, 2 + N / 3], [2 - N / 3, 0 + N / 3], [0 - N / 3, 2 + N / 3]]]
    assert_close(given_back[0], expected, "hidden + the mean of all")


@pytest.mark.exercise("EncoderBlock.forward")
def test_in_training_weights_are_as_before_dropout(impl):
    # every weight is dropped, and still 3 to 1 is returned
    block = block_of(impl, dropout=1.0).train()
    ask_loudly(block, 0.0, math.sqrt(2))  # one head of width 2: scores are divided by sqrt(2)
    weights = second(block(torch.tensor([[[5.0, 7], [7, 5]]]), return_weights=True))
    w = share(1.0)
    assert_close(weights, [[[[w, 1 - w], [1 - w, w]]]], "weights (B, H, T, T)")


MASKS = {
    "none": None,
    "padding": torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]).bool(),  # (B, T)
}


@pytest.mark.exercise("EncoderBlock.forward")
@pytest.mark.parametrize("kind", ["none", "padding"])
def test_the_block_equals_a_layer_of_nn_transformerencoder(impl, kind):
    block, padding = random_block(impl, dtype=torch.float32), MASKS[kind]
    hidden = random(2, 5, 12).float()
    expected = torchs_own([block], 3)(hidden, src_key_padding_mask=padding)
    out = block(hidden, None if padding is None else padding[:, None, None])
    assert_close(out, expected, "out", rtol=0, atol=1e-5)


@pytest.mark.exercise("EncoderBlock.forward")
def test_the_blocks_gradients_equal_those_of_nn_transformerencoder(impl):
    # under a random upstream gradient, in float64
    block, padding = random_block(impl), MASKS["padding"]
    hidden, upstream = random(2, 5, 12).requires_grad_(), random(2, 5, 12, seed=1)
    out = block(hidden, padding[:, None, None])
    grads = gradients(out, [hidden, *parameters_of(block)], upstream)
    encoder = torchs_own([block], 3)
    expected = gradients(
        encoder(hidden, src_key_padding_mask=padding),
        [hidden, *parameters_of_torchs(encoder.layers[0])],
        upstream,
    )
    assert_close(grads[0], expected[0], "the gradient of hidden")
    assert_close(flat(grads[1:]), flat(expected[1:]), "the gradients of all parameters in a row")


@pytest.mark.exercise("EncoderBlock.forward")
def test_a_query_that_sees_nothing_gathers_the_output_bias_and_no_nan(impl):
    # the last query sees no key: o_proj gets 0 and gives its bias (7, 8)
    # upstream (2, 4) and (3, -5) pass the residuals; attention reads key 0 alone, and one normed
    # token of two features hands nothing back (its deviations are +-1 whatever it is, up to eps)
    block = block_of(impl, attend=1.0)
    block.attention.o_proj.bias.copy_(torch.tensor([7.0, 8]))
    hidden = three_tokens()[:, :2].requires_grad_()
    out = block(hidden, torch.tensor([[0, 1], [1, 1]]).bool())
    (grad,) = torch.autograd.grad(out, hidden, torch.tensor([[[2.0, 4], [3, -5]]]))
    assert_close(out, [[[7 - N, 10 + N], [9, 8]]], "out")
    assert_close(grad, [[[2.0, 4], [3, -5]]], "the gradient of hidden", rtol=0, atol=1e-4)


# Dropout: with probability 1 nothing is left to chance.


@pytest.mark.exercise("EncoderBlock.forward")
def test_in_training_what_a_sub_layer_adds_is_dropped_and_the_stream_is_not(impl):
    # attention keeps its weights here, so that only the dropout of its output can silence it
    block = block_of(impl, attend=10.0, think=10.0, dropout=1.0).train()
    # it would add 10 times the mean of (-N, N) and (-N, N)
    block.attention.dropout.p = 0.0
    hidden = torch.tensor([[[1.0, 3], [2, 9]]])
    assert_close(block(hidden), hidden, "out when every update is dropped")


@pytest.mark.exercise("EncoderBlock.forward")
def test_in_evaluation_the_block_drops_nothing(impl):
    # as without dropout: the mean of all three
    out = block_of(impl, attend=1.0, dropout=1.0).eval()(three_tokens())
    expected = [[[0 - N / 3, 2 + N / 3], [2 - N / 3, 0 + N / 3], [0 - N / 3, 2 + N / 3]]]
    assert_close(out, expected, "out in evaluation")


@pytest.mark.exercise("EncoderBlock.forward")
@pytest.mark.parametrize(
    ("attend", "think"),
    [pytest.param(1.0, 0.0, id="attention"), pytest.param(0.0, 1.0, id="feed-forward")],
)
def test_what_a_sub_layer_adds_is_dropped_once(impl, attend, think):
    # with p = 1/2 each number u becomes 0 or 2 u, so a (a - 2 u) is 0
    # dropped twice, 4 u turns up among 160
    block = block_of(impl, attend, think, D=4, dropout=0.5).double()
    block.attention.dropout.p = 0.0
    hidden = random(8, 5, 4)
    dropped, update = block.train()(hidden) - hidden, block.eval()(hidden) - hidden
    assert_close(dropped * (dropped - 2 * update), [[[0.0] * 4] * 5] * 8, "a (a - 2 u)", atol=1e-9)


@pytest.mark.exercise("EncoderBlock.forward")
def test_what_attention_adds_is_dropped_number_by_number(impl):
    # all samples, positions or features alike would have a probability of at most 2 ** -80
    block = block_of(impl, attend=1.0, D=4, dropout=0.5).double().train()
    block.attention.dropout.p = 0.0
    hidden = random(8, 5, 4)
    lost = (block(hidden) - hidden).abs() < 1e-9
    axes = {"samples": 0, "positions": 1, "features": 2}
    alike = [name for name, axis in axes.items() if not lost.diff(dim=axis).any()]
    assert not alike, f"each number is dropped on its own, but all {alike[0]} lose the same ones"


@pytest.mark.exercise("EncoderBlock.forward")
def test_the_block_leaves_hidden_and_mask_as_they_are(impl):
    hidden, mask = random(2, 5, 12), MASKS["padding"][:, None, None].clone()
    random_block(impl).requires_grad_(False)(hidden, mask)
    assert_close(hidden, random(2, 5, 12), "hidden after the call")
    assert_close(mask, MASKS["padding"][:, None, None], "mask after the call")


@pytest.mark.exercise("EncoderBlock.forward")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    H=st.integers(1, 3),
    K=st.integers(1, 3),
    width=st.integers(1, 4),
    blocked=st.none() | st.integers(0, 99),
)
def test_block_agrees_with_reference(impl, reference, B, T, H, K, width, blocked):
    hidden = random(B, T, H * K)
    mask = None if blocked is None else random(B, H, T, T, seed=blocked) > 0.5
    out, weights = random_block(reference, H, K, width)(hidden, mask, return_weights=True)
    given_back = random_block(impl, H, K, width)(hidden, mask, return_weights=True)
    assert_close(second(given_back), weights, "weights (B, H, T, T)")
    assert_close(given_back[0], out, "out")


# EncoderClassifier.forward -------------------------------------------------------------------


def small(module, rows, pad_id=0, H=1, n_layers=1, dropout=0.0, attend=0.0, positions=False):
    """A model that can be followed on paper.

    `rows` are the embeddings, one for each id; the head hands on what is pooled. Positions are 0
    unless they are asked for; the blocks are those of `simplify`.
    """
    rows = torch.tensor(rows)
    V, D = rows.shape
    model = module.EncoderClassifier(
        V, D, H, n_layers, 2 * D, dropout, max_len=5, num_classes=D, pad_id=pad_id
    ).requires_grad_(False)
    for block in model.blocks:
        simplify(block, attend)
    if not positions:
        model.positions.zero_()
    model.token_embedding.weight.copy_(rows)
    model.head.weight.copy_(torch.eye(D))
    model.head.bias.zero_()
    return model


def random_model(module, H=3, K=4, n_layers=3, width=7, C=4, pad_id=0, dtype=torch.float64):
    """A model of 8 ids and at most 9 columns whose parameters are all random."""
    sizes = {"d_model": H * K, "n_heads": H, "n_layers": n_layers, "ff_dim": width}
    return randomize(
        module.EncoderClassifier(8, **sizes, dropout=0.0, max_len=9, num_classes=C, pad_id=pad_id),
        dtype,
    )


def normed(features):
    """Mean 0, variance 1, by eps 1e-5."""
    mean = sum(features) / len(features)
    var = sum((x - mean) ** 2 for x in features) / len(features)
    return [(x - mean) / math.sqrt(var + 1e-5) for x in features]


# padding, the, cat; normed (N, -N), (-N, N) and (N, -N)
ROWS = [[2.0, 0], [0, 2], [2, 0]]


@pytest.mark.exercise("EncoderClassifier.forward")
@pytest.mark.parametrize("pad_id", [0, 2], ids=["padding is 0", "padding is 2"])
def test_logits_are_the_head_of_the_mean_of_the_normed_real_tokens(impl, pad_id):
    # the cat the: (-N + N - N) / 3 = -N/3; cat cat cat the: (3 N - N) / 4 = N/2; other sign behind
    # head: feature 0; ten times feature 1; their sum, which is 0, plus a bias of 5
    # with padding counted the first row gives 0, divided by T -N/4, without the final norm 2/3
    cat = 2 - pad_id  # id 0 is then a real token
    model = small(impl, ROWS, pad_id)
    model.head = nn.Linear(2, 3).requires_grad_(False)
    model.head.weight.copy_(torch.tensor([[1.0, 0], [0, 10], [1, 1]]))
    model.head.bias.copy_(torch.tensor([0.0, 0, 5]))
    logits = model(torch.tensor([[1, cat, 1, pad_id], [cat, cat, cat, 1]]))
    expected = [[-N / 3, 10 * N / 3, 5], [N / 2, -5 * N, 5]]
    assert_close(logits, expected, "logits (B, C)")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_positions_are_added_once_to_the_embeddings_as_they_are(impl):
    # position t is sin t, cos t, sin t/100, cos t/100, from t = 0 on; two blocks that add nothing
    # added in every block they count twice; sqrt(D) would double the embedding
    row = [1.0, -1, 2, 0]
    logits = small(impl, [row, row], n_layers=2, positions=True)(torch.ones(1, 5).long())
    table = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in range(5)]
    each = [normed([x + p for x, p in zip(row, position, strict=True)]) for position in table]
    assert_close(logits, [[sum(column) / 5 for column in zip(*each, strict=True)]], "logits (B, C)")


# two tokens of width 4; each is normed to itself, up to eps, and they have nothing in common
CROSS = [[1.0, 1, -1, -1], [1.0, -1, 1, -1]]


@pytest.mark.exercise("EncoderClassifier.forward")
def test_padding_is_blocked_in_attention(impl):
    # attention adds the mean of what a token sees: to (1, -1, 1, -1) itself, and the norm takes
    # back the factor. With padding seen it adds half of each: (2, -1, 1, -2), normed by 1 / 1.58
    logits = small(impl, CROSS, attend=1.0)(torch.tensor([[1, 0, 0]]))
    assert_close(logits, [normed([2.0, -2, 2, -2])], "logits (B, C)")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_real_tokens_see_each_other_both_ways(impl):
    # a = (1, -1, 1, -1), b = (1, 1, -1, -1) is padding in the test above and a token here
    # each adds (a + b) / 2 = (1, 0, 0, -1): (2, -1, 1, -2) and (2, 1, -1, -2)
    # the mean of the two normed is (2, 0, 0, -2) / sqrt(2.5)
    # causal, the first adds itself only: 1 and (2, 1, -1, -2) / sqrt(2.5) give another mean
    model = small(impl, [*CROSS, [9.0, 0, 0, 0]], attend=1.0, pad_id=2)
    logits = model(torch.tensor([[1, 0, 2]]))
    size = 2 / math.sqrt(2.5)
    assert_close(logits, [[size, 0.0, 0.0, -size]], "logits (B, C)", rtol=0, atol=2e-5)


@pytest.mark.exercise("EncoderClassifier.forward")
def test_padding_may_stand_before_a_token_which_keeps_its_column(impl):
    # x = row + position 1; attention adds the normed x alone, whatever stands in column 0
    # with the padding seen, or at position 0, other numbers come
    row, position = CROSS[1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    logits = small(impl, CROSS, attend=1.0, positions=True)(torch.tensor([[0, 1]]))
    x = [a + b for a, b in zip(row, position, strict=True)]
    attended = [a + b for a, b in zip(x, normed(x), strict=True)]
    assert_close(logits, [normed(attended)], "logits (B, C)")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_a_row_of_padding_only_gives_the_heads_bias(impl):
    # nothing is pooled: 0, and the bias is (7, 8); the other row is cat: (N, -N) on top of it
    model = small(impl, ROWS, attend=1.0)
    model.head.bias.copy_(torch.tensor([7.0, 8]))
    logits = model(torch.tensor([[0, 0, 0], [2, 0, 0]]))
    n = normed([3.0, -1])[0]  # (2, 0) + (N, -N), normed
    assert_close(logits, [[7.0, 8], [7 + n, 8 - n]], "logits (B, C)")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_a_row_of_padding_only_adds_nothing_to_the_gradients(impl):
    # but to the bias of the head: all other gradients are those of the batch without that row
    model, upstream = random_model(impl), random(2, 4)
    parameters = [p for name, p in model.named_parameters() if name != "head.bias"]
    tokens = torch.tensor([[0, 0, 0], [2, 7, 0]])
    both = gradients(model(tokens), parameters, upstream)
    alone = gradients(model(tokens[1:]), parameters, upstream[1:])
    assert_close(flat(both), flat(alone), "the gradients of all parameters", **SINGLE)


PADDING = [pytest.param(0, id="padding is 0"), pytest.param(3, id="padding is 3")]


@pytest.mark.exercise("EncoderClassifier.forward")
@pytest.mark.parametrize("pad_id", PADDING)
def test_a_text_gets_the_same_logits_alone_and_beside_a_longer_one(impl, pad_id):
    model = random_model(impl, pad_id=pad_id)
    text, p = [6, 1, 5, 1], pad_id
    alone = model(torch.tensor([text]))
    batch = model(torch.tensor([[*text, p, p, p], [2, 4, 4, 7, 5, 1, 2]]))
    assert_close(batch[:1], alone, "logits with three columns of padding", **SINGLE)


@pytest.mark.exercise("EncoderClassifier.forward")
@pytest.mark.parametrize("pad_id", PADDING)
def test_the_embedding_of_the_padding_changes_nothing(impl, pad_id):
    # random in every feature: a constant added to a row would vanish in its norm
    model, p = random_model(impl, pad_id=pad_id).requires_grad_(False), pad_id
    tokens = torch.tensor([[6, 1, 5, p, p], [p, 2, p, 7, 4]])
    before = model(tokens)
    model.token_embedding.weight[p] = 10 * random(12, seed=5)
    assert_close(model(tokens), before, "logits after the row of pad_id has changed", **SINGLE)


def three_texts():
    """Padded with 0 behind, not at all, and all over; new for each test, which may change them."""
    return torch.tensor([[2, 5, 1, 7, 0, 0, 0], [3, 3, 6, 1, 4, 2, 7], [0, 6, 0, 0, 5, 3, 0]])


def torchs_logits(model, encoder, tokens):
    """nn.TransformerEncoder between the model's own tables and head, each row pooled by itself."""
    hidden = model.token_embedding.weight[tokens] + model.positions[: tokens.shape[1]]
    hidden = encoder(hidden, src_key_padding_mask=tokens == model.pad_id)
    pooled = [row[ids != model.pad_id].mean(dim=0) for row, ids in zip(hidden, tokens, strict=True)]
    return torch.stack(pooled) @ model.head.weight.T + model.head.bias


@pytest.mark.exercise("EncoderClassifier.forward")
@pytest.mark.parametrize("n_layers", [1, 3], ids=["one layer", "three layers"])
def test_logits_equal_those_of_nn_transformerencoder(impl, n_layers):
    model = random_model(impl, n_layers=n_layers, dtype=torch.float32)
    expected = torchs_logits(model, torchs_own(model.blocks, 3, model.final_norm), three_texts())
    assert_close(model(three_texts()), expected, "logits (B, C)", rtol=0, atol=1e-5)


@pytest.mark.exercise("EncoderClassifier.forward")
def test_the_models_gradients_equal_those_of_nn_transformerencoder(impl):
    # under a random upstream gradient, in float64; ids come several times, id 0 is padding
    model, upstream = random_model(impl), random(3, 4)
    encoder = torchs_own(model.blocks, 3, model.final_norm)
    shared = [model.token_embedding.weight, *model.final_norm.parameters()]
    shared += model.head.parameters()
    blocks = [p for block in model.blocks for p in parameters_of(block)]
    layers = [p for layer in encoder.layers for p in parameters_of_torchs(layer)]
    grads = gradients(model(three_texts()), shared + blocks, upstream)
    expected = gradients(torchs_logits(model, encoder, three_texts()), shared + layers, upstream)
    assert_close(grads[0], expected[0], "the gradient of the embeddings", **SINGLE)
    assert_close(flat(grads[1:]), flat(expected[1:]), "the gradients of all others", **SINGLE)


@pytest.mark.exercise("EncoderClassifier.forward")
def test_in_training_dropout_acts_on_the_sum_of_embedding_and_position(impl):
    # all of it is dropped, the blocks add nothing, the final norm gives its bias (7, 8), which
    # nothing drops any more; had only the embedding been dropped, the positions would be left
    model = small(impl, ROWS, dropout=1.0, positions=True).train()
    model.final_norm.bias.copy_(torch.tensor([7.0, 8]))
    logits = model(torch.tensor([[1, 2, 1, 0]]))
    assert_close(logits, [[7.0, 8]], "logits when every number is dropped")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_what_dropout_leaves_of_the_sum_is_scaled_once(impl):
    # 200 rows of one token (3, 1), p = 1/2: features 0 or 6, and 0 or 2, each drawn on its own
    # so their difference is 0, 6, -2 or 4; dropped twice, 12 and -4 turn up; by token, 0 and 4 only
    # eps = 1e6 makes the norm a division by 1000, and the head takes it back; a value is missing
    # with a probability below 4 * 0.75 ** 200
    model = small(impl, [[9.0, 9], [3, 1]], dropout=0.5).train()
    model.final_norm.eps = 1e6
    model.head.weight.copy_(torch.tensor([[1000.0, -1000], [0, 0]]))
    differences = model(torch.ones(200, 1).long())[:, 0].round().unique()
    assert_close(differences, [-2.0, 0, 4, 6], "feature 0 minus feature 1, all that comes up")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_in_evaluation_the_model_drops_nothing(impl):
    logits = small(impl, ROWS, dropout=1.0).eval()(torch.tensor([[1, 2, 1, 0]]))
    assert_close(logits, [[-N / 3, N / 3]], "logits (B, C)")


@pytest.mark.exercise("EncoderClassifier.forward")
def test_a_call_remembers_nothing_of_the_one_before(impl):
    # the same tokens, first on a fresh model and then behind a batch that is padded elsewhere
    expected = random_model(impl)(three_texts())
    model = random_model(impl)
    model(three_texts().flip(dims=[1]))
    assert_close(model(three_texts()), expected, "logits of the second call", **SINGLE)


@pytest.mark.exercise("EncoderClassifier.forward")
def test_tokens_stay_as_they_are(impl):
    tokens = three_texts()
    random_model(impl)(tokens)
    assert_close(tokens, three_texts(), "tokens after the call")


BAD_TOKENS = [
    pytest.param(torch.ones(2, 3), id="float"),
    pytest.param(torch.ones(2, 3).int(), id="int32"),
    pytest.param(torch.ones(2, 3).bool(), id="bool"),
    pytest.param(torch.ones(3).long(), id="one axis"),
    pytest.param(torch.ones(2, 3, 1).long(), id="three axes"),
    pytest.param(torch.ones(2, 0).long(), id="no column"),
    pytest.param(torch.ones(2, 6).long(), id="longer than max_len = 5"),
]


@pytest.mark.exercise("EncoderClassifier.forward")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_forward_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", small(impl, ROWS), tokens)


@pytest.mark.exercise("EncoderClassifier.forward")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 9),
    H=st.integers(1, 3),
    n_layers=st.integers(0, 2),
    pad_id=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_classifier_agrees_with_reference(impl, reference, B, T, H, n_layers, pad_id, seed):
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(8, (B, T), generator=rng)
    tokens[torch.rand(B, T, generator=rng) < 0.4] = pad_id
    expected = random_model(reference, H, 2, n_layers, pad_id=pad_id)(tokens)
    logits = random_model(impl, H, 2, n_layers, pad_id=pad_id)(tokens)
    assert_close(logits, expected, "logits (B, C)", **SINGLE)


# EncoderClassifier.get_attention_weights -----------------------------------------------------


def rows_of(loud):
    """The weights of the, cat and padding on the, cat and padding in one head that asks so loud."""
    w = share(loud)
    return [[w, 1 - w, 0.0], [1 - w, w, 0.0], [1 - w, w, 0.0]]


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_weights_are_those_of_every_query_and_head_on_real_keys(impl):
    # the (-N, N), cat (N, -N), padding (N, -N), which asks like cat but is no key
    # head 0 asks for feature 0: 3 to 1 for its like; head 1 for feature 1, twice as loud: 9 to 1
    # averaged over heads: 0.825; with padding as a key: 3 1 1 of 5; raw embeddings: 9 to 1
    model = small(impl, ROWS, H=2)
    ask_loudly(model.blocks[0], 1.0, 2.0)
    weights = model.get_attention_weights(torch.tensor([[1, 2, 0]]), 0)
    assert_close(weights, [[rows_of(1.0), rows_of(2.0)]], "weights (B, H, T, T)")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_a_later_layer_reads_what_the_blocks_before_it_have_made(impl):
    # block 0 adds (3, 0): the (3, 2) and cat (5, 0) are both normed to (1, -1), up to eps
    # so the heads of block 1 weigh them alike; on the embeddings it would be 9 to 1 and 27 to 1,
    # and block 0 itself weighs 3 to 1 and 9 to 1
    model = small(impl, ROWS, H=2, n_layers=2)
    ask_loudly(model.blocks[0], 1.0, 2.0)
    model.blocks[0].feedforward.down_proj.bias[0] = 3.0
    ask_loudly(model.blocks[1], 2.0, 3.0)
    weights = model.get_attention_weights(torch.tensor([[1, 2, 0]]), 1)
    expected = [[[[0.5, 0.5, 0.0]] * 3] * 2]
    assert_close(weights, expected, "weights (B, H, T, T)", rtol=0, atol=1e-4)


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_positions_take_part_in_the_weights(impl):
    # one id twice: (0, 2) + (sin 0, cos 0) and (0, 2) + (sin 1, cos 1); both normed near (-1, 1)
    # ids of (1, 0) instead: (1, 1) is normed to 0, (1.84, 0.54) to (1, -1), up to eps
    # head 0 asks for feature 0: query 0 asks nothing, query 1 weighs 1 to 3^(1/2)
    model = small(impl, [[9.0, 9], [1, 0]], H=2, positions=True)
    ask_loudly(model.blocks[0], 1.0, 2.0)
    weights = model.get_attention_weights(torch.tensor([[1, 1]]), 0)
    head_0, head_1 = (share(loud, 0.5) for loud in (1.0, 2.0))
    expected = [[[[0.5, 0.5], [1 - w, w]] for w in (head_0, head_1)]]
    assert_close(weights, expected, "weights (B, H, T, T)", rtol=0, atol=1e-4)


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
@pytest.mark.parametrize("layer", [0, 1, 2], ids=["first", "second", "last"])
def test_weights_equal_those_of_nn_transformerencoder(impl, layer):
    # its layers give no weights: run those before, norm, and ask the layer's attention itself
    model = random_model(impl, dtype=torch.float32)
    own, padding = torchs_own(model.blocks, 3).layers, three_texts() == 0
    hidden = model.token_embedding.weight[three_texts()] + model.positions[:7]
    for before in own[:layer]:
        hidden = before(hidden, src_key_padding_mask=padding)
    x = own[layer].norm1(hidden)
    _, expected = own[layer].self_attn(
        x, x, x, key_padding_mask=padding, average_attn_weights=False
    )
    weights = model.get_attention_weights(three_texts(), layer)
    assert_close(weights, expected, "weights (B, H, T, T)", rtol=0, atol=1e-5)


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_a_row_of_padding_only_has_weights_of_zero(impl):
    # the other row is the cat: as without dropout and with no padding, 3 to 1 and 9 to 1
    model = small(impl, ROWS, H=2)
    ask_loudly(model.blocks[0], 1.0, 2.0)
    weights = model.get_attention_weights(torch.tensor([[0, 0], [1, 2]]), 0)
    real = [[[w, 1 - w], [1 - w, w]] for w in (share(1.0), share(2.0))]
    assert_close(weights, [[[[0.0, 0], [0, 0]]] * 2, real], "weights (B, H, T, T)")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_in_training_the_weights_are_as_before_their_own_dropout(impl):
    # every weight is dropped, and 3 to 1 and 9 to 1 are what is given
    model = small(impl, ROWS, H=2).train()
    ask_loudly(model.blocks[0], 1.0, 2.0)
    model.blocks[0].attention.dropout.p = 1.0
    weights = model.get_attention_weights(torch.tensor([[1, 2, 0]]), 0)
    assert_close(weights, [[rows_of(1.0), rows_of(2.0)]], "weights (B, H, T, T)")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_in_training_the_layer_reads_what_dropout_has_left(impl):
    # as in forward: every embedding is dropped, so all tokens are alike and weigh 1 to 1
    # those of evaluation are 3 to 1 and 9 to 1
    model = small(impl, ROWS, H=2, dropout=1.0).train()
    ask_loudly(model.blocks[0], 1.0, 2.0)
    weights = model.get_attention_weights(torch.tensor([[1, 2, 0]]), 0)
    assert_close(weights, [[[[0.5, 0.5, 0.0]] * 3] * 2], "weights (B, H, T, T)")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
@pytest.mark.parametrize(
    ("training", "frozen"),
    [
        pytest.param(True, False, id="in training"),
        pytest.param(False, False, id="in evaluation"),
        pytest.param(True, True, id="in training, a block in evaluation"),
    ],
)
def test_the_mode_of_no_submodule_changes(impl, training, frozen):
    model = small(impl, ROWS, n_layers=2, dropout=0.5).train(training)
    if frozen:
        model.blocks[0].eval()
    before = torch.tensor([part.training for part in model.modules()])
    model.get_attention_weights(torch.tensor([[1, 2, 0]]), 1)
    after = torch.tensor([part.training for part in model.modules()])
    assert_close(after, before, "training, for each of model.modules()")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_what_learns_and_what_is_frozen_stays_so(impl):
    model = small(impl, ROWS, n_layers=2).requires_grad_(True)
    model.blocks[0].requires_grad_(False)
    before = torch.tensor([p.requires_grad for p in model.parameters()])
    model.get_attention_weights(torch.tensor([[1, 2, 0]]), 1)
    after = torch.tensor([p.requires_grad for p in model.parameters()])
    assert_close(after, before, "requires_grad, for each of model.parameters()")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
def test_weights_remember_nothing_of_the_call_before(impl):
    # a first call about another text and another layer; then 3 to 1 and 9 to 1, as above
    model = small(impl, ROWS, H=2, n_layers=2)
    ask_loudly(model.blocks[0], 1.0, 2.0)
    model.get_attention_weights(torch.tensor([[0, 1, 1]]), 1)
    weights = model.get_attention_weights(torch.tensor([[1, 2, 0]]), 0)
    assert_close(weights, [[rows_of(1.0), rows_of(2.0)]], "weights of the second call")


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
@pytest.mark.parametrize("layer", [-1, 2, 7], ids=["from the end", "n_layers", "far outside"])
def test_a_layer_that_is_not_there_is_refused(impl, layer):
    model = small(impl, ROWS, n_layers=2)
    refuses(ValueError, "layer", model.get_attention_weights, torch.tensor([[1, 2]]), layer)


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_get_attention_weights_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", small(impl, ROWS).get_attention_weights, tokens, 0)


@pytest.mark.exercise("EncoderClassifier.get_attention_weights")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 9),
    H=st.integers(1, 3),
    layer=st.integers(0, 1),
    pad_id=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_weights_agree_with_reference(impl, reference, B, T, H, layer, pad_id, seed):
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(8, (B, T), generator=rng)
    tokens[torch.rand(B, T, generator=rng) < 0.4] = pad_id
    expected = random_model(reference, H, 2, 2, pad_id=pad_id).get_attention_weights(tokens, layer)
    weights = random_model(impl, H, 2, 2, pad_id=pad_id).get_attention_weights(tokens, layer)
    assert_close(weights, expected, "weights (B, H, T, T)")


# All together --------------------------------------------------------------------------------


@pytest.mark.exercise(
    "EncoderBlock.forward",
    "EncoderClassifier.forward",
    "EncoderClassifier.get_attention_weights",
)
def test_the_file_as_written_agrees_with_reference(impl, reference):
    model, own = random_model(impl), random_model(reference)
    assert_close(model(three_texts()), own(three_texts()), "logits, end to end", **SINGLE)
    weights, expected = (m.get_attention_weights(three_texts(), 2) for m in (model, own))
    assert_close(weights, expected, "weights of the last layer, end to end")
