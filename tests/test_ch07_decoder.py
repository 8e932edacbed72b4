"""Chapter 7: the trainable decoder."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grader.checks import Different, NotRefused, assert_close, is_not_started, refuses

# Two fixed batches, tokens and targets. Ids 0 and 1 are reserved symbols elsewhere; here mere ids.
LEARNABLE = [[0, 1, 0, 1]], [[1, 0, 1, 0]]
CONTRADICTORY = [[0, 1], [0, 1]], [[1, 2], [1, 0]]

SIZES = {"vocab_size": 7, "block_size": 6, "d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 10}
A = 0.5 / math.sqrt(0.25 + 1e-5)  # the norm of (1, 0) is (A, -A): mean 0.5, variance 0.25
Z = math.exp(A) + math.exp(-A) + 1  # the softmax of (A, -A, 0) divides by Z


def written(module, tokens, positions, updates, head, **config):
    """A float64 model with these embeddings, whose block i adds updates[i] to every token."""
    V, D = len(tokens), len(tokens[0])
    model = module.TransformerLM(
        module.Config(V, len(positions), D, 1, len(updates), d_ff=2, **config)
    )
    model.double().requires_grad_(False)
    model.token_embedding.weight.copy_(torch.tensor(tokens))
    model.position_embedding.weight.copy_(torch.tensor(positions))
    for block, update in zip(model.blocks, updates, strict=True):
        block.attention.o_proj.weight.zero_()
        block.feedforward.down_proj.weight.zero_()
        block.feedforward.down_proj.bias.copy_(torch.tensor(update))
    model.head.weight.copy_(torch.tensor(head))
    return model


def two_layers(module):
    """Tokens (1, 0), (0, 1), (0, 0), no positions, two blocks that add nothing, head the same."""
    corners = [[1.0, 0], [0, 1], [0, 0]]
    return written(module, corners, [[0.0, 0]] * 2, [[0.0, 0]] * 2, corners)


def random_model(module, seed=0, dtype=torch.float64, **config):
    """A model of SIZES with every parameter drawn here by its name's order, the norms' too."""
    model = module.TransformerLM(module.Config(**SIZES | config)).to(dtype)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            numbers = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter.copy_(numbers * 0.5)
    return model


def small_model(module, seed=7):
    """The fixed batch's model as `reference` makes it: 4 ids, 8 places, width 16, two blocks."""
    torch.manual_seed(seed)
    return module.TransformerLM(module.Config(4, 8, 16, 2, 2, 32)).double()


def random_batch(B, T, V, seed=0, unscored=0.3):
    """Tokens, and targets of which a share is not scored; the first always is."""
    rng = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(V, (2, B, T), generator=rng)
    hidden = torch.rand(B, T, generator=rng) < unscored
    hidden[0, 0] = False
    return tokens, targets.masked_fill(hidden, -100)


def assert_equal(actual, expected, what):
    """As assert_close, for names and words: fail unless the two are equal."""
    if actual != expected:
        raise Different(f"{what}:\n  expected {expected}\n  got      {actual}", actual)


def raises_something(function, *args):
    """Fail unless the call raises; any class will do, and a stub's own error passes through."""
    try:
        actual = function(*args)
    except Exception as error:
        if is_not_started(error):
            raise
        return
    raise NotRefused("expected an exception, got a return", actual)


# Config.__post_init__ ------------------------------------------------------------------------

BAD_SIZES = [
    pytest.param("vocab_size", 0, id="no vocabulary"),
    pytest.param("block_size", -1, id="negative"),
    pytest.param("d_model", 12.0, id="a whole float"),
    pytest.param("n_heads", True, id="a bool"),
    pytest.param("n_layers", math.nan, id="NaN"),
    pytest.param("d_ff", "10", id="text"),
]


@pytest.mark.exercise("Config.__post_init__")
@pytest.mark.parametrize(("field", "value"), BAD_SIZES)
def test_a_size_is_a_positive_int(impl, field, value):
    refuses(ValueError, field, impl.Config, **SIZES | {field: value})


@pytest.mark.exercise("Config.__post_init__")
@pytest.mark.parametrize("vocab_size", [1, 2])
def test_a_vocabulary_holds_unknown_begin_and_end(impl, vocab_size):
    refuses(ValueError, "vocab_size", impl.Config, **SIZES | {"vocab_size": vocab_size})


@pytest.mark.exercise("Config.__post_init__")
@pytest.mark.parametrize("n_heads", [5, 24], ids=["5 of 12", "24 of 12"])
def test_heads_divide_the_width(impl, n_heads):
    refuses(ValueError, "n_heads", impl.Config, **SIZES | {"n_heads": n_heads})


@pytest.mark.exercise("Config.__post_init__")
@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.inf, math.nan], ids=str)
def test_dropout_is_a_probability_below_one(impl, dropout):
    refuses(ValueError, "dropout", impl.Config, **SIZES | {"dropout": dropout})


def accepted(module, changes):
    try:
        module.Config(**SIZES | changes)
    except ValueError:
        return False
    return True


UNUSUAL = [
    pytest.param({"d_model": 15}, id="an odd width"),
    pytest.param({"n_heads": 12}, id="heads of width 1"),
    pytest.param({"block_size": 1, "n_layers": 1, "d_ff": 1}, id="as small as can be"),
    pytest.param({"vocab_size": 3}, id="reserved ids only"),
    pytest.param({"dropout": 0}, id="dropout 0, an int"),
    pytest.param({"dropout": 0.99}, id="dropout 0.99"),
]


