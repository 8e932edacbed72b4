"""Chapter 6: loss and autodiff."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.checks import assert_close, refuses


def drawn(seed, *shape):
    """Normal numbers with two decimals, which no code under test has made."""
    return np.random.default_rng(seed).normal(size=shape).round(2)


# log_softmax -------------------------------------------------------------------------------


@pytest.mark.exercise("log_softmax")
def test_counts_become_the_logs_of_their_shares(impl):
    # each row holds the logs of counts that sum to 8: log-probabilities log(count / 8)
    # down the columns the sums are 4, 3, 9; over the whole array 16
    counts = np.array([[1.0, 2.0, 5.0], [3.0, 1.0, 4.0]])
    assert_close(impl.log_softmax(np.log(counts)), np.log(counts / 8), "log-probabilities")


@pytest.mark.exercise("log_softmax")
def test_logits_of_a_thousand_keep_their_distance(impl):
    # 1000 below the best costs 1000: exp(-1000) is 0, its logarithm must not be taken
    x = np.array([[1000.0, 0.0, -1000.0], [0.0, -1000.0, 0.0]])
    half = math.log(2)
    expected = np.array([[0.0, -1000.0, -2000.0], [-half, -1000 - half, -half]])
    assert_close(impl.log_softmax(x), expected, "log-probabilities at +-1000", atol=1e-9)


@pytest.mark.exercise("log_softmax")
def test_each_row_is_shifted_by_its_own_maximum(impl):
    # equal logits have equal shares, 1/2, wherever they stand
    x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [0.0, 0.0]])
    assert_close(impl.log_softmax(x), np.full((3, 2), -math.log(2)), "log 1/2 in every row")


@pytest.mark.exercise("log_softmax")
def test_a_batch_far_below_zero_is_ordinary(impl):
    # no logit here is above 0: the maximum is -1000
    shares = impl.log_softmax(np.array([[-1000.0, -1000.0], [-1500.0, -1500.0]]))
    assert_close(shares, np.full((2, 2), -math.log(2)), "log 1/2 in every row")


LEADING = [
    pytest.param((4,), id="no leading axis"),
    pytest.param((2, 2, 4), id="B and T"),
    pytest.param((2, 1, 2, 4), id="four axes"),
]


@pytest.mark.exercise("log_softmax")
@pytest.mark.parametrize("shape", LEADING)
def test_the_last_axis_is_normalized_behind_any_leading_axes(impl, shape):
    # counts 1, 1, 2, 4 of 8 and, at every other position, 4, 2, 1, 1 of 8
    rows = np.array([[1.0, 1.0, 2.0, 4.0], [4.0, 2.0, 1.0, 1.0]] * 2)
    counts = rows[: math.prod(shape) // 4].reshape(shape)
    assert_close(impl.log_softmax(np.log(counts)), np.log(counts / 8), "log-probabilities")


@pytest.mark.exercise("log_softmax")
def test_the_last_axis_is_normalized_also_where_all_sizes_are_equal(impl):
    # row sums 4 and 10; down the columns the first row would be 1/4 and 3/10
    counts = np.array([[1.0, 3.0], [3.0, 7.0]])
    shares = np.array([[1 / 4, 3 / 4], [3 / 10, 7 / 10]])
    assert_close(impl.log_softmax(np.log(counts)), np.log(shares), "log-probabilities")


@pytest.mark.exercise("log_softmax")
def test_log_probabilities_have_the_dtype_of_x(impl):
    shares = impl.log_softmax(np.zeros((2, 4), np.float32))
    assert_close(shares, np.full((2, 4), -math.log(4), np.float32), "log 1/4 in float32")


@pytest.mark.exercise("log_softmax")
def test_log_softmax_leaves_x_as_it_is(impl):
    x = np.array([[1.0, 3.0], [2.0, 0.0]])
    impl.log_softmax(x)
    assert_close(x, np.array([[1.0, 3.0], [2.0, 0.0]]), "x after the call")


@pytest.mark.exercise("log_softmax")
@given(
    leading=st.lists(st.integers(1, 3), max_size=3),
    vocab=st.integers(1, 4),
    scale=st.sampled_from([1, 500]),
    seed=st.integers(0, 3),
)
def test_log_softmax_agrees_with_reference(impl, reference, leading, vocab, scale, seed):
    x = scale * drawn(seed, *leading, vocab)
    assert_close(impl.log_softmax(x), reference.log_softmax(x), "log-probabilities")


# cross_entropy -----------------------------------------------------------------------------


def three_rows():
    """Logits of three rows, made anew for each test."""
    return np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])


@pytest.mark.exercise("cross_entropy")
def test_the_loss_is_the_mean_over_scored_rows(impl):
    # log(1 + e^-2) = 0.1269280 and log(1 + e^2) = 2.1269280; the third row is not scored
    # divided by 3 rows: 0.7512853; softmax twice: 0.7639631; third row as class 0: 0.9823344
    loss = impl.cross_entropy(three_rows(), np.array([0, 0, -100]))
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(2))) / 2
    assert_close(loss, expected, "the mean of the two scored rows")


@pytest.mark.exercise("cross_entropy")
def test_each_row_meets_its_own_target(impl):
    # shares 2/8, 1/8, 2/8 of the targets 2, 0, 3: log 4, log 8, log 4
    # every row with every target: 19/9 log 2 in place of 7/3 log 2
    counts = np.array([[1.0, 4, 2, 1], [1.0, 3, 2, 2], [1.0, 4, 1, 2]])
    loss = impl.cross_entropy(np.log(counts), np.array([2, 0, 3]))
    assert_close(loss, 7 / 3 * math.log(2), "the mean of log 4, log 8 and log 4")


@pytest.mark.exercise("cross_entropy")
def test_equal_logits_cost_the_log_of_their_number(impl):
    loss = impl.cross_entropy(np.zeros((2, 5)), np.array([4, 0]))
    assert_close(loss, math.log(5), "log V")


@pytest.mark.exercise("cross_entropy")
def test_logits_of_a_thousand_cost_what_they_should(impl):
    # row 0: 2000 below the best; row 1: the best, free; row 2: three equal at -1000, log 3
    # sizes are equal: read at (target, row) it would be 500, log 3 and 1000
    logits = np.array([[1000.0, -1000.0, 0.0], [500.0, 0.0, 1000.0], [-1000.0] * 3])
    loss = impl.cross_entropy(logits, np.array([1, 2, 0]))
    assert_close(loss, (2000 + 0 + math.log(3)) / 3, "the loss at +-1000")


@pytest.mark.exercise("cross_entropy")
@pytest.mark.parametrize("ignore_index", [-1, 0, 99], ids=["minus 1", "class 0", "99"])
def test_the_ignore_index_is_the_one_given(impl, ignore_index):
    # targets 1, 1 of three rows: log(1 + e^2), log(1 + e^-2); the third is not scored
    # where 0 is ignored it still has its share: without it both rows would be free
    loss = impl.cross_entropy(three_rows(), np.array([1, 1, ignore_index]), ignore_index)
    expected = (math.log1p(math.exp(2)) + math.log1p(math.exp(-2))) / 2
    assert_close(loss, expected, "the mean of the two scored rows")


@pytest.mark.exercise("cross_entropy")
@pytest.mark.parametrize("extra", [1, 6])
def test_more_padding_changes_nothing(impl, extra):
    # two scored rows behind padding rows with large logits
    logits = np.concatenate([np.full((extra, 2), 77.0), three_rows()[:2]])
    loss = impl.cross_entropy(logits, np.array([-100] * extra + [0, 0]))
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(2))) / 2
    assert_close(loss, expected, "the mean of the two scored rows")


@pytest.mark.exercise("cross_entropy")
@pytest.mark.parametrize("dtype", [np.uint8, np.int32], ids=lambda d: d.__name__)
def test_targets_of_any_integer_dtype_will_do(impl, dtype):
    # log 4 and log 8; 255 is not scored
    logits = np.log([[1.0, 2.0, 5.0], [3.0, 1.0, 4.0], [2.0, 3.0, 3.0]])
    loss = impl.cross_entropy(logits, np.array([1, 1, 255], dtype), ignore_index=255)
    assert_close(loss, math.log(32) / 2, "the mean of log 4 and log 8")


@pytest.mark.exercise("cross_entropy")
def test_cross_entropy_changes_neither_logits_nor_targets(impl):
    logits, targets = three_rows(), np.array([0, 0, -100])
    impl.cross_entropy(logits, targets)
    assert_close(logits, three_rows(), "logits after the call")
    assert_close(targets, np.array([0, 0, -100]), "targets after the call")


REFUSED = [  # for logits of shape (3, 4) unless another stands here; the last entry is ignored
    pytest.param((3, 4), np.array([0, -1, 3]), -100, "targets", id="target -1"),
    pytest.param((3, 4), np.array([0, 4, 3]), -100, "targets", id="target V"),
    pytest.param((3, 4), np.array([0, -100, 3]), -1, "targets", id="-100 where -1 is ignored"),
    pytest.param((3, 4), np.array([0, -1, 3]), 3, "targets", id="-1 where 3 is ignored"),
    pytest.param((3, 4), np.array([0.0, 1.0, 3.0]), -100, "targets", id="floats"),
    pytest.param((3, 4), np.array([True, False, True]), -100, "targets", id="bools"),
    pytest.param((3, 4), np.array([[0], [1], [3]]), -100, "targets", id="a column of targets"),
    pytest.param((3, 4), np.array([1]), -100, "targets", id="one target for three rows"),
    pytest.param((3, 4), np.array([-100] * 3), -100, "targets", id="none scored"),
    pytest.param((3, 4), np.array([2, 2, 2]), 2, "targets", id="none scored, by class"),
    pytest.param((0, 4), np.array([], dtype=int), -100, "targets", id="no rows"),
    pytest.param((1, 3, 4), np.array([0, 1, 3]), -100, "logits", id="three axes"),
    pytest.param((3,), np.array([0, 1, 2]), -100, "logits", id="one axis"),
]


@pytest.mark.exercise("cross_entropy")
@pytest.mark.parametrize(("shape", "targets", "ignore_index", "argument"), REFUSED)
def test_cross_entropy_refuses(impl, shape, targets, ignore_index, argument):
    loss, targets = impl.cross_entropy, targets.copy()
    refuses(ValueError, argument, loss, np.zeros(shape), targets, ignore_index)


def scored_rows(seed, rows, vocab, ignore_index):
    """Logits and targets of which some are not scored, but never the first."""
    rng = np.random.default_rng(seed)
    targets = np.where(rng.random(rows) < 0.4, ignore_index, rng.integers(0, vocab, rows))
    targets[0] = vocab - 1
    return 3 * drawn(seed, rows, vocab), targets


@pytest.mark.exercise("cross_entropy")
@given(
    rows=st.integers(1, 5),
    vocab=st.integers(2, 4),
    ignore_index=st.sampled_from([-100, -1, 0]),
    seed=st.integers(0, 5),
)
def test_cross_entropy_agrees_with_reference(impl, reference, rows, vocab, ignore_index, seed):
    logits, targets = scored_rows(seed, rows, vocab, ignore_index)
    expected = reference.cross_entropy(logits, targets, ignore_index)
    assert_close(impl.cross_entropy(logits, targets, ignore_index), expected, "the mean loss")


# cross_entropy_backward --------------------------------------------------------------------


@pytest.mark.exercise("cross_entropy_backward")
def test_the_gradient_is_what_the_model_says_minus_what_is_true(impl):
    # shares 1/8, 2/8, 5/8, and the target's entry less 1
    grad = impl.cross_entropy_backward(np.log([[1.0, 2.0, 5.0]]), np.array([1]))
    assert_close(grad, np.array([[0.125, -0.75, 0.625]]), "p - one_hot")


@pytest.mark.exercise("cross_entropy_backward")
def test_the_gradient_is_divided_by_the_number_of_scored_rows(impl):
    # two of three rows count: (1/8, 2/8 - 1, 5/8) / 2 and (2/8 - 1, 4/8, 2/8) / 2
    logits = np.log([[1.0, 2.0, 5.0], [3.0, 1.0, 4.0], [2.0, 4.0, 2.0]])
    grad = impl.cross_entropy_backward(logits, np.array([1, -100, 0]))
    expected = [[0.0625, -0.375, 0.3125], [0, 0, 0], [-0.375, 0.25, 0.125]]
    assert_close(grad, np.array(expected), "(p - one_hot) / 2, and 0 where nothing is scored")


@pytest.mark.exercise("cross_entropy_backward")
def test_the_gradient_stays_finite_at_a_thousand(impl):
    # row 0: all on class 0, the target is class 1; row 1: three equal shares, far below row 0
    logits = np.array([[1000.0, -1000.0, 0.0], [-1000.0] * 3])
    grad = impl.cross_entropy_backward(logits, np.array([1, 2]))
    expected = np.array([[0.5, -0.5, 0.0], [1 / 6, 1 / 6, -1 / 3]])
    assert_close(grad, expected, "the gradient at +-1000")


@pytest.mark.exercise("cross_entropy_backward")
@pytest.mark.parametrize("ignore_index", [-1, 0, 99], ids=["minus 1", "class 0", "99"])
def test_the_gradient_is_zero_where_the_target_is_the_ignore_index(impl, ignore_index):
    # shares (1/4, 3/4) and (1/2, 1/2), target 1 in both scored rows, two of them
    logits = np.log([[1.0, 3.0], [5.0, 5.0], [1.0, 1.0]])
    grad = impl.cross_entropy_backward(logits, np.array([1, ignore_index, 1]), ignore_index)
    expected = np.array([[0.125, -0.125], [0.0, 0.0], [0.25, -0.25]])
    assert_close(grad, expected, "the gradient of two scored rows")


@pytest.mark.exercise("cross_entropy_backward")
def test_the_gradient_has_the_dtype_of_the_logits(impl):
    grad = impl.cross_entropy_backward(np.zeros((2, 4), np.float32), np.array([1, 3]))
    expected = np.array([[1, -3, 1, 1], [1, 1, 1, -3]], dtype=np.float32) / 8
    assert_close(grad, expected, "the gradient in float32")


@pytest.mark.exercise("cross_entropy_backward")
def test_the_backward_leaves_logits_and_targets_as_they_are(impl):
    logits, targets = three_rows(), np.array([0, 0, -100])
    impl.cross_entropy_backward(logits, targets)
    assert_close(logits, three_rows(), "logits after the call")
    assert_close(targets, np.array([0, 0, -100]), "targets after the call")


@pytest.mark.exercise("cross_entropy_backward")
def test_a_later_call_leaves_an_earlier_gradient_alone(impl):
    earlier = impl.cross_entropy_backward(np.log([[1.0, 2.0, 5.0]]), np.array([1]))
    impl.cross_entropy_backward(np.zeros((1, 3)), np.array([0]))
    assert_close(earlier, np.array([[0.125, -0.75, 0.625]]), "the gradient of the earlier call")


@pytest.mark.exercise("cross_entropy_backward")
@pytest.mark.parametrize(("shape", "targets", "ignore_index", "argument"), REFUSED)
def test_cross_entropy_backward_refuses(impl, shape, targets, ignore_index, argument):
    backward, targets = impl.cross_entropy_backward, targets.copy()
    refuses(ValueError, argument, backward, np.zeros(shape), targets, ignore_index)


@pytest.mark.exercise("cross_entropy_backward")
def test_the_loss_gradient_agrees_with_central_differences(impl, reference):
    # rounding of some 1e-11 in each difference, and the step's square: 1e-6 leaves room
    logits, targets = drawn(0, 5, 4), np.array([3, -100, 0, 3, 1])
    expected = reference.numerical_gradient(
        lambda logits: reference.cross_entropy(logits, targets), logits
    )
    grad = impl.cross_entropy_backward(logits, targets)
    assert_close(grad, expected, "the gradient of the loss", rtol=1e-6, atol=1e-9)


@pytest.mark.exercise("cross_entropy_backward")
@given(
    rows=st.integers(1, 5),
    vocab=st.integers(2, 4),
    ignore_index=st.sampled_from([-100, -1, 0]),
    seed=st.integers(0, 5),
)
def test_cross_entropy_backward_agrees_with_reference(
    impl, reference, rows, vocab, ignore_index, seed
):
    logits, targets = scored_rows(seed, rows, vocab, ignore_index)
    expected = reference.cross_entropy_backward(logits, targets, ignore_index)
    grad = impl.cross_entropy_backward(logits, targets, ignore_index)
    assert_close(grad, expected, "the gradient of the loss")


# linear_backward ---------------------------------------------------------------------------


def the_cat_sat():
    """x, weight and upstream of N = 3, D_in = 2, D_out = 4, made anew for each test."""
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    weight = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    return x, weight, np.array([[1.0, 0, 0, 2], [0, 10, 0, 0], [0, 0, 100, 0]])


# Six positions in two rows of three; each has its own digit, so that a sum tells what it holds.
DIGITS = np.array([[1.0, 10, 100], [1000, 10000, 100000]])[..., None]


@pytest.mark.exercise("linear_backward")
def test_the_input_gradient_runs_back_through_the_weight(impl):
    # position 0: 1 (1, 5) + 2 (4, 8); position 1: 10 (2, 6); position 2: 100 (3, 7)
    grad_x, _, _ = impl.linear_backward(*the_cat_sat())
    assert_close(grad_x, np.array([[9.0, 21], [20, 60], [300, 700]]), "the gradient of x")


@pytest.mark.exercise("linear_backward")
def test_the_weight_gradient_sums_each_input_times_its_upstream(impl):
    # column 0: 1 (1, 2); column 1: 10 (3, 4); column 2: 100 (5, 6); column 3: 2 (1, 2)
    _, grad_weight, _ = impl.linear_backward(*the_cat_sat())
    expected = np.array([[1.0, 30, 500, 2], [2, 40, 600, 4]])
    assert_close(grad_weight, expected, "the gradient of the weight, (D_in, D_out)")


@pytest.mark.exercise("linear_backward")
def test_the_bias_gradient_sums_the_upstream(impl):
    _, _, grad_bias = impl.linear_backward(*the_cat_sat())
    assert_close(grad_bias, np.array([1.0, 10, 100, 2]), "the gradient of the bias, (D_out,)")


@pytest.mark.exercise("linear_backward")
def test_the_input_gradient_is_right_also_where_all_sizes_are_equal(impl):
    # g W^T = 1 (1, 3) and 10 (2, 4); without the transpose (1, 2) and 10 (3, 4)
    x, weight = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    grad_x, _, _ = impl.linear_backward(x, weight, np.array([[1.0, 0.0], [0.0, 10.0]]))
    assert_close(grad_x, np.array([[1.0, 3.0], [20.0, 40.0]]), "the gradient of x")


@pytest.mark.exercise("linear_backward")
def test_the_weight_gradient_is_right_also_where_all_sizes_are_equal(impl):
    # x^T g: column 0 is 1 (1, 2), column 1 is 10 (3, 4); transposed they would be rows
    x, weight = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    _, grad_weight, _ = impl.linear_backward(x, weight, np.array([[1.0, 0.0], [0.0, 10.0]]))
    assert_close(grad_weight, np.array([[1.0, 30.0], [2.0, 40.0]]), "the gradient of the weight")


@pytest.mark.exercise("linear_backward")
def test_the_weight_gradient_sums_over_all_leading_axes(impl):
    # x is (1, t + 1) at time t; the digits sum to 111111, weighted by t + 1 to 321321
    x = np.array([[[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]] * 2)
    _, grad_weight, _ = impl.linear_backward(x, np.ones((2, 4)), DIGITS * [1.0, 2, 3, 4])
    expected = np.array([[111111.0], [321321.0]]) * [1, 2, 3, 4]
    assert_close(grad_weight, expected, "the gradient of the weight over (B, T)")


@pytest.mark.exercise("linear_backward")
def test_the_bias_gradient_sums_over_all_leading_axes(impl):
    # over B alone three rows would be left: 1001, 10010, 100100
    x, weight = np.ones((2, 3, 5)), np.ones((5, 4))
    _, _, grad_bias = impl.linear_backward(x, weight, DIGITS * [1.0, 2, 3, 4])
    assert_close(grad_bias, 111111.0 * np.arange(1, 5), "the gradient of the bias over (B, T)")


@pytest.mark.exercise("linear_backward")
def test_one_position_needs_no_leading_axis(impl):
    # 1 (1, 4) + 10 (3, 6) = (31, 64); (1, 2) times (1, 0, 10), entry by entry
    x, weight = np.array([1.0, 2.0]), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    grads = impl.linear_backward(x, weight, np.array([1.0, 0.0, 10.0]))
    assert_close(grads[0], np.array([31.0, 64.0]), "the gradient of x")
    assert_close(grads[1], np.array([[1.0, 0, 10], [2, 0, 20]]), "the gradient of the weight")
    assert_close(grads[2], np.array([1.0, 0, 10]), "the gradient of the bias")


@pytest.mark.exercise("linear_backward")
def test_a_second_call_starts_from_zero(impl):
    impl.linear_backward(*the_cat_sat())
    _, grad_weight, _ = impl.linear_backward(*the_cat_sat())
    expected = np.array([[1.0, 30, 500, 2], [2, 40, 600, 4]])
    assert_close(grad_weight, expected, "the weight's gradient of the second call")


@pytest.mark.exercise("linear_backward")
def test_a_zero_weight_passes_nothing_back_and_has_a_gradient_itself(impl):
    # grad_x = g 0 = 0 is a number, not a missing gradient; x^T g does not depend on the weight
    x, weight, upstream = the_cat_sat()
    grad_x, grad_weight, _ = impl.linear_backward(x, 0 * weight, upstream)
    assert_close(grad_x, np.zeros((3, 2)), "the gradient of x")
    expected = np.array([[1.0, 30, 500, 2], [2, 40, 600, 4]])
    assert_close(grad_weight, expected, "the gradient of the weight")


@pytest.mark.exercise("linear_backward")
def test_linear_gradients_have_the_dtype_of_x(impl):
    # ones everywhere, N = 2, D_in = 3, D_out = 4: each sum counts what it sums over
    x, weight, upstream = (np.ones(shape, np.float32) for shape in ((2, 3), (3, 4), (2, 4)))
    grad_x, grad_weight, grad_bias = impl.linear_backward(x, weight, upstream)
    assert_close(grad_x, np.full((2, 3), 4, np.float32), "the gradient of x")
    assert_close(grad_weight, np.full((3, 4), 2, np.float32), "the gradient of the weight")
    assert_close(grad_bias, np.full(4, 2, np.float32), "the gradient of the bias")


@pytest.mark.exercise("linear_backward")
def test_linear_backward_changes_no_argument(impl):
    given, expected = the_cat_sat(), the_cat_sat()
    impl.linear_backward(*given)
    assert_close(given[0], expected[0], "x after the call")
    assert_close(given[1], expected[1], "weight after the call")
    assert_close(given[2], expected[2], "grad_output after the call")


BAD_LINEAR = [  # for a weight of shape (2, 4)
    pytest.param((3, 4), (3, 4), "x", id="x has D_out features"),
    pytest.param((3, 1), (3, 4), "x", id="x has one feature"),
    pytest.param((3, 2), (3, 2), "grad_output", id="grad_output has D_in features"),
    pytest.param((3, 2), (1, 4), "grad_output", id="one upstream row for three"),
    pytest.param((3, 2), (4,), "grad_output", id="no row axis"),
    pytest.param((3, 5, 2), (5, 3, 4), "grad_output", id="time first"),
    pytest.param((3, 5, 2), (15, 4), "grad_output", id="already flattened"),
]


@pytest.mark.exercise("linear_backward")
@pytest.mark.parametrize(("x", "upstream", "argument"), BAD_LINEAR)
def test_linear_backward_refuses(impl, x, upstream, argument):
    backward, weight = impl.linear_backward, np.ones((2, 4))
    refuses(ValueError, argument, backward, np.ones(x), weight, np.ones(upstream))


POSITIONS = [
    pytest.param((), id="one position"),
    pytest.param((5,), id="N"),
    pytest.param((2, 3), id="B and T"),
]


@pytest.mark.exercise("linear_backward")
@pytest.mark.parametrize("leading", POSITIONS)
def test_linear_gradients_agree_with_central_differences(impl, reference, leading):
    # the loss is a sum of y with random weights: those weights are the upstream gradient
    x, weight, bias = drawn(0, *leading, 3), drawn(1, 3, 4), drawn(2, 4)
    upstream = drawn(3, *leading, 4)

    def estimate(f, at):
        return reference.numerical_gradient(lambda value: (upstream * f(value)).sum(), at)

    grad_x, grad_weight, grad_bias = impl.linear_backward(x, weight, upstream)
    limits = {"rtol": 1e-6, "atol": 1e-9}
    expected = estimate(lambda x: reference.linear(x, weight, bias), x)
    assert_close(grad_x, expected, "the gradient of x", **limits)
    expected = estimate(lambda weight: reference.linear(x, weight, bias), weight)
    assert_close(grad_weight, expected, "the gradient of the weight", **limits)
    expected = estimate(lambda bias: reference.linear(x, weight, bias), bias)
    assert_close(grad_bias, expected, "the gradient of the bias", **limits)


@pytest.mark.exercise("linear_backward")
@given(
    leading=st.lists(st.integers(1, 3), max_size=3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_linear_backward_agrees_with_reference(impl, reference, leading, inputs, outputs, seed):
    x, weight = drawn(seed, *leading, inputs), drawn(seed + 1, inputs, outputs)
    upstream = drawn(seed + 2, *leading, outputs)
    grads = impl.linear_backward(x, weight, upstream)
    expected = reference.linear_backward(x, weight, upstream)
    assert_close(grads[0], expected[0], "the gradient of x")
    assert_close(grads[1], expected[1], "the gradient of the weight")
    assert_close(grads[2], expected[2], "the gradient of the bias")


# layer_norm_backward -----------------------------------------------------------------------

# Mean 3, deviations 2, variance 4; with eps = 12 the root is 4 and x_hat has entries +-1/2.
NORMED = {"eps": 12.0}


@pytest.mark.exercise("layer_norm_backward")
def test_the_gradient_runs_through_mean_and_variance_too(impl):
    # g = (16, 0, 0, 0), mean 4; g x_hat = (-8, 0, 0, 0), mean -2
    # (g - 4 + 2 x_hat) / 4 = (11, -5, -3, -3) / 4
    # statistics taken as constants: (4, 0, 0, 0); weight applied last: (2.75, -0.625, ...)
    x, weight = np.array([1.0, 1, 5, 5]), np.array([2.0, 1, 1, 1])
    grad_x, _, _ = impl.layer_norm_backward(x, weight, np.array([8.0, 0, 0, 0]), **NORMED)
    assert_close(grad_x, np.array([2.75, -1.25, -0.75, -0.75]), "the gradient of x")


@pytest.mark.exercise("layer_norm_backward")
def test_eps_stands_inside_the_root(impl):
    # deviations -+1e-3, variance 1e-6, root of 4e-6 is 2e-3, x_hat = (-1/2, 1/2)
    # g = (1, 0), mean 1/2; g x_hat has mean -1/4: (1 - 1/2 - 1/8, -1/2 + 1/8) / 2e-3
    # outside the root x_hat is -+0.997 and the gradient 2.98
    x, upstream = np.array([0.0, 2e-3]), np.array([1.0, 0.0])
    grad_x, _, _ = impl.layer_norm_backward(x, np.ones(2), upstream, eps=3e-6)
    assert_close(grad_x, np.array([187.5, -187.5]), "the gradient of x at a variance of 1e-6")


@pytest.mark.exercise("layer_norm_backward")
def test_the_scale_gradient_sums_upstream_times_the_normed_input(impl):
    # x_hat = (-1, -1, 1, 1) / 2 and (1, -1, -1, 1) / 2
    # (-8 + 4) / 2, (-1 - 10) / 2, (2 - 0) / 2, (0 + 6) / 2
    x, weight = np.array([[1.0, 1, 5, 5], [5, 1, 1, 5]]), np.array([2.0, 1, 1, 3])
    upstream = np.array([[8.0, 1, 2, 0], [4, 10, 0, 6]])
    _, grad_weight, _ = impl.layer_norm_backward(x, weight, upstream, **NORMED)
    assert_close(grad_weight, np.array([-2.0, -5.5, 1, 3]), "the gradient of the weight")


@pytest.mark.exercise("layer_norm_backward")
def test_the_shift_gradient_sums_the_upstream(impl):
    x, weight = np.array([[1.0, 1, 5, 5], [5, 1, 1, 5]]), np.array([2.0, 1, 1, 3])
    upstream = np.array([[8.0, 1, 2, 0], [4, 10, 0, 6]])
    _, _, grad_bias = impl.layer_norm_backward(x, weight, upstream, **NORMED)
    assert_close(grad_bias, np.array([12.0, 11, 2, 6]), "the gradient of the bias")


@pytest.mark.exercise("layer_norm_backward")
def test_scale_and_shift_gradients_sum_over_all_leading_axes(impl):
    # the same x at six positions; the digits sum to 111111
    x, upstream = np.ones((2, 3, 1)) * [1.0, 1, 5, 5], DIGITS * [1.0, 2, 3, 4]
    _, grad_weight, grad_bias = impl.layer_norm_backward(x, np.ones(4), upstream, **NORMED)
    assert_close(grad_weight, 111111 * np.array([-0.5, -1, 1.5, 2]), "the gradient of the weight")
    assert_close(grad_bias, 111111.0 * np.arange(1, 5), "the gradient of the bias")


@pytest.mark.exercise("layer_norm_backward")
def test_positions_do_not_see_each_other_also_where_all_sizes_are_equal(impl):
    # (1, 5): mean 3, x_hat (-1/2, 1/2); g = (8, 0): (8 - 4 - 1, -4 + 1) / 4; nothing comes
    # from above at (7, 7), so nothing goes below; down the columns it would
    x, upstream = np.array([[1.0, 5.0], [7.0, 7.0]]), np.array([[8.0, 0.0], [0.0, 0.0]])
    grad_x, _, _ = impl.layer_norm_backward(x, np.ones(2), upstream, **NORMED)
    assert_close(grad_x, np.array([[0.75, -0.75], [0.0, 0.0]]), "the gradient of x")


@pytest.mark.exercise("layer_norm_backward")
def test_norm_gradients_have_the_dtype_of_x(impl):
    x, weight = np.array([[1, 1, 5, 5]], np.float32), np.array([2, 1, 1, 1], np.float32)
    upstream = np.array([[8, 0, 0, 0]], np.float32)
    grads = impl.layer_norm_backward(x, weight, upstream, **NORMED)
    expected = np.array([[2.75, -1.25, -0.75, -0.75]], np.float32)
    assert_close(grads[0], expected, "the gradient of x")
    assert_close(grads[1], np.array([-4, 0, 0, 0], np.float32), "the gradient of the weight")
    assert_close(grads[2], np.array([8, 0, 0, 0], np.float32), "the gradient of the bias")


@pytest.mark.exercise("layer_norm_backward")
def test_layer_norm_backward_changes_no_argument(impl):
    x, weight, upstream = drawn(0, 3, 4), drawn(1, 4), drawn(2, 3, 4)
    impl.layer_norm_backward(x, weight, upstream)
    assert_close(x, drawn(0, 3, 4), "x after the call")
    assert_close(weight, drawn(1, 4), "weight after the call")
    assert_close(upstream, drawn(2, 3, 4), "grad_output after the call")


BAD_NORM = [  # for x of shape (2, 3, 4)
    pytest.param((1,), (2, 3, 4), "weight", id="one scale for all"),
    pytest.param((3,), (2, 3, 4), "weight", id="a scale for each time"),
    pytest.param((3, 4), (2, 3, 4), "weight", id="a scale for each time and feature"),
    pytest.param((4,), (3, 4), "grad_output", id="no batch axis"),
    pytest.param((4,), (2, 1, 4), "grad_output", id="one time for three"),
    pytest.param((4,), (2, 3, 1), "grad_output", id="one feature for four"),
    pytest.param((4,), (3, 2, 4), "grad_output", id="time first"),
]


@pytest.mark.exercise("layer_norm_backward")
@pytest.mark.parametrize(("weight", "upstream", "argument"), BAD_NORM)
def test_layer_norm_backward_refuses(impl, weight, upstream, argument):
    backward = impl.layer_norm_backward
    refuses(ValueError, argument, backward, drawn(0, 2, 3, 4), np.ones(weight), np.ones(upstream))


@pytest.mark.exercise("layer_norm_backward")
@pytest.mark.parametrize("leading", POSITIONS)
def test_norm_gradients_agree_with_central_differences(impl, reference, leading):
    # random weights on y: a plain sum of a norm has gradient 0 whatever the formula
    x, weight, bias = drawn(0, *leading, 4), drawn(1, 4), drawn(2, 4)
    upstream = drawn(3, *leading, 4)

    def estimate(f, at):
        return reference.numerical_gradient(lambda value: (upstream * f(value)).sum(), at)

    grad_x, grad_weight, grad_bias = impl.layer_norm_backward(x, weight, upstream)
    limits = {"rtol": 1e-6, "atol": 1e-9}
    expected = estimate(lambda x: reference.layer_norm(x, weight, bias), x)
    assert_close(grad_x, expected, "the gradient of x", **limits)
    expected = estimate(lambda weight: reference.layer_norm(x, weight, bias), weight)
    assert_close(grad_weight, expected, "the gradient of the weight", **limits)
    expected = estimate(lambda bias: reference.layer_norm(x, weight, bias), bias)
    assert_close(grad_bias, expected, "the gradient of the bias", **limits)


@pytest.mark.exercise("layer_norm_backward")
@given(
    leading=st.lists(st.integers(1, 3), max_size=3),
    width=st.integers(1, 4),
    eps=st.sampled_from([1e-5, 1.0]),
    seed=st.integers(0, 3),
)
def test_layer_norm_backward_agrees_with_reference(impl, reference, leading, width, eps, seed):
    x, upstream = drawn(seed, *leading, width), drawn(seed + 1, *leading, width)
    weight = drawn(seed + 2, width)
    grads = impl.layer_norm_backward(x, weight, upstream, eps)
    expected = reference.layer_norm_backward(x, weight, upstream, eps)
    assert_close(grads[0], expected[0], "the gradient of x")
    assert_close(grads[1], expected[1], "the gradient of the weight")
    assert_close(grads[2], expected[2], "the gradient of the bias")


# numerical_gradient ------------------------------------------------------------------------


@pytest.mark.exercise("numerical_gradient")
def test_the_difference_is_central_and_over_twice_the_step(impl):
    # ((x + 1/2)^3 - (x - 1/2)^3) / 1 = 3 x^2 + 1/4
    # one-sided at 1: (1.5^3 - 1^3) / 0.5 = 4.75; over one step: 6.5
    grad = impl.numerical_gradient(lambda x: (x**3).sum(), np.array([1.0, 2.0, 0.0]), eps=0.5)
    assert_close(grad, np.array([3.25, 12.25, 0.25]), "3 x^2 + eps^2 at 1, 2 and 0")


@pytest.mark.exercise("numerical_gradient")
def test_only_one_entry_moves_at_a_time(impl):
    # the product of the others: linear in each entry, so a step of 1 is exact
    grad = impl.numerical_gradient(lambda x: x.prod(), np.array([2.0, 3.0, 5.0]), eps=1.0)
    assert_close(grad, np.array([15.0, 10.0, 6.0]), "3 * 5, 2 * 5 and 2 * 3")


@pytest.mark.exercise("numerical_gradient")
def test_the_gradient_has_the_shape_of_x(impl):
    # f weighs entry (i, j) with 10 i + j + 1
    weights = np.array([[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]])
    grad = impl.numerical_gradient(lambda x: (weights * x).sum(), np.ones((2, 3)), eps=1.0)
    assert_close(grad, weights, "the weights, (2, 3)")


@pytest.mark.exercise("numerical_gradient")
def test_a_single_number_may_be_an_array_without_axes(impl):
    # (4^2 - 2^2) / 2
    grad = impl.numerical_gradient(lambda x: float(x) ** 2, np.array(3.0), eps=1.0)
    assert_close(grad, 6.0, "2 x at 3")


@pytest.mark.exercise("numerical_gradient")
def test_x_may_lie_in_memory_in_any_order(impl):
    # a transposed array is a view; reshape(-1) copies it, and steps in that copy reach no one
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).T
    grad = impl.numerical_gradient(lambda x: (x**2).sum(), x, eps=1.0)
    assert_close(grad, np.array([[2.0, 6, 10], [4, 8, 12]]), "2 x of a transposed array")


@pytest.mark.exercise("numerical_gradient")
def test_x_is_exactly_as_it_was(impl):
    # 0.1 + e - 2 e + e is not 0.1 in floating point: no tolerance here
    x = np.array([[0.1, 0.7], [1.0, 5.0]])
    impl.numerical_gradient(lambda x: (x**2).sum(), x)
    expected = np.array([[0.1, 0.7], [1.0, 5.0]])
    assert_close(x, expected, "x after the call", rtol=0.0, atol=0.0)


def stops_above_two(x):
    if x[1] > 2:
        raise ArithmeticError("above two")
    return x.sum()


@pytest.mark.exercise("numerical_gradient")
def test_x_is_as_it_was_also_if_f_raises(impl):
    # f stops at its third call, when x[1] has gone up; what it raises is passed on
    x = np.array([1.0, 2.0])
    refuses(ArithmeticError, "two", impl.numerical_gradient, stops_above_two, x, eps=0.5)
    assert_close(x, np.array([1.0, 2.0]), "x after f has raised", rtol=0.0, atol=0.0)


BAD_STEPS = [
    pytest.param(np.array([1, 2]), 1e-5, "x", id="integers"),
    pytest.param(np.array([1.0, 2.0], np.float32), 1e-5, "x", id="float32"),
    pytest.param(np.array([1.0, 2.0]), 0.0, "eps", id="no step"),
    pytest.param(np.array([1.0, 2.0]), -1e-5, "eps", id="a step below 0"),
    pytest.param(np.array([1.0, 2.0]), math.nan, "eps", id="NaN"),
]


@pytest.mark.exercise("numerical_gradient")
@pytest.mark.parametrize(("x", "eps", "argument"), BAD_STEPS)
def test_numerical_gradient_refuses(impl, x, eps, argument):
    estimate, x = impl.numerical_gradient, x.copy()
    refuses(ValueError, argument, estimate, lambda x: float(x.sum()), x, eps)


@pytest.mark.exercise("numerical_gradient")
@given(
    shape=st.lists(st.integers(1, 3), max_size=3),
    eps=st.sampled_from([1e-5, 0.5]),
    seed=st.integers(0, 3),
)
def test_numerical_gradient_agrees_with_reference(impl, reference, shape, eps, seed):
    # sin of a weighted sum: no entry's slope is independent of the others
    x, weights = np.array(drawn(seed, *shape)), np.array(drawn(seed + 1, *shape))

    def f(x):
        return math.sin((weights * x).sum())

    # the difference of two values near 1, over 2e-5, is good to some 1e-11
    expected = reference.numerical_gradient(f, x, eps)
    assert_close(impl.numerical_gradient(f, x, eps), expected, "the estimate", atol=1e-9)


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise(
    "log_softmax",
    "cross_entropy",
    "cross_entropy_backward",
    "linear_backward",
    "layer_norm_backward",
    "numerical_gradient",
)
def test_the_file_as_written_agrees_with_reference(impl, reference):
    # x -> layer norm -> linear -> loss, and back to x; then the same by steps
    x, scale, shift = drawn(0, 2, 3, 4), drawn(1, 4), drawn(2, 4)
    weight, bias, targets = drawn(3, 4, 5), drawn(4, 5), np.array([4, -100, 0, 4, 1, -100])

    def logits_of(x):
        hidden = reference.layer_norm(x, scale, shift)
        return hidden, reference.linear(hidden, weight, bias).reshape(-1, 5)

    hidden, logits = logits_of(x)
    answers = []
    for module in (impl, reference):
        grad_logits = module.cross_entropy_backward(logits, targets).reshape(2, 3, 5)
        grad_hidden, grad_weight, _ = module.linear_backward(hidden, weight, grad_logits)
        grad_x, grad_scale, _ = module.layer_norm_backward(x, scale, grad_hidden)
        by_steps = module.numerical_gradient(
            lambda x, module=module: module.cross_entropy(logits_of(x)[1], targets), x
        )
        log_probs = module.log_softmax(logits)
        answers.append([grad_x, grad_weight, grad_scale, by_steps, log_probs])
    whole, expected = (np.concatenate([a.ravel() for a in answer]) for answer in answers)
    assert_close(whole, expected, "the gradients, by formula and by steps", atol=1e-9)
