"""Chapter 4: positions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.checks import assert_close, refuses

# A right answer may compute its angles in float32, which rounds those near 20001 by up to 1e-3.
FAR = {"rtol": 0.0, "atol": 2e-3}


def numbers(*rows, dtype=torch.float32):
    """A tensor of these rows, or of these numbers."""
    return torch.tensor(rows, dtype=dtype)


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# sinusoidal_positions ----------------------------------------------------------------------


@pytest.mark.exercise("sinusoidal_positions")
def test_position_1_of_width_4(impl):
    # pairs 0, 1 and 2, 3; angles 1 and 10000**(-2/4) = 0.01: sin 1, cos 1, sin 0.01, cos 0.01
    # 2c/D for every column c: 0.8414710, 0.9999500, 0.0001, 1; the two halves side by side:
    # 0.8414710, 0.0099998, 0.5403023, 0.9999500
    row = impl.sinusoidal_positions(2, 4)[1]
    expected = [0.8414710, 0.5403023, 0.0099998, 0.9999500]
    assert_close(row, expected, "sin, cos, sin, cos at position 1", rtol=0.0, atol=1e-6)


@pytest.mark.exercise("sinusoidal_positions")
def test_position_0_is_zeros_and_ones_in_turn(impl):
    # every angle is 0: sin 0 = 0 and cos 0 = 1
    row = impl.sinusoidal_positions(3, 6)[0]
    assert_close(row, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0], "position 0")


@pytest.mark.exercise("sinusoidal_positions")
def test_sine_and_cosine_of_a_pair_share_their_angle(impl):
    # D = 8: w = 1, 0.1, 0.01, 0.001; at position 40 the angles 40, 4, 0.4, 0.04
    # with an exponent of its own, c / D, the first cosine is cos(40 * 10000**(-1/8)) = 0.9966
    row = impl.sinusoidal_positions(41, 8)[40]
    expected = [f(angle) for angle in (40, 4, 0.4, 0.04) for f in (math.sin, math.cos)]
    assert_close(row, expected, "four pairs at position 40")


WIDTHS = [
    pytest.param(1, [2.0], id="width 1"),
    pytest.param(3, [2.0, 2.0, 2 * 10000 ** (-2 / 3)], id="width 3"),
    pytest.param(
        5, [2.0, 2.0] + [2 * 10000 ** (-2 / 5)] * 2 + [2 * 10000 ** (-4 / 5)], id="width 5"
    ),
]


@pytest.mark.exercise("sinusoidal_positions")
@pytest.mark.parametrize(("width", "angles"), WIDTHS)
def test_an_odd_width_ends_with_a_sine(impl, width, angles):
    # position 2; the exponents still have the odd D below the line
    row = impl.sinusoidal_positions(3, width)[2]
    expected = [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
    assert_close(row, expected, "position 2 at an odd width")


@pytest.mark.exercise("sinusoidal_positions")
def test_rows_are_positions_also_where_both_sizes_are_equal(impl):
    # one pair, angles 0 and 1; the table is float32
    table = impl.sinusoidal_positions(2, 2)
    assert_close(table, numbers([0.0, 1.0], [0.8414710, 0.5403023]), "positions 0 and 1")


@pytest.mark.exercise("sinusoidal_positions")
@pytest.mark.parametrize("position", [257, 2049, 5000])
def test_far_positions_have_rows_of_their_own(impl, position):
    # bfloat16 has no 257 between 256 and 258, float16 no 2049; many tables end with row 4999
    row = impl.sinusoidal_positions(position + 1, 4)[position]
    angles = (position, position / 100)
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert_close(row, expected, f"position {position}", **FAR)


@pytest.mark.exercise("sinusoidal_positions")
def test_a_second_table_is_not_the_first(impl):
    # the caller scales the first in place; the second must not be scaled
    impl.sinusoidal_positions(2, 2).mul_(100)
    again = impl.sinusoidal_positions(2, 2)
    expected = numbers([0.0, 1.0], [0.8414710, 0.5403023])
    assert_close(again, expected, "the table of a second call")


BAD_TABLES = [
    pytest.param(0, 4, "length", id="no position"),
    pytest.param(-1, 4, "length", id="negative length"),
    pytest.param(4, 0, "d_model", id="no column"),
    pytest.param(4, -2, "d_model", id="negative width"),
]


@pytest.mark.exercise("sinusoidal_positions")
@pytest.mark.parametrize(("length", "d_model", "argument"), BAD_TABLES)
def test_sinusoidal_positions_refuses(impl, length, d_model, argument):
    refuses(ValueError, argument, impl.sinusoidal_positions, length, d_model)


@pytest.mark.exercise("sinusoidal_positions")
@given(length=st.integers(1, 50), d_model=st.integers(1, 9))
def test_sinusoidal_positions_agrees_with_reference(impl, reference, length, d_model):
    expected = reference.sinusoidal_positions(length, d_model)
    assert_close(impl.sinusoidal_positions(length, d_model), expected, "the table")


# apply_rope --------------------------------------------------------------------------------

SIN1, COS1, SIN2, COS2 = math.sin(1), math.cos(1), math.sin(2), math.cos(2)


def rotated(impl, vector, position, dtype=torch.float32):
    """One vector at one position."""
    x = torch.tensor(vector, dtype=dtype)[None, None, None]  # (B, H, T, K) = (1, 1, 1, K)
    return impl.apply_rope(x, torch.tensor([position]))[0, 0, 0]


def score(impl, q, k, m, n):
    """The product of a query at m and a key at n."""
    return rotated(impl, q, m) @ rotated(impl, k, n)


@pytest.mark.exercise("apply_rope")
def test_position_0_changes_nothing(impl):
    # every angle is 0
    assert_close(rotated(impl, [1.0, 2.0, 3.0, 4.0], 0), [1.0, 2.0, 3.0, 4.0], "x at position 0")


DIRECTIONS = [
    pytest.param([1.0, 0.0], [COS1, SIN1], id="first axis"),
    pytest.param([0.0, 1.0], [-SIN1, COS1], id="second axis"),
]


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize(("vector", "expected"), DIRECTIONS)
def test_position_1_rotates_by_one_radian(impl, vector, expected):
    # K = 2 is one pair with angle 1: (x0 cos - x1 sin, x0 sin + x1 cos)
    assert_close(rotated(impl, vector, 1), expected, "a unit vector rotated by 1")


@pytest.mark.exercise("apply_rope")
def test_neighbors_are_a_pair_with_its_own_angle(impl):
    # angles 1 and 10000**(-2/4) = 0.01
    # (1, 2): cos 1 - 2 sin 1 = -1.1426397,          sin 1 + 2 cos 1 = 1.9220756
    # (3, 4): 3 cos 0.01 - 4 sin 0.01 = 2.9598507,   3 sin 0.01 + 4 cos 0.01 = 4.0297995
    # features 0, 2 and 1, 3 as pairs: -1.9841, 1.9599, 2.4624, 4.0198
    out = rotated(impl, [1.0, 2.0, 3.0, 4.0], 1)
    assert_close(out, [-1.1426397, 1.9220756, 2.9598507, 4.0297995], "two pairs at position 1")


@pytest.mark.exercise("apply_rope")
def test_three_pairs_turn_ever_slower(impl):
    # K = 6: w = 1, 10000**(-1/3), 10000**(-2/3), at position 7
    out = rotated(impl, [1.0, 0.0] * 3, 7)
    expected = [f(7 * 10000 ** (-i / 3)) for i in range(3) for f in (math.cos, math.sin)]
    assert_close(out, expected, "three unit vectors at position 7")


@pytest.mark.exercise("apply_rope")
def test_rotation_keeps_the_norm(impl):
    # 1 + 4 + 9 + 16 = 30, at any position
    out = rotated(impl, [1.0, 2.0, 3.0, 4.0], 9)
    assert_close(out @ out, 30.0, "the squared norm of (1, 2, 3, 4) at position 9", rtol=1e-4)


PLACES = [
    pytest.param(3, 1, id="3 and 1"),
    pytest.param(9, 7, id="9 and 7"),
    pytest.param(41, 39, id="41 and 39"),
    pytest.param(2, 0, id="2 and 0"),
]


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize(("m", "n"), PLACES)
def test_the_score_depends_on_the_distance_only(impl, m, n):
    # q = (1, 2, 3, 4), k = (4, 3, 2, 1), as complex numbers 1+2i, 3+4i and 4+3i, 2+i:
    # q conj(k) = 10+5i and 10+5i; turned by m - n = 2 and by 0.02 the real parts are
    # 10 cos 2 - 5 sin 2 = -8.7079555 and 10 cos 0.02 - 5 sin 0.02 = 9.8980067
    result = score(impl, [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], m, n)
    assert_close(result, 1.1900512, "the score at distance 2", rtol=0.0, atol=2e-4)


DISTANCES = [
    pytest.param(5, 5, id="the same place"),
    pytest.param(1, 4, id="key ahead by 3"),
    pytest.param(1001, 998, id="key behind by 3"),
]


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize(("m", "n"), DISTANCES)
def test_unit_vectors_score_the_cosine_of_their_distance(impl, m, n):
    # both (1, 0): their angle is m - n
    result = score(impl, [1.0, 0.0], [1.0, 0.0], m, n)
    assert_close(result, math.cos(m - n), f"the score at {m} and {n}", **FAR)


@pytest.mark.exercise("apply_rope")
def test_each_token_stands_where_positions_says(impl):
    # two heads, three tokens (1, 0) at 5, 0 and 2, as in no arange
    x = numbers([1.0, 0.0]).repeat(1, 2, 3, 1)
    out = impl.apply_rope(x, torch.tensor([5, 0, 2]))
    head = [[math.cos(5), math.sin(5)], [1.0, 0.0], [COS2, SIN2]]
    assert_close(out, [[head, head]], "positions 5, 0, 2 in two heads")


@pytest.mark.exercise("apply_rope")
def test_each_row_of_the_batch_has_its_own_positions(impl):
    # a left-padded row at 0, 0, 1 beside one that goes on after two cached tokens, at 2, 3, 4;
    # three heads of (1, 0)
    x = numbers([1.0, 0.0]).repeat(2, 3, 3, 1)
    out = impl.apply_rope(x, torch.tensor([[0, 0, 1], [2, 3, 4]]))
    padded = [[1.0, 0.0], [1.0, 0.0], [COS1, SIN1]]
    going_on = [[math.cos(n), math.sin(n)] for n in (2, 3, 4)]
    assert_close(out, [[padded] * 3, [going_on] * 3], "the positions of each row")


@pytest.mark.exercise("apply_rope")
def test_equal_sizes_hide_no_exchanged_axes(impl):
    # B = H = T = K = 2, every vector (1, 0); row 0 stands at 0 and 1, row 1 at 1 and 2
    x = numbers([1.0, 0.0]).repeat(2, 2, 2, 1)
    out = impl.apply_rope(x, torch.tensor([[0, 1], [1, 2]]))
    first, second = [[1.0, 0.0], [COS1, SIN1]], [[COS1, SIN1], [COS2, SIN2]]
    assert_close(out, [[first] * 2, [second] * 2], "row by row, the same in both heads")


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize("position", [257, 2049, 20001])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_far_angles_are_not_rounded_to_half_precision(impl, dtype, position):
    # K = 10: w = 10000**(-i/5). bfloat16 has no 257 between 256 and 258, float16 no 2049;
    # 10000**(-1/5) = 0.1584893 is 0.1584473 in float16, and 20001 times that is 0.8 short
    out = rotated(impl, [1.0, 0.0] * 5, position, dtype)
    angles = [position * 10000 ** (-i / 5) for i in range(5)]
    expected = [f(angle) for angle in angles for f in (math.cos, math.sin)]
    tolerance = FAR if dtype is torch.float32 else {}
    assert_close(
        out, numbers(*expected, dtype=dtype), f"five unit vectors at {position}", **tolerance
    )


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_rope_keeps_the_dtype(impl, dtype):
    # float32 angles are good enough for float64 as well
    out = rotated(impl, [1.0, 0.0], 1, dtype)
    atol = 1e-5 if dtype is torch.float64 else 2e-2
    assert_close(out, numbers(COS1, SIN1, dtype=dtype), "x rotated by 1", atol=atol)


@pytest.mark.exercise("apply_rope")
def test_the_gradient_is_rotated_back(impl):
    # the transpose of a rotation by 1 takes the upstream (3, 5) to
    # (3 cos 1 + 5 sin 1, -3 sin 1 + 5 cos 1)
    x = numbers([[[1.0, 2.0]]]).requires_grad_()
    out = impl.apply_rope(x, torch.tensor([1]))
    assert out.requires_grad, "the result is cut off from x: no gradient can reach it"
    out.backward(numbers([[[3.0, 5.0]]]))
    expected = [[[[3 * COS1 + 5 * SIN1, -3 * SIN1 + 5 * COS1]]]]
    assert_close(x.grad, expected, "the gradient of x")


@pytest.mark.exercise("apply_rope")
def test_rope_changes_neither_x_nor_positions(impl):
    x, positions = normal(2, 3, 4, 6), torch.tensor([7, 0, 3, 3])
    impl.apply_rope(x, positions)
    assert_close(x, normal(2, 3, 4, 6), "x after the call")
    assert_close(positions, torch.tensor([7, 0, 3, 3]), "positions after the call")


@pytest.mark.exercise("apply_rope")
def test_a_second_call_has_its_own_positions(impl):
    # one token at 0, then one of the same shape at 1, as when decoding
    steps = torch.stack([rotated(impl, [1.0, 0.0], step) for step in (0, 1)])
    assert_close(steps, [[1.0, 0.0], [COS1, SIN1]], "position 0, and in a second call position 1")


BAD_X = [
    pytest.param((1, 1, 2, 3), id="three features"),
    pytest.param((1, 1, 2, 1), id="one feature"),
    pytest.param((1, 2, 4), id="no axis of heads"),
]


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize("shape", BAD_X)
def test_apply_rope_refuses_a_bad_x(impl, shape):
    refuses(ValueError, "x", impl.apply_rope, torch.ones(shape), torch.tensor([0, 1]))


BAD_POSITIONS = [
    pytest.param([4], id="one for all tokens"),
    pytest.param([0, 1, 2, 3], id="more than tokens"),
    pytest.param([[0, 1, 2]], id="one row for two"),
    pytest.param([[0], [1]], id="one for each row"),
    pytest.param(4, id="a number"),
    pytest.param([[[0, 1, 2]]], id="three axes"),
]


@pytest.mark.exercise("apply_rope")
@pytest.mark.parametrize("positions", BAD_POSITIONS)
def test_apply_rope_refuses_positions_that_only_broadcast(impl, positions):
    # two rows of three tokens
    x = torch.ones(2, 1, 3, 4)
    refuses(ValueError, "positions", impl.apply_rope, x, torch.tensor(positions))


@pytest.mark.exercise("apply_rope")
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    positions=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    pairs=st.integers(1, 3),
    shared=st.booleans(),
    seed=st.integers(0, 9),
)
def test_apply_rope_agrees_with_reference(
    impl, reference, batch, heads, positions, pairs, shared, seed
):
    x = normal(batch, heads, len(positions), 2 * pairs, seed=seed)
    where = torch.tensor(positions)
    if not shared:
        where = where + torch.arange(batch)[:, None]
    expected = reference.apply_rope(x, where)
    assert_close(impl.apply_rope(x, where), expected, "x rotated", atol=1e-4)


# alibi_bias --------------------------------------------------------------------------------


@pytest.mark.exercise("alibi_bias")
def test_the_bias_is_minus_slope_times_distance(impl):
    # two heads, slopes 2**-4 = 1/16 and 2**-8 = 1/256; distances 0, 1 and 2 of three tokens
    bias = impl.alibi_bias(2, 3, 3)
    minus_distance = numbers([0, -1, -2], [-1, 0, -1], [-2, -1, 0])
    expected = torch.stack([minus_distance / 16, minus_distance / 256])
    assert_close(bias, expected, "a bias for each head")


def exponents(impl, n_heads):
    """log2 of each head's slope, read off a key at distance 1."""
    bias = impl.alibi_bias(n_heads, 1, 2)
    assert_close(bias[..., -1:], [[[0.0]]] * n_heads, "the query's own key, the last")
    return (-bias[:, 0, 0]).log2()