@pytest.mark.exercise("Config.__post_init__")
@pytest.mark.parametrize("changes", UNUSUAL)
def test_what_is_only_unusual_is_accepted(impl, changes):
    assert_equal(accepted(impl, changes), True, "whether the configuration is accepted")


@pytest.mark.exercise("Config.__post_init__")
@given(
    field=st.sampled_from([*SIZES, "dropout"]),
    value=st.sampled_from([-1, 0, 1, 2, 3, 4, 0.5, 1.0, True, math.nan]),
)
def test_config_agrees_with_reference(impl, reference, field, value):
    expected = accepted(reference, {field: value})
    assert_equal(accepted(impl, {field: value}), expected, "whether the configuration is accepted")


# TransformerLM.forward -----------------------------------------------------------------------


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("targets", [None, [[1, 0]]], ids=["no targets", "targets"])
def test_two_layer_logits_are_plus_minus_a(impl, targets):
    # (1, 0) normed is (A, -A) and (0, 1) is (-A, A); the head takes the two features and a zero
    # without the final norm: (1, 0, 0) and (0, 1, 0)
    targets = None if targets is None else torch.tensor(targets)
    out = two_layers(impl)(torch.tensor([[0, 1]]), targets)
    assert_close(out["logits"], [[[A, -A, 0.0], [-A, A, 0.0]]], "logits (B, T, V)")


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize(
    ("targets", "own"),
    [
        pytest.param([[1, 0]], -A, id="the lower logit"),
        pytest.param([[0, 1]], A, id="the higher logit"),
    ],
)
def test_two_layer_losses_are_two_a_apart(impl, targets, own):
    # log(e^A + e^-A + 1) minus the target's own logit: 2.4075745 and 0.4076145
    out = two_layers(impl)(torch.tensor([[0, 1]]), torch.tensor(targets))
    assert_close(out["loss"], math.log(Z) - own, "loss")


@pytest.mark.exercise("TransformerLM.forward")
def test_positions_are_added_to_the_tokens(impl):
    # token (0, 0, 3), places (3, 0, 0) and (0, 3, 0): sums (3, 0, 3) and (0, 3, 3), mean 2,
    # deviations 1 and -2, variance 2
    eye = torch.eye(3).tolist()
    model = written(impl, [[0.0, 0, 3]] * 3, [[3.0, 0, 0], [0, 3, 0]], [[0.0, 0, 0]], eye)
    n = 1 / math.sqrt(2 + 1e-5)
    logits = model(torch.tensor([[0, 0]]))["logits"]
    assert_close(logits, [[[n, -2 * n, n], [-2 * n, n, n]]], "the normed sums")


@pytest.mark.exercise("TransformerLM.forward")
def test_every_block_adds_to_the_stream(impl):
    # token (1, 0, 0), and two blocks that add (0, 2, 0) and (0, 0, 3): (1, 2, 3), variance 2/3
    # the last block alone gives (1, 0, 3), no block (1, 0, 0), one residual too many (4, 4, 3)
    eye, updates = torch.eye(3).tolist(), [[0.0, 2, 0], [0, 0, 3]]
    model = written(impl, [[1.0, 0, 0]] * 3, [[0.0, 0, 0]], updates, eye)
    n = 1 / math.sqrt(2 / 3 + 1e-5)
    assert_close(model(torch.tensor([[0]]))["logits"], [[[-n, 0.0, n]]], "the normed stream")


@pytest.mark.exercise("TransformerLM.forward")
def test_a_block_reads_what_the_block_before_it_has_written(impl):
    # token (1, 0), block 1 adds (0, 2); block 2 adds gelu(10 n) to feature 0, where n is feature 1
    # of the normed stream: (1, 2) has n = A and gets 10 A, so (1 + 10 A, 2), normed (m, -m)
    # a block 2 that read the embedding would find n = -A, add gelu(-10 A) = 0, and give (-A, A)
    model = written(
        impl, [[1.0, 0]] * 3, [[0.0, 0]], [[0.0, 2], [0, 0]], [[1.0, 0], [0, 1], [0, 0]]
    )
    model.blocks[1].feedforward.up_proj.weight.copy_(torch.tensor([[0.0, 10], [0, 0]]))
    model.blocks[1].feedforward.down_proj.weight.copy_(torch.eye(2))
    half = (10 * A - 1) / 2
    m = half / math.sqrt(half * half + 1e-5)
    assert_close(model(torch.tensor([[0]]))["logits"], [[[m, -m, 0.0]]], "the normed stream")


@pytest.mark.exercise("TransformerLM.forward")
def test_in_training_dropout_takes_token_and_position_alike(impl):
    # all of the embedding is dropped; the blocks (dropout 0) add (0, 2, 3): mean 5/3,
    # deviations -5/3, 1/3, 4/3, variance 42/27
    eye, updates = torch.eye(3).tolist(), [[0.0, 2, 0], [0, 0, 3]]
    model = written(impl, [[1.0, 0, 0]] * 3, [[7.0, 0, 0]], updates, eye).train()
    model.embedding_dropout.p = 1.0
    n = 1 / math.sqrt(42 / 27 + 1e-5)
    expected = [[[-5 / 3 * n, n / 3, 4 / 3 * n]]]
    assert_close(model(torch.tensor([[0]]))["logits"], expected, "what the blocks add, normed")


