"""Chapter 5: the transformer block."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from grader.checks import assert_close, refuses

N = 1 / math.sqrt(1 + 1e-5)  # a token (1, 3) is normed to (-N, N): variance 1, eps 1e-5


def random(*shape, seed=0):
    """Standard normal numbers in float64, drawn without the code under test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ones_and_zeros(D, dtype=torch.float32):
    """The weight and bias that scale and shift nothing."""
    return torch.ones(D, dtype=dtype), torch.zeros(D, dtype=dtype)


def assert_drawn_one_by_one(dropped):
    """Fail if what dropout has left of (B, T, D) numbers is the same pattern all along an axis.

    With p = 0.5 that has the probability 2 ** -(all numbers - those of one slice).
    """
    lost = dropped.abs() < 1e-9
    axes = {"samples": 0, "positions": 1, "features": 2}
    alike = [name for name, axis in axes.items() if not lost.diff(dim=axis).any()]
    assert not alike, f"each number is dropped on its own, but all {alike[0]} lose the same ones"


# layer_norm --------------------------------------------------------------------------------


@pytest.mark.exercise("layer_norm")
def test_the_variance_is_divided_by_the_number_of_features(impl):
    # mean 2.5, deviations -1.5 -0.5 0.5 1.5, variance 5/4: -1.5 / sqrt(1.25001) = -1.3416354
    # divided by 3: variance 5/3, -1.1618915
    root = math.sqrt(1.25 + 1e-5)
    y = impl.layer_norm(torch.tensor([1.0, 2, 3, 4]), *ones_and_zeros(4))
    assert_close(y, [-1.5 / root, -0.5 / root, 0.5 / root, 1.5 / root], "the normed token")


@pytest.mark.exercise("layer_norm")
@pytest.mark.parametrize(
    ("eps", "normed"),
    [
        pytest.param(3e-6, 0.5, id="three times the variance"),
        pytest.param(99e-6, 0.1, id="99 times the variance"),
        pytest.param(0.0, 1.0, id="none"),
    ],
)
def test_eps_is_added_to_the_variance_inside_the_root(impl, eps, normed):
    # deviations -+1e-3, variance 1e-6; 1e-3 / sqrt(1e-6 + 3e-6) = 1e-3 / 2e-3
    # outside the root: 1e-3 / (1e-3 + 3e-6) = 0.997
    y = impl.layer_norm(torch.tensor([0.0, 2e-3]), *ones_and_zeros(2), eps=eps)
    assert_close(y, [-normed, normed], "the normed token")


@pytest.mark.exercise("layer_norm")
def test_eps_is_a_hundred_thousandth_unless_given(impl):
    # deviations -+2, times 1e-3: variance 4e-6; 2e-3 / sqrt(4e-6 + 1e-5) = 2 / sqrt(14)
    y = impl.layer_norm(torch.tensor([0.0, 4e-3]), *ones_and_zeros(2))
    assert_close(y, [-2 / math.sqrt(14), 2 / math.sqrt(14)], "the normed token")


@pytest.mark.exercise("layer_norm")
def test_weight_scales_each_feature_and_bias_shifts_it_after(impl):
    # normed -1 -1 1 1 (mean 3, variance 4); times 1 2 3 4, plus 10 20 30 40
    weight, bias = torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 30, 40])
    y = impl.layer_norm(torch.tensor([1.0, 1, 5, 5]), weight, bias, eps=0.0)
    assert_close(y, torch.tensor([9.0, 18, 33, 44]), "weight * normed + bias, in float32")


@pytest.mark.exercise("layer_norm")
def test_each_token_has_its_own_mean_and_variance(impl):
    # means 3, 0, 20, deviations 2, 1, 10 in two samples; the second holds the tokens in other order
    x = torch.tensor([[[1.0, 1, 5, 5], [1, -1, 1, -1], [30, 10, 10, 30]]])
    x = torch.cat([x, x.flip(1)])  # (2, 3, 4)
    y = impl.layer_norm(x, *ones_and_zeros(4), eps=0.0)
    first = [[-1.0, -1, 1, 1], [1, -1, 1, -1], [1, -1, -1, 1]]
    assert_close(y, [first, first[::-1]], "the normed tokens (B, T, D)")


@pytest.mark.exercise("layer_norm")
def test_where_all_sizes_are_equal_it_is_the_features_that_are_normed(impl):
    # rows (1, 3), (5, 1), (0, 8), (6, 2): each is -1 and 1 in its own order
    x = torch.tensor([[[1.0, 3], [5, 1]], [[0, 8], [6, 2]]])
    y = impl.layer_norm(x, *ones_and_zeros(2), eps=0.0)
    assert_close(y, [[[-1.0, 1], [1, -1]], [[-1, 1], [1, -1]]], "the normed tokens (B, T, D)")


@pytest.mark.exercise("layer_norm")
def test_a_token_of_equal_features_gives_the_bias(impl):
    # deviations 0 over sqrt(eps), not over 0
    y = impl.layer_norm(torch.full((2, 3), 7.0), torch.ones(3), torch.tensor([1.0, 2, 3]))
    assert_close(y, [[1.0, 2, 3], [1, 2, 3]], "bias, for each token")