POWERS = [
    pytest.param(1, [-8.0], id="1 head"),
    pytest.param(2, [-4.0, -8.0], id="2 heads"),
    pytest.param(4, [-2.0, -4.0, -6.0, -8.0], id="4 heads"),
    pytest.param(8, [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0], id="8 heads"),
    pytest.param(16, [-h / 2 for h in range(1, 17)], id="16 heads"),
]


@pytest.mark.exercise("alibi_bias")
@pytest.mark.parametrize(("n_heads", "expected"), POWERS)
def test_slopes_are_powers_of_two_to_minus_eight_over_heads(impl, n_heads, expected):
    # slope h is 2**(-8 h / H), the last always 2**-8
    assert_close(exponents(impl, n_heads), expected, "log2 of the slopes")


OTHERS = [
    pytest.param(3, [-4.0, -8.0, -2.0], id="3 heads"),
    pytest.param(6, [-2.0, -4.0, -6.0, -8.0, -1.0, -3.0], id="6 heads"),
    pytest.param(7, [-2.0, -4.0, -6.0, -8.0, -1.0, -3.0, -5.0], id="7 heads"),
    pytest.param(12, [*range(-1, -9, -1), -0.5, -1.5, -2.5, -3.5], id="12 heads"),
]


@pytest.mark.exercise("alibi_bias")
@pytest.mark.parametrize(("n_heads", "expected"), OTHERS)
def test_other_numbers_of_heads_borrow_from_twice_as_many(impl, n_heads, expected):
    # 6: the slopes of 4 heads, then the first and third of 8; 2**(-8h/6) would not match
    assert_close(exponents(impl, n_heads), [float(e) for e in expected], "log2 of the slopes")