@pytest.mark.exercise("TransformerLM.forward")
def test_two_evaluations_agree_exactly(impl):
    model = random_model(impl, dropout=0.5).eval()
    tokens, _ = random_batch(2, 5, 7)
    first, second = model(tokens)["logits"], model(tokens)["logits"]
    assert_close(second, first, "the second evaluation", rtol=0, atol=0)


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("future", [[], [4], [5, 2, 2]], ids=str)
def test_a_prefix_keeps_its_logits_whatever_follows(impl, reference, future):
    # the prefix 3 1 6 under other futures, and under none
    expected = random_model(reference).eval()(torch.tensor([[3, 1, 6, 0, 1]]))["logits"][:, :3]
    logits = random_model(impl).eval()(torch.tensor([[3, 1, 6, *future]]))["logits"][:, :3]
    assert_close(logits, expected, "logits of the prefix 3 1 6")


SHAPES = [
    pytest.param(2, 5, {}, torch.float64, id="all sizes different"),
    pytest.param(
        4, 4, dict.fromkeys(SIZES, 4) | {"n_layers": 2}, torch.float64, id="all sizes equal"
    ),
    pytest.param(3, 6, {"n_layers": 3}, torch.float32, id="float32, all places taken"),
]


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize(("B", "T", "config", "dtype"), SHAPES)
def test_logits_and_loss_equal_the_reference(impl, reference, B, T, config, dtype):
    tokens, targets = random_batch(B, T, V=(SIZES | config)["vocab_size"])
    out = random_model(impl, dtype=dtype, **config)(tokens, targets)
    expected = random_model(reference, dtype=dtype, **config)(tokens, targets)
    assert_close(out["logits"], expected["logits"], "logits (B, T, V)")
    assert_close(out["loss"], expected["loss"], "loss")


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("scored", [True, False], ids=["targets", "no targets"])
def test_gradients_equal_the_reference(impl, reference, scored):
    # of the logits under a random upstream gradient, and of the loss: all parameters in a row
    tokens, targets = random_batch(2, 5, 7)
    upstream = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gradients = []
    for module in (impl, reference):
        model = random_model(module)
        out = model(tokens, targets if scored else None)
        total = (out["logits"] * upstream).sum()
        (total + 10 * out["loss"] if scored else total).backward()
        parameters = [p for _, p in sorted(model.named_parameters())]
        rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradients.append(torch.cat([row.flatten() for row in rows]))
    assert_close(gradients[0], gradients[1], "the gradients of all parameters")


@pytest.mark.exercise("TransformerLM.forward")
def test_the_loss_reaches_every_number_of_the_ledger(impl):
    # tokens 4 * 16, places 8 * 16, final norm 2 * 16, head 16 * 4; a block: projections 4 * 16^2,
    # feed-forward (16 * 32 + 32) + (32 * 16 + 16), norms 4 * 16, so 2160, twice: 4608 in all
    # the head and the final norm alone are 96; with one block 2448
    model = small_model(impl)
    model(torch.tensor([[0, 1, 0, 1]]), torch.tensor([[1, 0, 1, 0]]))["loss"].backward()
    reached = sum(p.numel() for p in model.parameters() if p.grad is not None)
    assert_close(reached, 4608, "numbers with a gradient")


@pytest.mark.exercise("TransformerLM.forward")
def test_without_targets_there_are_logits_only(impl):
    out = two_layers(impl)(torch.tensor([[0, 1]]))
    rest = {name: value for name, value in out.items() if name != "logits"}
    assert_equal(rest, {"loss": None, "past_key_values": None}, "what comes beside the logits")


BAD_TOKENS = [
    pytest.param(torch.zeros(1, 2), id="floats"),
    pytest.param(torch.zeros(1, 2, dtype=torch.int32), id="int32"),
    pytest.param(torch.zeros(2, dtype=torch.int64), id="one axis"),
    pytest.param(torch.zeros(1, 2, 1, dtype=torch.int64), id="three axes"),
    pytest.param(torch.zeros(0, 2, dtype=torch.int64), id="no row"),
    pytest.param(torch.zeros(1, 0, dtype=torch.int64), id="no column"),
    pytest.param(torch.zeros(1, 7, dtype=torch.int64), id="7 places of 6"),
]


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_forward_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", random_model(impl), tokens)


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("outside", [-1, 7], ids=["-1", "V"])
def test_forward_raises_for_an_id_outside_the_vocabulary(impl, outside):
    raises_something(random_model(impl), torch.tensor([[0, outside]]))


BAD_TARGETS = [
    pytest.param([[1.0, 2, 3], [4, 5, 6]], id="floats"),
    pytest.param([[1, 2], [3, 4], [5, 6]], id="T and B exchanged"),
    pytest.param([[1, 2], [3, 4]], id="shorter"),
    pytest.param([1, 2, 3, 4, 5, 6], id="flat"),
    pytest.param([[-100] * 3] * 2, id="none scored"),
]


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("targets", BAD_TARGETS)
def test_forward_refuses_bad_targets(impl, targets):
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    refuses(ValueError, "targets", random_model(impl), tokens, torch.tensor(targets))