@pytest.mark.exercise("layer_norm")
def test_layer_norm_lets_gradients_through_mean_and_variance(impl):
    # against PyTorch's, under a random upstream gradient: a plain sum has gradient 0 here
    inputs = [random(2, 3, 5), random(5, seed=1), random(5, seed=2)]
    inputs = [each.requires_grad_() for each in inputs]
    upstream = random(2, 3, 5, seed=3)
    expected = torch.autograd.grad(F.layer_norm(inputs[0], (5,), *inputs[1:]), inputs, upstream)
    y = impl.layer_norm(*inputs) + 0 * sum(each.sum() for each in inputs)  # keeps the graph whole
    grads = torch.autograd.grad(y, inputs, upstream)
    assert_close(grads[0], expected[0], "the gradient of x")
    assert_close(grads[1], expected[1], "the gradient of weight")
    assert_close(grads[2], expected[2], "the gradient of bias")


@pytest.mark.exercise("layer_norm")
def test_the_gradients_of_layer_norm_agree_with_finite_differences(impl):
    inputs = [random(2, 3), random(3, seed=1), random(3, seed=2)]
    inputs = [each.requires_grad_() for each in inputs]
    right = torch.autograd.gradcheck(
        lambda *each: impl.layer_norm(*each) + 0 * sum(one.sum() for one in each),
        inputs,
        raise_exception=False,
    )
    assert right, "the gradients of x, weight or bias are not those of finite differences"


@pytest.mark.exercise("layer_norm")
def test_layer_norm_changes_neither_x_nor_its_parameters(impl):
    inputs = [random(2, 3), random(3, seed=1), random(3, seed=2)]
    impl.layer_norm(*inputs)
    assert_close(inputs[0], random(2, 3), "x after the call")
    assert_close(inputs[1], random(3, seed=1), "weight after the call")
    assert_close(inputs[2], random(3, seed=2), "bias after the call")


# x is (3, 3, 3), so that all of these would broadcast to its shape
WRONG_SHAPES = [
    pytest.param((1,), id="one for all features"),
    pytest.param((), id="a single number"),
    pytest.param((3, 3), id="one for each token and feature"),
    pytest.param((3, 1), id="one for each token"),
    pytest.param((3, 1, 3), id="one for each sample and feature"),
]


@pytest.mark.exercise("layer_norm")
@pytest.mark.parametrize("shape", WRONG_SHAPES)
def test_layer_norm_refuses_a_weight_that_would_broadcast(impl, shape):
    refuses(
        ValueError,
        "weight",
        impl.layer_norm,
        torch.zeros(3, 3, 3),
        torch.ones(shape),
        torch.ones(3),
    )


@pytest.mark.exercise("layer_norm")
@pytest.mark.parametrize("shape", WRONG_SHAPES)
def test_layer_norm_refuses_a_bias_that_would_broadcast(impl, shape):
    refuses(
        ValueError, "bias", impl.layer_norm, torch.zeros(3, 3, 3), torch.ones(3), torch.ones(shape)
    )


@pytest.mark.exercise("layer_norm")
@given(
    leading=st.lists(st.integers(1, 3), max_size=3),
    D=st.integers(1, 5),
    eps=st.sampled_from([1e-5, 1e-2, 1.0]),
)
def test_layer_norm_agrees_with_reference(impl, reference, leading, D, eps):
    inputs = [random(*leading, D), random(D, seed=1), random(D, seed=2)]
    assert_close(impl.layer_norm(*inputs, eps), reference.layer_norm(*inputs, eps), "normed tokens")


# gelu --------------------------------------------------------------------------------------


@pytest.mark.exercise("gelu")
def test_gelu_is_x_times_the_probability_of_being_below_x(impl):
    # 0.8413447 of a normal distribution lie below 1, 0.1586553 below -1, 0.9772499 below 2
    # the tanh form gives 0.8411920 at 1; relu gives 1, sigmoid(1.702) 0.8457958, silu 0.7310586
    y = impl.gelu(torch.tensor([-1.0, 0, 1, 2]))
    assert_close(y, [-0.1586553, 0.0, 0.8413447, 2 * 0.9772499], "gelu", rtol=0, atol=1e-6)


@pytest.mark.exercise("gelu")
def test_gelu_by_tanh_is_the_approximation(impl):
    # sqrt(2 / pi) 1.044715 = 0.8335677, tanh of it 0.6823840: (1 + 0.6823840) / 2 at 1
    # at 2: sqrt(2 / pi) (2 + 8 * 0.044715) = 1.8811959, tanh 0.9545976: 1 + 0.9545976
    y = impl.gelu(torch.tensor([-1.0, 0, 1, 2]), approximate="tanh")
    assert_close(y, [-0.1588080, 0.0, 0.8411920, 1.9545977], "gelu by tanh", rtol=0, atol=1e-6)