LAST_QUERIES = [
    pytest.param(1, 4, [[-3, -2, -1, 0]], id="1 of 4"),
    pytest.param(2, 4, [[-2, -1, 0, -1], [-3, -2, -1, 0]], id="2 of 4"),
    pytest.param(
        3, 5, [[-2, -1, 0, -1, -2], [-3, -2, -1, 0, -1], [-4, -3, -2, -1, 0]], id="3 of 5"
    ),
]


@pytest.mark.exercise("alibi_bias")
@pytest.mark.parametrize(("t_q", "t_k", "minus_distance"), LAST_QUERIES)
def test_the_queries_are_the_last_positions(impl, t_q, t_k, minus_distance):
    # query i stands at t_k - t_q + i; one head has the slope 1/256
    bias = impl.alibi_bias(1, t_q, t_k)
    assert_close(bias, numbers(minus_distance) / 256, "the bias of the last queries")


@pytest.mark.exercise("alibi_bias")
def test_heads_come_first_also_where_all_sizes_are_equal(impl):
    # H = T = S = 2: zeros on each head's diagonal, its slope beside them
    bias = impl.alibi_bias(2, 2, 2)
    expected = [[[0.0, -1 / 16], [-1 / 16, 0.0]], [[0.0, -1 / 256], [-1 / 256, 0.0]]]
    assert_close(bias, expected, "a square for each head")