CACHES = [
    pytest.param({"past_key_values": [None, None]}, id="past_key_values"),
    pytest.param({"past_key_values": []}, id="past_key_values, empty"),
    pytest.param({"use_cache": True}, id="use_cache"),
]


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.parametrize("cache", CACHES)
def test_forward_does_not_ignore_a_cache(impl, cache):
    tokens = torch.tensor([[0, 1]])
    refuses(NotImplementedError, "chapter 10", random_model(impl), tokens, **cache)


@pytest.mark.exercise("TransformerLM.forward")
@pytest.mark.trains
def test_the_blocks_alone_can_learn_a_fixed_batch(impl, reference):
    # embedding, norm and head are frozen, so whatever is learned goes through the blocks; a larger
    # head, since weights of 0.02 bound its logits: from 3.94 to 5e-4 (measured), asked for 0.1
    model = small_model(impl).requires_grad_(False)
    model.blocks.requires_grad_(True)
    model.head.weight.mul_(50)
    losses = reference.fit_fixed_batch(model, *map(torch.tensor, LEARNABLE), steps=30)
    assert losses[-1] < 0.1, f"from {losses[0]:.4f} to {losses[-1]:.4f} in 30 steps"


@pytest.mark.exercise("TransformerLM.forward")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    heads=st.integers(1, 2),
    head_width=st.integers(1, 3),
    layers=st.integers(1, 2),
    scored=st.booleans(),
)
def test_forward_agrees_with_reference(impl, reference, B, T, heads, head_width, layers, scored):
    config = {"d_model": heads * head_width, "n_heads": heads, "n_layers": layers, "block_size": 4}
    tokens, targets = random_batch(B, T, 7)
    targets = targets if scored else None
    out = random_model(impl, **config)(tokens, targets)
    expected = random_model(reference, **config)(tokens, targets)
    assert_close(out["logits"], expected["logits"], "logits (B, T, V)")
    if scored:
        assert_close(out["loss"], expected["loss"], "loss")


# token_loss ----------------------------------------------------------------------------------


def sure(targets, V, by=20.0):
    """Logits that give `by` to each target and 0 to all else."""
    return by * torch.eye(V, dtype=torch.float64)[torch.tensor(targets)]


@pytest.mark.exercise("token_loss")
@pytest.mark.parametrize(
    ("targets", "gap"),
    [
        pytest.param([[1, 0]], 2 * A, id="the lower logit"),
        pytest.param([[0, 1]], -2 * A, id="the higher logit"),
    ],
)
def test_two_classes_cost_the_softplus_of_their_gap(impl, targets, gap):
    # (A, -A) and (-A, A): the lower one costs log(1 + e^2A) = 2.1268928, the higher 0.1269328
    logits = torch.tensor([[[A, -A], [-A, A]]], dtype=torch.float64)
    loss = impl.token_loss(logits, torch.tensor(targets))
    assert_close(loss, math.log1p(math.exp(gap)), "log(1 + e^gap)")


@pytest.mark.exercise("token_loss")
def test_perfect_predictions_cost_nothing(impl):
    # the text 0 1 2 3 0, whose targets 1 2 3 0 are aligned: each gets 20 more than all else, which
    # leaves log(1 + 3 e^-20) = 6e-9; shifted once more, every prediction is wrong and costs 20
    loss = impl.token_loss(sure([[1, 2, 3, 0]], V=4), torch.tensor([[1, 2, 3, 0]]))
    assert_close(loss, 0.0, "the loss of an oracle", atol=1e-7)


@pytest.mark.exercise("token_loss")
def test_no_row_predicts_the_next_row(impl):
    # row 0 is sure and right: 0; row 1 knows nothing: log 4 at each place; the mean is log 2
    # flattened first and shifted then, the last place of row 0 predicts the first target of row 1
    logits = torch.cat([sure([[1, 2, 3]], V=4), torch.zeros(1, 3, 4, dtype=torch.float64)])
    loss = impl.token_loss(logits, torch.tensor([[1, 2, 3], [2, 3, 0]]))
    assert_close(loss, math.log(2), "the mean of 0 and log 4", atol=1e-7)


@pytest.mark.exercise("token_loss")
def test_the_sum_is_divided_by_the_number_scored(impl):
    # probabilities 1/2 1/4 1/4; row 0 scores target 0 once, row 1 scores 0, 0, 1
    # (3 log 2 + log 4) / 4 = 5/4 log 2; divided by all six places 5/6 log 2
    # a mean of the rows' means: (1 + 4/3) / 2 log 2 = 7/6 log 2; divided by V: 5/12 log 2
    logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().repeat(2, 3, 1)
    logits[0, 1:] = torch.tensor([0.0, 50, -50])  # not scored
    loss = impl.token_loss(logits, torch.tensor([[0, -100, -100], [0, 0, 1]]))
    assert_close(loss, 5 / 4 * math.log(2), "the mean over scored places")