@pytest.mark.exercise("gelu")
def test_gelu_has_the_digits_of_its_input(impl):
    # erf(1 / sqrt(2)) = 0.682689492137086, known to 15 digits
    y = impl.gelu(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    expected = [[(1 + 0.682689492137086) / 2], [-(1 - 0.682689492137086) / 2]]
    assert_close(y, torch.tensor(expected, dtype=torch.float64), "gelu in float64")


WORDS = [pytest.param("none", id="exact"), pytest.param("tanh", id="by tanh")]


@pytest.mark.exercise("gelu")
@pytest.mark.parametrize("approximate", WORDS)
def test_gelu_hands_on_what_is_large_and_stops_what_is_very_negative(impl, approximate):
    # a probability of 1 and of 0; exp(200) is infinite in float32, and infinity over itself is NaN
    y = impl.gelu(torch.tensor([-200.0, 200.0, 1000.0]), approximate)
    assert_close(y, [0.0, 200.0, 1000.0], "gelu far from 0")


@pytest.mark.exercise("gelu")
def test_the_gradient_of_gelu_has_two_parts(impl):
    # P(x) + x density(x): 0.8413447 + 0.2419707 at 1, 0.1586553 - 0.2419707 at -1, 1/2 at 0
    # times the upstream gradient 3, -2, 10; 0 * x keeps the graph whole when an answer has left it
    x = torch.tensor([1.0, -1, 0], requires_grad=True)
    (grad,) = torch.autograd.grad(impl.gelu(x) + 0 * x, x, torch.tensor([3.0, -2, 10]))
    assert_close(grad, [3 * 1.0833155, -2 * -0.0833155, 5.0], "the gradient of x", atol=1e-6)


@pytest.mark.exercise("gelu")
@pytest.mark.parametrize("approximate", WORDS)
def test_the_gradients_of_gelu_agree_with_finite_differences(impl, approximate):
    x = torch.tensor([-2.0, -0.5, 0.3, 1.7], dtype=torch.float64, requires_grad=True)
    right = torch.autograd.gradcheck(
        lambda x: impl.gelu(x, approximate) + 0 * x, x, raise_exception=False
    )
    assert right, "the gradient of x is not that of finite differences"


@pytest.mark.exercise("gelu")
@pytest.mark.parametrize("approximate", WORDS)
def test_gelu_leaves_x_as_it_is(impl, approximate):
    x = torch.tensor([-1.0, 2.0])
    impl.gelu(x, approximate)
    assert_close(x, [-1.0, 2.0], "x after the call")


@pytest.mark.exercise("gelu")
@pytest.mark.parametrize("word", ["exact", "erf", "Tanh", "", None, True], ids=repr)
def test_gelu_refuses_another_word(impl, word):
    refuses(ValueError, "approximate", impl.gelu, torch.ones(2), word)


@pytest.mark.exercise("gelu")
@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    seed=st.integers(0, 9),
    approximate=st.sampled_from(["none", "tanh"]),
)
def test_gelu_agrees_with_reference(impl, reference, shape, seed, approximate):
    x = 2 * random(*shape, seed=seed)
    assert_close(impl.gelu(x, approximate), reference.gelu(x, approximate), "gelu")


# FeedForward.forward -----------------------------------------------------------------------


def feedforward_of(module, up, down, up_bias=0.0, down_bias=0.0, dropout=0.0):
    """A feed-forward with these weights, (F, D) and (D, F) as nn.Linear keeps them."""
    up, down = torch.tensor(up), torch.tensor(down)
    feedforward = module.FeedForward(len(down), len(up), dropout).requires_grad_(False)
    feedforward.up_proj.weight.copy_(up)
    feedforward.up_proj.bias.copy_(torch.tensor(up_bias))
    feedforward.down_proj.weight.copy_(down)
    feedforward.down_proj.bias.copy_(torch.tensor(down_bias))
    return feedforward


def random_feedforward(module, D, width):
    feedforward = module.FeedForward(D, width).double()
    with torch.no_grad():
        for seed, layer in enumerate([feedforward.up_proj, feedforward.down_proj]):
            layer.weight.copy_(random(*layer.weight.shape, seed=10 + seed))
            layer.bias.copy_(random(len(layer.bias), seed=20 + seed))
    return feedforward


@pytest.mark.exercise("FeedForward.forward")
def test_the_feed_forward_goes_up_bends_and_comes_down(impl):
    # up gives x and -x, down adds the first and three of the second:
    # gelu(1) + 3 gelu(-1) = 0.8413447 - 3 * 0.1586553 = 0.3653788
    # gelu by tanh gives 0.3647680, relu 1; without bending 1 - 3 = -2
    # bending at the end: gelu(-2) = -0.0455; bending first: (1 - 3) gelu(1) = -1.6827
    feedforward = feedforward_of(impl, up=[[1.0], [-1.0]], down=[[1.0, 3.0]])
    assert_close(feedforward(torch.tensor([[[0.0], [1.0]]])), [[[0.0], [0.3653788]]], "out")


@pytest.mark.exercise("FeedForward.forward")
def test_both_projections_add_their_biases(impl):
    # up: 2 + 98 = 100 and -2 + 102 = 100, so large that gelu hands them on
    # down: 100 * 1 + 100 * 3 = 400, plus 7
    feedforward = feedforward_of(
        impl, up=[[1.0], [-1.0]], down=[[1.0, 3.0]], up_bias=[98.0, 102.0], down_bias=[7.0]
    )
    assert_close(feedforward(torch.tensor([[[2.0]]])), [[[407.0]]], "out")


@pytest.mark.exercise("FeedForward.forward")
def test_a_row_of_a_weight_makes_one_output(impl):
    # F = D = 2, so a transpose has the right shape. x = (100, 200); rows of up: 100 + 200, 200
    # rows of down: 300, and 10 * 300 + 200; large enough that gelu hands all of them on
    feedforward = feedforward_of(impl, up=[[1.0, 1], [0, 1]], down=[[1.0, 0], [10, 1]])
    out = feedforward(torch.tensor([[[100.0, 200.0]]]))
    assert_close(out, [[[300.0, 3200.0]]], "out")