@pytest.mark.exercise("alibi_bias")
def test_a_second_bias_is_not_the_first(impl):
    # the caller masks the first in place; the second must not be masked
    impl.alibi_bias(1, 2, 2).masked_fill_(torch.tensor([[False, True], [False, False]]), -math.inf)
    again = impl.alibi_bias(1, 2, 2)
    assert_close(again, [[[0.0, -1 / 256], [-1 / 256, 0.0]]], "the bias of a second call")


BAD_SIZES = [
    pytest.param(0, 2, 3, "n_heads", id="no head"),
    pytest.param(-2, 2, 3, "n_heads", id="negative heads"),
    pytest.param(2, 4, 3, "t_q", id="more queries than keys"),
    pytest.param(2, 0, 3, "t_q", id="no query"),
    pytest.param(2, 0, 0, "t_q", id="no query and no key"),
    pytest.param(2, -1, 3, "t_q", id="negative queries"),
]


@pytest.mark.exercise("alibi_bias")
@pytest.mark.parametrize(("n_heads", "t_q", "t_k", "argument"), BAD_SIZES)
def test_alibi_bias_refuses(impl, n_heads, t_q, t_k, argument):
    refuses(ValueError, argument, impl.alibi_bias, n_heads, t_q, t_k)


@pytest.mark.exercise("alibi_bias")
@given(n_heads=st.integers(1, 20), t_q=st.integers(1, 4), earlier=st.integers(0, 3))
def test_alibi_bias_agrees_with_reference(impl, reference, n_heads, t_q, earlier):
    expected = reference.alibi_bias(n_heads, t_q, t_q + earlier)
    assert_close(impl.alibi_bias(n_heads, t_q, t_q + earlier), expected, "the bias")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise("sinusoidal_positions", "apply_rope", "alibi_bias")
def test_the_file_as_written_agrees_with_reference(impl, reference):
    # five tokens with places from the table, rotated at 3 to 7, scored with a bias for each head
    def scores(module):
        x = normal(2, 3, 5, 4) + module.sinusoidal_positions(5, 4)
        x = module.apply_rope(x, torch.arange(3, 8))
        return x[:, :, 3:] @ x.mT + module.alibi_bias(3, 2, 5)

    assert_close(scores(impl), scores(reference), "the scores of two queries", atol=1e-4)