@pytest.mark.exercise("token_loss")
def test_the_gradient_is_probability_minus_one_hot_over_the_number_scored(impl):
    # two places are scored, upstream 6: 6 / 2 times (1/2 - 1, 1/4, 1/4) and (1/2, 1/4 - 1, 1/4)
    logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().repeat(1, 3, 1)
    logits.requires_grad_()
    (6 * impl.token_loss(logits, torch.tensor([[0, -100, 1]]))).backward()
    expected = [[[-1.5, 0.75, 0.75], [0.0, 0, 0], [1.5, -2.25, 0.75]]]
    assert_close(logits.grad, expected, "the gradient of the logits")


@pytest.mark.exercise("token_loss")
def test_logits_of_a_thousand_cost_what_they_should(impl):
    # 2000 below the best, and the best itself: 2000 and 0
    logits = torch.tensor([[[1000.0, -1000, 0], [1000, 0, 0]]], dtype=torch.float64)
    assert_close(impl.token_loss(logits, torch.tensor([[1, 0]])), 1000.0, "the mean loss")


@pytest.mark.exercise("token_loss")
@pytest.mark.parametrize("targets", BAD_TARGETS)
def test_token_loss_refuses_bad_targets(impl, targets):
    refuses(ValueError, "targets", impl.token_loss, torch.zeros(2, 3, 7), torch.tensor(targets))


@pytest.mark.exercise("token_loss")
@pytest.mark.parametrize("outside", [-1, 7], ids=["-1", "V"])
def test_token_loss_raises_for_a_target_outside_the_vocabulary(impl, outside):
    raises_something(impl.token_loss, torch.zeros(1, 2, 7), torch.tensor([[0, outside]]))


@pytest.mark.exercise("token_loss")
def test_token_loss_does_not_change_targets(impl):
    targets = torch.tensor([[2, -100, 1]])
    impl.token_loss(torch.zeros(1, 3, 4), targets)
    assert_close(targets, torch.tensor([[2, -100, 1]]), "targets after the call")


@pytest.mark.exercise("token_loss")
@given(B=st.integers(1, 4), T=st.integers(1, 4), V=st.integers(2, 5), seed=st.integers(0, 9))
def test_token_loss_agrees_with_reference(impl, reference, B, T, V, seed):
    _, targets = random_batch(B, T, V, seed)
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, T, V, generator=rng, dtype=torch.float64)
    assert_close(
        impl.token_loss(logits, targets), reference.token_loss(logits, targets), "the mean loss"
    )


# optimizer_mismatch --------------------------------------------------------------------------


def parameters(*frozen, **tensors):
    """A module with these parameters, in this order."""
    model = nn.ParameterDict()  # given a dict at once, it would sort the names
    for name, value in tensors.items():
        model[name] = nn.Parameter(value, requires_grad=name not in frozen)
    return model


MISMATCH = "(not_held, not_in_model)"


def groups(*lists):
    """What is read of an optimizer; making a real one would import a compiler."""
    return SimpleNamespace(param_groups=[{"params": list(held)} for held in lists])


@pytest.mark.exercise("optimizer_mismatch")
def test_an_optimizer_of_all_parameters_matches(impl):
    model = parameters(weight=torch.ones(2, 3), bias=torch.ones(3), scale=torch.ones(3))
    optimizer = groups([model["weight"]], [model["bias"], model["scale"]])
    assert_equal(impl.optimizer_mismatch(model, optimizer), ([], []), MISMATCH)


@pytest.mark.exercise("optimizer_mismatch")
def test_a_replaced_layer_is_not_held_and_its_old_self_is_not_in_the_model(impl):
    # the new head equals the old one number by number, and no step will ever move it
    model = parameters(embedding=torch.ones(4, 2), head=torch.ones(4, 2))
    optimizer = groups(model.parameters())
    model["head"] = nn.Parameter(torch.ones(4, 2))
    expected = (["head"], ["group 0, parameter 1"])
    assert_equal(impl.optimizer_mismatch(model, optimizer), expected, MISMATCH)


@pytest.mark.exercise("optimizer_mismatch")
def test_parameters_left_out_are_named_in_the_models_order(impl):
    # the head is forgotten, and so is a norm; every group is looked through
    names = ("head", "block", "a_norm")
    model = nn.ModuleDict({name: parameters(weight=torch.ones(2)) for name in names})
    optimizer = groups([], model["block"].parameters())
    expected = (["head.weight", "a_norm.weight"], [])
    assert_equal(impl.optimizer_mismatch(model, optimizer), expected, MISMATCH)


@pytest.mark.exercise("optimizer_mismatch")
def test_places_are_counted_in_each_group_from_zero(impl):
    # group 0 holds w and a stranger, group 1 a stranger, b and another stranger
    model = parameters(w=torch.ones(2), b=torch.ones(2))
    strangers = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = groups([model["w"], strangers[0]], [strangers[1], model["b"], strangers[2]])
    expected = ["group 0, parameter 1", "group 1, parameter 0", "group 1, parameter 2"]
    assert_equal(impl.optimizer_mismatch(model, optimizer), ([], expected), MISMATCH)


@pytest.mark.exercise("optimizer_mismatch")
def test_frozen_parameters_are_not_reported(impl):
    # backbone is frozen and not held, embedding is frozen and held, an old one is frozen and held
    tensors = {name: torch.ones(2) for name in ("embedding", "backbone", "head")}
    model = parameters("embedding", "backbone", **tensors)
    old = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = groups([model["head"], model["embedding"], old])
    assert_equal(impl.optimizer_mismatch(model, optimizer), ([], []), MISMATCH)