@pytest.mark.exercise("FeedForward.forward")
def test_each_token_is_treated_alike_and_alone(impl):
    # 1 and 2 at different places of two samples: gelu(x) + gelu(-x) = x erf(x / sqrt(2))
    feedforward = feedforward_of(impl, up=[[1.0], [-1.0]], down=[[1.0, 1.0]])
    one, two = 0.6826895, 2 * 0.9544997
    out = feedforward(torch.tensor([[[1.0], [2], [1]], [[2], [0], [0]]]))
    assert_close(out, [[[one], [two], [one]], [[two], [0.0], [0.0]]], "out (B, T, D)")


@pytest.mark.exercise("FeedForward.forward")
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((4,), id="a token"),
        pytest.param((3, 4), id="a sequence"),
        pytest.param((2, 5, 3, 4), id="four axes"),
    ],
)
def test_the_feed_forward_takes_any_leading_axes(impl, reference, shape):
    out = random_feedforward(impl, 4, 7)(random(*shape))
    assert_close(out, random_feedforward(reference, 4, 7)(random(*shape)), "out")


@pytest.mark.exercise("FeedForward.forward")
def test_the_feed_forward_and_its_gradients_equal_pytorchs_layers(impl):
    # nn.Linear, nn.GELU and nn.Linear with the same weights, under a random upstream gradient
    feedforward = random_feedforward(impl, 4, 7)
    up, down = feedforward.up_proj, feedforward.down_proj
    own = nn.Sequential(up, nn.GELU(), down)
    x, upstream = random(2, 3, 4).requires_grad_(), random(2, 3, 4, seed=1)
    parameters = [x, up.weight, up.bias, down.weight, down.bias]
    out, expected = feedforward(x), own(x)
    assert_close(out, expected, "out")
    grads = torch.autograd.grad(out, parameters, upstream, materialize_grads=True)
    expected = torch.autograd.grad(expected, parameters, upstream)
    assert_close(grads[0], expected[0], "the gradient of x")
    assert_close(grads[1], expected[1], "of up's weight")
    assert_close(grads[3], expected[3], "of down's weight")
    assert_close(
        torch.cat([grads[2], grads[4]]), torch.cat([expected[2], expected[4]]), "of biases"
    )


@pytest.mark.exercise("FeedForward.forward")
def test_in_training_the_feed_forward_drops_its_result(impl):
    # with probability 1 nothing is left, not even the bias 7, which a dropout before down leaves
    feedforward = feedforward_of(
        impl, up=[[1.0], [-1.0]], down=[[1.0, 1.0]], down_bias=[7.0], dropout=1.0
    )
    out = feedforward.train()(torch.tensor([[[1.0], [2.0]]]))
    assert_close(out, [[[0.0], [0.0]]], "out when everything is dropped")


@pytest.mark.exercise("FeedForward.forward")
def test_in_evaluation_the_feed_forward_drops_nothing(impl):
    feedforward = feedforward_of(
        impl, up=[[1.0], [-1.0]], down=[[1.0, 1.0]], down_bias=[7.0], dropout=1.0
    )
    out = feedforward.eval()(torch.tensor([[[1.0], [0.0]]]))
    assert_close(out, [[[7.6826895], [7.0]]], "out in evaluation")


@pytest.mark.exercise("FeedForward.forward")
def test_what_the_feed_forward_keeps_it_scales_once(impl):
    # up gives 100, which gelu hands on, and down 0.01 * 100 + 1 = 2, in 128 places and 2 features:
    # 0 or 2 / (1 - 0.5) = 4, and a (a - 4) is 0 for these two only
    # dropped twice, 8 turns up; dropped between the projections too, 2 or 6
    feedforward = feedforward_of(
        impl,
        up=[[0.0, 0.0]],
        down=[[0.01], [0.01]],
        up_bias=[100.0],
        down_bias=[1.0, 1.0],
        dropout=0.5,
    )
    out = feedforward.train()(torch.zeros(2, 64, 2))
    assert_close(out * (out - 4), torch.zeros(2, 64, 2), "a (a - 4) for each number a")
    assert_drawn_one_by_one(out)


@pytest.mark.exercise("FeedForward.forward")
@given(B=st.integers(1, 3), T=st.integers(1, 4), D=st.integers(1, 4), width=st.integers(1, 5))
def test_feed_forward_agrees_with_reference(impl, reference, B, T, D, width):
    x = random(B, T, D)
    expected = random_feedforward(reference, D, width)(x)
    assert_close(random_feedforward(impl, D, width)(x), expected, "out")


# add_residual ------------------------------------------------------------------------------


@pytest.mark.exercise("add_residual")
def test_the_update_is_added_to_the_stream(impl):
    # the cat sat in two features, and an update of tens
    x = torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])
    update = torch.tensor([[[10.0, 20], [30, 40], [50, 60]]])
    out = impl.add_residual(x, update)
    assert_close(out, [[[11.0, 22], [33, 44], [55, 66]]], "x + update")


# what would broadcast, or fail without a name; in the first five B = T = D
UNEQUAL = [
    pytest.param((3, 3, 3), (3, 3), id="time is gone and B = T"),
    pytest.param((3, 3, 3), (3,), id="batch and time are gone"),
    pytest.param((3, 3, 3), (3, 1, 3), id="one vector for each sample"),
    pytest.param((3, 3, 3), (1, 3, 3), id="one sample for all"),
    pytest.param((3, 3, 3), (), id="a single number"),
    pytest.param((2, 4, 3), (2, 4, 1), id="one number for each token"),
    pytest.param((4, 3), (2, 4, 3), id="an update with a batch, a stream without"),
    pytest.param((1, 4, 3), (2, 4, 3), id="an update of more samples"),
    pytest.param((2, 4, 3), (4, 2, 3), id="batch and time exchanged"),
    pytest.param((2, 4, 3), (2, 4, 5), id="another width"),
    pytest.param((2, 4, 3), (2, 12), id="as many numbers, other axes"),
]


@pytest.mark.exercise("add_residual")
@pytest.mark.parametrize(("x", "update"), UNEQUAL)
def test_an_update_of_another_shape_is_refused(impl, x, update):
    refuses(ValueError, "update", impl.add_residual, torch.zeros(x), torch.ones(update))


@pytest.mark.exercise("add_residual")
def test_the_gradient_goes_to_the_stream_and_to_the_update_as_it_is(impl):
    # d(x + u)/dx = d(x + u)/du = 1; the zeros keep the graph whole when an answer has left it
    x, update = (torch.tensor(numbers, requires_grad=True) for numbers in ([1.0, 2], [3.0, 4]))
    out = impl.add_residual(x, update) + 0 * x + 0 * update
    grad_x, grad_update = torch.autograd.grad(out, [x, update], torch.tensor([5.0, -7]))
    assert_close(grad_x, [5.0, -7], "the gradient of x")
    assert_close(grad_update, [5.0, -7], "the gradient of update")


@pytest.mark.exercise("add_residual")
def test_add_residual_changes_neither_stream_nor_update(impl):
    x, update = torch.tensor([[1.0, 2]]), torch.tensor([[10.0, 20]])
    impl.add_residual(x, update)
    assert_close(x, [[1.0, 2]], "x after the call")
    assert_close(update, [[10.0, 20]], "update after the call")


@pytest.mark.exercise("add_residual")
@given(
    shape=st.lists(st.integers(1, 3), max_size=4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_add_residual_agrees_with_reference(impl, reference, shape, dtype):
    x, update = random(*shape).to(dtype), random(*shape, seed=1).to(dtype)
    assert_close(impl.add_residual(x, update), reference.add_residual(x, update), "x + update")


# TransformerBlock.forward --------------------------------------------------------------------


def block_of(module, attend=0.0, think=0.0, D=2, dropout=0.0):
    """A block that can be followed on paper.

    Queries and keys are 0, so attention averages what it sees: it adds `attend` times the mean of
    the normed tokens. The feed-forward adds `think` times the normed token: gelu(z) - gelu(-z) = z.
    """
    block = module.TransformerBlock(D, n_heads=1, d_ff=2 * D, dropout=dropout).requires_grad_(False)
    eye = torch.eye(D)
    for name, scale in {"q": 0.0, "k": 0.0, "v": 1.0, "o": attend}.items():
        getattr(block.attention, f"{name}_proj").weight.copy_(scale * eye)
    block.feedforward.up_proj.weight.copy_(torch.cat([eye, -eye]))
    block.feedforward.up_proj.bias.zero_()
    block.feedforward.down_proj.weight.copy_(think * torch.cat([eye, -eye], dim=1))
    block.feedforward.down_proj.bias.zero_()
    return block


def random_block(module, H=3, K=4, width=7, dtype=torch.float64):
    """A block whose parameters are all random, gains and biases too, drawn here by name."""
    block = module.TransformerBlock(H * K, H, width).to(dtype)
    state = {}
    for seed, (name, parameter) in enumerate(sorted(block.state_dict().items())):
        numbers = random(*parameter.shape, seed=100 + seed) / math.sqrt(parameter.shape[-1])
        state[name] = numbers + 1 if name.startswith("ln_") and name.endswith("weight") else numbers
    block.load_state_dict(state)
    return block


def stream(block, hidden):
    """The first of the two things that a block gives."""
    given_back = block(hidden)
    pair = isinstance(given_back, tuple) and len(given_back) == 2
    assert pair, f"forward gives (out, None), got a {type(given_back).__name__}"
    return given_back[0]


@pytest.mark.exercise("TransformerBlock.forward")
def test_a_block_whose_sub_layers_give_zero_is_the_identity(impl):
    # a norm on the stream itself would make (-1, 1) of (2, 6); without residuals all is 0
    hidden = torch.tensor([[[2.0, 6], [5, 1], [0, 8]], [[1, 1], [7, 3], [-4, 4]]])
    assert_close(stream(block_of(impl), hidden), hidden, "out")


@pytest.mark.exercise("TransformerBlock.forward")
def test_attention_reads_the_normed_token_and_adds_to_the_raw_one(impl):
    # (1, 3) is normed to (-N, N), and attention multiplies by 10: (1 - 10 N, 3 + 10 N), near -9, 13
    # a norm inside the branch, after attention, gives near (0, 4); a norm at the end (-1, 1)
    out = stream(block_of(impl, attend=10.0), torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[1 - 10 * N, 3 + 10 * N]]], "hidden + attention(norm(hidden))")


@pytest.mark.exercise("TransformerBlock.forward")
def test_the_feed_forward_reads_the_normed_token_and_adds_to_the_raw_one(impl):
    # as above, by the other branch
    out = stream(block_of(impl, think=10.0), torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[1 - 10 * N, 3 + 10 * N]]], "hidden + feedforward(norm(hidden))")