@pytest.mark.exercise("optimizer_mismatch")
@given(
    homes=st.lists(st.integers(-1, 2), min_size=1, max_size=4),
    strangers=st.lists(st.integers(0, 2), max_size=3),
    frozen=st.integers(0, 4),
)
def test_optimizer_mismatch_agrees_with_reference(impl, reference, homes, strangers, frozen):
    # homes: the group of each parameter, -1 for none
    names = [f"{'zyxw'[i]}{i}" for i in range(len(homes))]
    model = parameters(*names[:frozen], **{name: torch.ones(1) for name in names})
    held = [[], [], []]
    for group in strangers:
        held[group].append(nn.Parameter(torch.ones(1)))
    for name, group in zip(names, homes, strict=True):
        if group >= 0:
            held[group].append(model[name])
    optimizer = groups(*held)
    expected = reference.optimizer_mismatch(model, optimizer)
    assert_equal(impl.optimizer_mismatch(model, optimizer), expected, MISMATCH)


# gradient_report -----------------------------------------------------------------------------


def with_gradients(**gradients):
    """A module with a parameter for each gradient; None is no gradient."""
    shapes = {name: torch.tensor([0.0, 0] if g is None else g) for name, g in gradients.items()}
    model = parameters(**{name: torch.zeros_like(tensor) for name, tensor in shapes.items()})
    for name, gradient in gradients.items():
        model[name].grad = None if gradient is None else shapes[name]
    return model


@pytest.mark.exercise("gradient_report")
def test_each_parameter_has_a_status_and_a_norm(impl):
    # 3-4-5; a gradient of zeros is there, no gradient is not, whether it is wanted or frozen
    model = with_gradients(w=[3.0, -4], b=[0.0, 0], a=None, frozen=None)
    model["frozen"].requires_grad_(False)
    expected = {
        "w": {"status": "ok", "norm": 5.0},
        "b": {"status": "zero", "norm": 0.0},
        "a": {"status": "missing", "norm": None},
        "frozen": {"status": "missing", "norm": None},
    }
    assert_equal(impl.gradient_report(model), expected, "the report")


@pytest.mark.exercise("gradient_report")
def test_parameters_of_inner_modules_have_their_full_names(impl):
    report = impl.gradient_report(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False)))
    assert_equal(list(report), ["0.weight", "0.bias", "1.weight"], "names")


@pytest.mark.exercise("gradient_report")
def test_rows_of_absent_tokens_may_be_zero(impl):
    # tokens 0 and 2 do not occur; the norm is that of the one row (6, 8)
    report = impl.gradient_report(with_gradients(embedding=[[0.0, 0], [6, 8], [0, 0]]))
    assert_equal(report, {"embedding": {"status": "ok", "norm": 10.0}}, "the report")


@pytest.mark.exercise("gradient_report")
@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf], ids=str)
def test_one_bad_entry_makes_a_gradient_non_finite(impl, entry):
    report = impl.gradient_report(with_gradients(w=[[3.0, 4], [entry, 0]]))
    assert_equal(report["w"]["status"], "non-finite", "status")


@pytest.mark.exercise("gradient_report")
@pytest.mark.parametrize("size", [1e30, 1e-30], ids=["1e30", "1e-30"])
def test_float32_gradients_are_squared_in_float64(impl, size):
    # 3-4-5 times 1e30 or 1e-30: the squares leave float32, 3.4e38 is its end and 1.4e-45 its start
    entry = impl.gradient_report(with_gradients(w=[3 * size, 4 * size]))["w"]
    assert_close(entry["norm"], 5 * size, "norm", rtol=1e-6, atol=0)
    assert_equal((type(entry["norm"]), entry["status"]), (float, "ok"), "type of norm, status")


@pytest.mark.exercise("gradient_report")
@given(
    gradients=st.lists(
        st.none()
        | st.lists(st.sampled_from([0.0, 1.5, -2.0, math.nan, math.inf]), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_gradient_report_agrees_with_reference(impl, reference, gradients):
    model = with_gradients(**{f"{'zyxw'[i]}{i}": g for i, g in enumerate(gradients)})
    got, expected = impl.gradient_report(model), reference.gradient_report(model)
    statuses = [[(name, entry["status"]) for name, entry in r.items()] for r in (got, expected)]
    assert_equal(*statuses, "names and statuses")
    for name, entry in expected.items():
        if entry["status"] == "ok":
            assert_close(got[name]["norm"], entry["norm"], f"norm of {name}")


# fit_fixed_batch -----------------------------------------------------------------------------

LR = 0.25


def with_a_free_head(module):
    """`two_layers` in which the head alone may learn, and a batch whose targets it gets wrong."""
    model = two_layers(module)
    model.head.requires_grad_(True)
    return model, torch.tensor([[0, 1]]), torch.tensor([[1, 0]])


# AdamW's first step is lr g / (|g| + 1e-8): lr against the sign of each gradient, whatever its
# size. Row 0 of the head scores too high where (A, -A) comes in and too low where (-A, A) does:
# signs (+, -); row 1 the other way round; row 2 gets (p - p) A = 0.
# So (1, 0), (0, 1), (0, 0) becomes (1 - lr, lr), (lr, 1 - lr), (0, 0).
STEPPED = [[1 - LR, LR], [LR, 1 - LR], [0.0, 0]]


@pytest.mark.exercise("fit_fixed_batch")
def test_the_first_step_goes_lr_against_each_gradients_sign(impl, reference):
    # with weight decay 0.01 the entry 0.75 would be 0.7475
    model, tokens, targets = with_a_free_head(reference)
    impl.fit_fixed_batch(model, tokens, targets, steps=1, lr=LR)
    assert_close(model.head.weight.detach(), STEPPED, "the head after one step", atol=1e-6)


@pytest.mark.exercise("fit_fixed_batch")
def test_losses_stand_before_each_step_and_after_the_last(impl, reference):
    # before: log Z + A = 2.4075745; after, the logits are half as large: (A/2, -A/2, 0)
    model, tokens, targets = with_a_free_head(reference)
    losses = impl.fit_fixed_batch(model, tokens, targets, steps=1, lr=LR)
    after = math.log(math.exp(A / 2) + math.exp(-A / 2) + 1) + A / 2  # 1.6802
    assert_close(torch.tensor(losses), [math.log(Z) + A, after], "losses", rtol=1e-5)
    assert_equal([type(loss) for loss in losses], [float, float], "types")


@pytest.mark.exercise("fit_fixed_batch")
def test_no_step_changes_nothing_and_costs_what_it_costs(impl, reference):
    model, tokens, targets = with_a_free_head(reference)
    losses = impl.fit_fixed_batch(model, tokens, targets, steps=0)
    assert_close(torch.tensor(losses), [math.log(Z) + A], "the one loss")


@pytest.mark.exercise("fit_fixed_batch")
def test_gradients_from_before_do_not_count(impl, reference):
    # a thousand in every entry, left by whoever came before, would turn every sign
    model, tokens, targets = with_a_free_head(reference)
    model.head.weight.grad = -1000 * torch.tensor(STEPPED, dtype=torch.float64).sign()
    impl.fit_fixed_batch(model, tokens, targets, steps=1, lr=LR)
    assert_close(model.head.weight.detach(), STEPPED, "the head after one step", atol=1e-6)


@pytest.mark.exercise("fit_fixed_batch")
def test_gradients_are_clipped_before_the_step(impl, reference):
    # four entries of equal size share the norm 2e-8, so each is 1e-8: lr 1e-8 / (1e-8 + 1e-8)
    # clipped each on its own, an entry is 2e-8 and its step 2/3 lr
    model, tokens, targets = with_a_free_head(reference)
    impl.fit_fixed_batch(model, tokens, targets, steps=1, lr=2 * LR, max_norm=2e-8)
    assert_close(model.head.weight.detach(), STEPPED, "the head after half a step", atol=1e-4)


@pytest.mark.exercise("fit_fixed_batch")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_models_mode_is_left_as_it_is(impl, reference, training):
    model, tokens, targets = with_a_free_head(reference)
    impl.fit_fixed_batch(model.train(training), tokens, targets, steps=1)
    modes = {module.training for module in model.modules()}
    assert_equal(modes, {training}, "training, of all modules")


@pytest.fixture(scope="module")
def fitted(impl, reference):
    """Fits the learnable batch when first asked, then gives the same model and losses."""

    @functools.cache
    def fit():
        model = small_model(reference)
        return model, impl.fit_fixed_batch(model, *map(torch.tensor, LEARNABLE), steps=40)

    return fit


@pytest.mark.exercise("fit_fixed_batch")
@pytest.mark.trains
def test_a_fixed_batch_is_learned_by_heart(fitted):
    # the floor is 0; from near log 4 = 1.386 to 7e-5 in 40 steps (measured), asked for 0.1
    _, losses = fitted()
    assert_close(losses[0], math.log(4), "the first loss, of nearly equal logits", atol=0.05)
    assert losses[-1] < 0.1, f"the last loss is {losses[-1]:.4f}"


@pytest.mark.exercise("fit_fixed_batch")
@pytest.mark.trains
def test_after_the_fit_the_best_logits_are_the_targets(fitted):
    model, _ = fitted()
    best = model(torch.tensor(LEARNABLE[0]))["logits"].argmax(dim=-1)
    assert_close(best, torch.tensor(LEARNABLE[1]), "argmax")


@pytest.mark.exercise("fit_fixed_batch")
@pytest.mark.trains
def test_contradictory_targets_end_just_above_their_floor(impl, reference):
    # after the prefix 0 1 stands 2 once and 0 once: log 2 at two of four places, never less
    # measured after 40 steps: 7e-5 above it
    batch = map(torch.tensor, CONTRADICTORY)
    losses = impl.fit_fixed_batch(small_model(reference), *batch, steps=40)
    above = losses[-1] - math.log(2) / 2
    assert 0 <= above < 1e-3, f"the last loss is {above:+.6f} from log(2) / 2"


@pytest.mark.exercise("fit_fixed_batch")
@given(
    steps=st.integers(0, 2),
    lr=st.sampled_from([0.01, 0.1]),
    max_norm=st.sampled_from([1e-8, 0.1, 100.0]),
)
def test_fit_fixed_batch_agrees_with_reference(impl, reference, steps, lr, max_norm):
    sizes = {"vocab_size": 3, "d_model": 2, "n_heads": 1, "n_layers": 1, "d_ff": 2}
    tokens, targets = torch.tensor([[0, 1, 2]]), torch.tensor([[2, -100, 0]])
    ends = []
    for module in (impl, reference):
        model = random_model(reference, **sizes)
        losses = module.fit_fixed_batch(model, tokens, targets, steps, lr, max_norm)
        numbers = [p.detach().flatten() for p in model.parameters()]
        ends.append(torch.cat([torch.tensor(losses, dtype=torch.float64), *numbers]))
    assert_close(ends[0], ends[1], "losses, then parameters", rtol=1e-4, atol=1e-6)


# conflict_floor ------------------------------------------------------------------------------


FLOORS = [
    # 0 1 goes on with 2 and with 0: 2 log 2 over four places
    pytest.param([[0, 1], [0, 1]], [[1, 2], [1, 0]], math.log(2) / 2, id="2 of 4 contradict"),
    # shares 3/4 and 1/4: -(3 log 3/4 + log 1/4) / 4 = 0.5623351; two kinds alone: log 2
    pytest.param(
        [[5]] * 4,
        [[1], [1], [1], [2]],
        -(3 * math.log(3 / 4) + math.log(1 / 4)) / 4,
        id="3 to 1",
    ),
    # the same token 1 after 0 and after 2, so each is determined
    pytest.param([[0, 1], [2, 1]], [[1, 2], [1, 0]], 0.0, id="other pasts"),
    # the same prefix 0 with other futures: log 2 at the first place, the second is determined
    pytest.param([[0, 1], [0, 2]], [[1, 3], [2, 3]], math.log(2) / 2, id="other futures"),
    # the same past 0 before two tokens that tell them apart
    pytest.param([[0, 1], [0, 2]], [[3, 1], [3, 2]], 0.0, id="other tokens now"),
    # the same tokens in another order: 0 1 2 and 1 0 2 are two prefixes
    pytest.param(
        [[0, 1, 2], [1, 0, 2]], [[-100, -100, 3], [-100, -100, 4]], 0.0, id="another order"
    ),
    # 1 12 and 11 2 are two prefixes, however they are written
    pytest.param([[1, 12], [11, 2]], [[-100, 2], [-100, 3]], 0.0, id="ids of two digits"),
    # 0 and 0 0 are two prefixes; a row of equal tokens contradicts nothing
    pytest.param([[0, 0, 0]], [[1, 2, 3]], 0.0, id="other lengths"),
    # one of the two contradicting places is not scored: nothing is left of it
    pytest.param([[0, 1], [0, 1]], [[1, 2], [1, -100]], 0.0, id="half of it not scored"),
    # 2 log 2 over the three scored places of four
    pytest.param(
        [[0, 1], [0, 1]], [[-100, 2], [1, 0]], 2 * math.log(2) / 3, id="2 of 3 scored contradict"
    ),
]


@pytest.mark.exercise("conflict_floor")
@pytest.mark.parametrize(("tokens", "targets", "floor"), FLOORS)
def test_the_floor_is_the_entropy_that_is_left_under_equal_prefixes(impl, tokens, targets, floor):
    got = impl.conflict_floor(torch.tensor(tokens), torch.tensor(targets))
    assert_close(got, floor, "the mean over scored places")
    assert_equal(isinstance(got, float), True, "whether the floor is a float")


@pytest.mark.exercise("conflict_floor")
@pytest.mark.parametrize("targets", BAD_TARGETS)
def test_conflict_floor_refuses_bad_targets(impl, targets):
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    refuses(ValueError, "targets", impl.conflict_floor, tokens, torch.tensor(targets))


@pytest.mark.exercise("conflict_floor")
@given(
    places=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([0, 1, 2, -100])), min_size=1, max_size=12
    ),
    length=st.integers(1, 3),
)
def test_conflict_floor_agrees_with_reference(impl, reference, places, length):
    rows = [places[i : i + length] for i in range(0, len(places) - length + 1, length)]
    rows = rows or [places[:1]]
    tokens, targets = torch.tensor(rows).unbind(dim=-1)
    targets[0, 0] = 1
    expected = reference.conflict_floor(tokens, targets)
    assert_close(impl.conflict_floor(tokens, targets), expected, "the floor")


# All together --------------------------------------------------------------------------------


@pytest.mark.exercise(
    "Config.__post_init__",
    "TransformerLM.forward",
    "token_loss",
    "optimizer_mismatch",
    "gradient_report",
    "fit_fixed_batch",
    "conflict_floor",
)
@pytest.mark.trains
def test_the_file_as_written_learns_and_every_instrument_agrees(impl, reference):
    tokens, targets = map(torch.tensor, LEARNABLE)
    losses = []
    for module in (impl, reference):
        model = small_model(module)
        losses.append(module.fit_fixed_batch(model, tokens, targets, steps=5))
        model(tokens, targets)["loss"].backward()
        statuses = {entry["status"] for entry in module.gradient_report(model).values()}
        assert_equal(statuses, {"ok"}, "what the gradients are")
        optimizer = torch.optim.AdamW(model.parameters())
        assert_equal(module.optimizer_mismatch(model, optimizer), ([], []), MISMATCH)
        assert_close(module.conflict_floor(tokens, targets), 0.0, "the floor")
    assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), "the losses of five steps")