@pytest.mark.exercise("TransformerBlock.forward")
def test_the_feed_forward_reads_what_attention_has_added(impl):
    # attention turns (2, 4) round: (2 + 2 N, 4 - 2 N), near (4, 2), normed to (M, -M)
    # the feed-forward adds (-3 M, 3 M): near (1, 5)
    # both from the same input: near (7, -1); the feed-forward first: near (3, 3)
    half = 2 * N - 1  # the deviation of the sum
    M = half / math.sqrt(half**2 + 1e-5)
    out = stream(block_of(impl, attend=-2.0, think=-3.0), torch.tensor([[[2.0, 4]]]))
    assert_close(out, [[[2 + 2 * N - 3 * M, 4 - 2 * N + 3 * M]]], "out")


@pytest.mark.exercise("TransformerBlock.forward")
def test_each_sub_layer_has_the_norm_of_its_own(impl):
    # the first norm doubles: (1, 3) + 2 (-1, 1) = (-1, 5)
    # the second trebles and adds 5: (-3, 3) + 5 = (2, 8); the feed-forward doubles: (3, 21)
    # the first norm twice: (-5, 9); the second twice: (7, 27); exchanged: (-1, 15)
    # gains and biases left out: (-2, 6). Written down to eps, which is small here
    block = block_of(impl, attend=1.0, think=2.0)
    block.ln_attention.weight.fill_(2.0)
    block.ln_feedforward.weight.fill_(3.0)
    block.ln_feedforward.bias.fill_(5.0)
    out = stream(block, torch.tensor([[[1.0, 3]]]))
    assert_close(out, [[[3.0, 21.0]]], "out", rtol=0, atol=1e-3)


@pytest.mark.exercise("TransformerBlock.forward")
def test_a_nearly_silent_token_is_normed_with_the_modules_eps(impl):
    # deviations -+2e-3, variance 4e-6: normed to -+2 / sqrt(14) with eps 1e-5, to -+1 without
    out = stream(block_of(impl, think=1.0), torch.tensor([[[0.0, 4e-3]]]))
    assert_close(out, [[[-2 / math.sqrt(14), 4e-3 + 2 / math.sqrt(14)]]], "out")


@pytest.mark.exercise("TransformerBlock.forward")
def test_each_position_averages_itself_and_what_came_before(impl):
    # normed (-N, N), (N, -N), (-N, N): running means -N, 0, -N/3 of the first feature
    # the future too: -N/3 everywhere; without itself: 0, -N, 0; from the end: -N/3, 0, -N
    out = stream(block_of(impl, attend=1.0), torch.tensor([[[0.0, 2], [2, 0], [0, 2]]]))
    expected = [[[0 - N, 2 + N], [2, 0], [0 - N / 3, 2 + N / 3]]]
    assert_close(out, expected, "hidden + the running mean")


@pytest.mark.exercise("TransformerBlock.forward")
def test_samples_are_averaged_each_on_its_own(impl):
    # B = T = D = 2: the samples hold (0, 2) and (2, 0), in both orders; running means as above
    out = stream(block_of(impl, attend=1.0), torch.tensor([[[0.0, 2], [2, 0]], [[2.0, 0], [0, 2]]]))
    expected = [[[0 - N, 2 + N], [2, 0]], [[2 + N, 0 - N], [0, 2]]]
    assert_close(out, expected, "hidden + each sample's running mean")


@pytest.mark.exercise("TransformerBlock.forward")
@pytest.mark.parametrize("seen", [1, 3, 4], ids=["one seen", "three seen", "four seen"])
def test_the_future_changes_nothing_before_it(impl, seen):
    # random in every feature: a constant added to a token would vanish in its norm
    block, hidden = random_block(impl), random(2, 5, 12)
    other = torch.cat([hidden[:, :seen], random(2, 5 - seen, 12, seed=1)], dim=1)
    before = stream(block, hidden)[:, :seen]
    assert_close(stream(block, other)[:, :seen], before, "out before the change")


def torchs_own(block, H):
    """A one-layer nn.TransformerEncoder with the weights of this block, and zeros for the biases
    that the attention of this kit does not have."""
    D, width = block.ln_attention.weight.numel(), block.feedforward.up_proj.bias.numel()
    layer = nn.TransformerEncoderLayer(
        D, H, width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
    attention, feedforward = block.attention, block.feedforward
    q_k_v = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    state = {
        "self_attn.in_proj_weight": torch.cat(q_k_v),
        "self_attn.in_proj_bias": torch.zeros(3 * D),
        "self_attn.out_proj.weight": attention.o_proj.weight,
        "self_attn.out_proj.bias": torch.zeros(D),
        "linear1.weight": feedforward.up_proj.weight,
        "linear1.bias": feedforward.up_proj.bias,
        "linear2.weight": feedforward.down_proj.weight,
        "linear2.bias": feedforward.down_proj.bias,
        "norm1.weight": block.ln_attention.weight,
        "norm1.bias": block.ln_attention.bias,
        "norm2.weight": block.ln_feedforward.weight,
        "norm2.bias": block.ln_feedforward.bias,
    }
    encoder = encoder.to(block.ln_attention.weight.dtype)
    encoder.layers[0].load_state_dict(state)
    return encoder


def future(T):
    return torch.ones(T, T, dtype=torch.bool).triu(1)  # True = blocked


@pytest.mark.exercise("TransformerBlock.forward")
@pytest.mark.parametrize(
    ("B", "T", "H", "K", "width"),
    [
        pytest.param(2, 5, 3, 4, 7, id="all sizes different"),
        pytest.param(4, 4, 4, 1, 4, id="all sizes equal"),
    ],
)
def test_the_block_equals_a_layer_of_nn_transformerencoder(impl, B, T, H, K, width):
    block = random_block(impl, H, K, width, torch.float32)
    hidden = random(B, T, H * K).float()
    expected = torchs_own(block, H)(hidden, mask=future(T))
    assert_close(stream(block, hidden), expected, "out", rtol=0, atol=1e-5)


@pytest.mark.exercise("TransformerBlock.forward")
def test_gradients_equal_those_of_nn_transformerencoder(impl):
    # under a random upstream gradient, in float64; q, k and v stand below each other in in_proj
    block = random_block(impl)
    own = torchs_own(block, 3)
    hidden, upstream = random(2, 5, 12).requires_grad_(), random(2, 5, 12, seed=1)

    q_k_v = [getattr(block.attention, f"{name}_proj").weight for name in "qkv"]
    up, down = block.feedforward.up_proj, block.feedforward.down_proj
    norms = [block.ln_attention, block.ln_feedforward]
    vectors = [up.bias, down.bias, *(p for norm in norms for p in (norm.weight, norm.bias))]
    inputs = [hidden, *q_k_v, block.attention.o_proj.weight, up.weight, down.weight, *vectors]
    out = stream(block, hidden) + 0 * hidden
    grads = torch.autograd.grad(out, inputs, upstream, materialize_grads=True)

    layer = own.layers[0]
    matrices = [layer.self_attn.in_proj_weight, layer.self_attn.out_proj.weight]
    matrices += [layer.linear1.weight, layer.linear2.weight]
    vectors = [layer.linear1.bias, layer.linear2.bias]
    vectors += [layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias]
    inputs = [hidden, *matrices, *vectors]
    expected = torch.autograd.grad(own(hidden, mask=future(5)), inputs, upstream)

    assert_close(grads[0], expected[0], "of hidden")
    assert_close(torch.cat(grads[1:5]), torch.cat(expected[1:3]), "of the weights of q, k, v, o")
    assert_close(grads[5], expected[3], "of up_proj's weight")
    assert_close(grads[6], expected[4], "of down_proj's weight")
    assert_close(torch.cat(grads[7:]), torch.cat(expected[5:]), "of biases and norms")


# Dropout: with probability 1 nothing is left to chance.


@pytest.mark.exercise("TransformerBlock.forward")
def test_in_training_what_a_sub_layer_adds_is_dropped_and_the_stream_is_not(impl):
    # attention keeps its weights here, so that only the dropout of its output can silence it
    block = block_of(impl, attend=10.0, think=10.0, dropout=1.0).train()
    block.attention.dropout.p = 0.0
    hidden = torch.tensor([[[1.0, 3], [7, 1]]])
    assert_close(stream(block, hidden), hidden, "out when every update is dropped")


@pytest.mark.exercise("TransformerBlock.forward")
def test_in_evaluation_the_block_drops_nothing(impl):
    # as without dropout: the running mean of (-N, N), (N, -N), (-N, N)
    block = block_of(impl, attend=1.0, dropout=1.0).eval()
    out = stream(block, torch.tensor([[[0.0, 2], [2, 0], [0, 2]]]))
    expected = [[[0 - N, 2 + N], [2, 0], [0 - N / 3, 2 + N / 3]]]
    assert_close(out, expected, "out in evaluation")


def updates_of_half_a_dropout(block, hidden):
    """What the one busy sub-layer adds with dropout 0.5, and what it adds without."""
    block.attention.dropout.p = 0.0
    dropped = stream(block.train(), hidden) - hidden
    return dropped, stream(block.eval(), hidden) - hidden


@pytest.mark.exercise("TransformerBlock.forward")
def test_what_attention_adds_is_dropped_once_number_by_number(impl):
    # each number u becomes 0 or 2 u, so a (a - 2 u) is 0; dropped twice, 4 u turns up among 160;
    # dropped before attention, a number loses a part of itself, because v mixes the features
    block = block_of(impl, attend=1.0, D=4, dropout=0.5)
    block.attention.v_proj.weight.copy_(torch.tensor([[1.0, 2, 4, 0]]).expand(4, 4))
    dropped, update = updates_of_half_a_dropout(block.double(), random(8, 5, 4))
    assert_close(dropped * (dropped - 2 * update), [[[0.0] * 4] * 5] * 8, "a (a - 2 u)", atol=1e-9)
    assert_drawn_one_by_one(dropped)


@pytest.mark.exercise("TransformerBlock.forward")
def test_what_the_feed_forward_adds_is_dropped_once_number_by_number(impl):
    # as above
    block = block_of(impl, think=1.0, D=4, dropout=0.5)
    dropped, update = updates_of_half_a_dropout(block.double(), random(8, 5, 4))
    assert_close(dropped * (dropped - 2 * update), [[[0.0] * 4] * 5] * 8, "a (a - 2 u)", atol=1e-9)


# What comes in and what comes out.


@pytest.mark.exercise("TransformerBlock.forward")
def test_none_stands_where_chapter_10_returns_keys_and_values(impl):
    given_back = block_of(impl)(torch.tensor([[[1.0, 3]]]))
    pair = isinstance(given_back, tuple) and len(given_back) == 2
    assert pair, f"forward gives (out, None), got a {type(given_back).__name__}"
    assert given_back[1] is None, f"the second is None, got a {type(given_back[1]).__name__}"


PAIR = (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
CACHES = [
    pytest.param(PAIR, False, id="keys and values"),
    pytest.param(None, True, id="use_cache"),
    pytest.param(PAIR, True, id="both"),
    pytest.param((), False, id="an empty cache"),
]


@pytest.mark.exercise("TransformerBlock.forward")
@pytest.mark.parametrize(("past_key_value", "use_cache"), CACHES)
def test_a_cache_is_refused_until_chapter_10(impl, past_key_value, use_cache):
    block = block_of(impl)
    hidden = torch.ones(1, 3, 2)
    refuses(NotImplementedError, "chapter 10", block, hidden, past_key_value, use_cache)


@pytest.mark.exercise("TransformerBlock.forward")
def test_the_block_leaves_hidden_as_it_is(impl):
    hidden = random(2, 5, 12)
    random_block(impl).requires_grad_(False)(hidden)
    assert_close(hidden, random(2, 5, 12), "hidden after the call")


@pytest.mark.exercise("TransformerBlock.forward")
def test_a_longer_text_is_not_judged_by_the_mask_of_the_one_before(impl):
    # a text of one token first: its mask would block nothing and fit any length
    block = block_of(impl, attend=1.0)
    stream(block, torch.tensor([[[0.0, 2]]]))
    out = stream(block, torch.tensor([[[0.0, 2], [2, 0]]]))
    assert_close(out, [[[0 - N, 2 + N], [2, 0]]], "out of the second call")


@pytest.mark.exercise("TransformerBlock.forward")
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 4),
    H=st.integers(1, 3),
    K=st.integers(1, 3),
    width=st.integers(1, 4),
)
def test_block_agrees_with_reference(impl, reference, B, T, H, K, width):
    hidden = random(B, T, H * K)
    expected = stream(random_block(reference, H, K, width), hidden)
    assert_close(stream(random_block(impl, H, K, width), hidden), expected, "out")


# parameter_ledger --------------------------------------------------------------------------

ITEMS = ["token_embedding", "position_embedding", "blocks", "final_norm", "head", "total"]


def numbers_of(ledger):
    """The ledger's numbers in the order of ITEMS, so that a difference names its place."""
    listed = sorted(ledger) if isinstance(ledger, dict) else ledger
    assert listed == sorted(ITEMS), f"a ledger has the items {ITEMS}, got {listed}"
    return torch.tensor([ledger[item] for item in ITEMS])


@pytest.mark.exercise("parameter_ledger")
def test_the_ledger_of_a_small_decoder(impl):
    # V=4, C=8, D=16, N=2, F=32: tokens 4 * 16, positions 8 * 16
    # a block: attention 4 * 16 * 16 = 1024, feed-forward 2 * 16 * 32 + 32 + 16 = 1072, norms 64
    # final norm 2 * 16, head 16 * 4
    ledger = impl.parameter_ledger(vocab_size=4, block_size=8, d_model=16, n_layers=2, d_ff=32)
    expected = [64, 128, 4320, 32, 64, 4608]
    assert_close(numbers_of(ledger), expected, ", ".join(ITEMS))


@pytest.mark.exercise("parameter_ledger")
def test_the_ledger_counts_what_the_modules_have(impl, reference):
    # V=11, C=13, D=6, N=3, F=5, each part as chapter 7 builds it
    parts = {
        "token_embedding": nn.Embedding(11, 6),
        "position_embedding": nn.Embedding(13, 6),
        "blocks": nn.ModuleList(reference.TransformerBlock(6, 2, 5) for _ in range(3)),
        "final_norm": nn.LayerNorm(6),
        "head": nn.Linear(6, 11, bias=False),
    }
    counts = [sum(p.numel() for p in part.parameters()) for part in parts.values()]
    ledger = impl.parameter_ledger(vocab_size=11, block_size=13, d_model=6, n_layers=3, d_ff=5)
    assert_close(numbers_of(ledger), [*counts, sum(counts)], ", ".join(ITEMS))


@pytest.mark.exercise("parameter_ledger")
@given(
    vocab_size=st.integers(1, 5),
    block_size=st.integers(1, 5),
    d_model=st.integers(1, 5),
    n_layers=st.integers(1, 5),
    d_ff=st.integers(1, 5),
)
def test_parameter_ledger_agrees_with_reference(
    impl, reference, vocab_size, block_size, d_model, n_layers, d_ff
):
    sizes = (vocab_size, block_size, d_model, n_layers, d_ff)
    expected = numbers_of(reference.parameter_ledger(*sizes))
    assert_close(numbers_of(impl.parameter_ledger(*sizes)), expected, ", ".join(ITEMS))


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise(
    "layer_norm",
    "gelu",
    "FeedForward.forward",
    "add_residual",
    "TransformerBlock.forward",
    "parameter_ledger",
)
def test_the_file_as_written_agrees_with_reference(impl, reference):
    # one block, its result normed as in front of a head
    hidden, weight, bias = random(2, 5, 12), random(12, seed=1), random(12, seed=2)
    out = impl.layer_norm(stream(random_block(impl), hidden), weight, bias)
    expected = reference.layer_norm(stream(random_block(reference), hidden), weight, bias)
    assert_close(out, expected, "the normed result of a block, end to end")
    counted = numbers_of(impl.parameter_ledger(4, 8, 16, 2, 32))
    assert_close(counted, [64, 128, 4320, 32, 64, 4608], ", ".join(ITEMS))
