"""Chapter 1: embeddings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.checks import assert_close, refuses


def numbered(rows, columns):
    """Row r, column c holds 10 r + c, so that each number says where it stood."""
    return 10.0 * np.arange(rows)[:, None] + np.arange(columns)


def drawn(seed, *shape):
    """Normal numbers with two decimals, which no code under test has made."""
    return np.random.default_rng(seed).normal(size=shape).round(2)


def ids(seed, batch, length, vocab):
    return np.random.default_rng(seed).integers(0, vocab, size=(batch, length))


BAD_TOKENS = [  # for a vocabulary of 4
    pytest.param(np.array([[0.0, 1.0]]), id="floats"),
    pytest.param(np.array([[True, False]]), id="bools"),
    pytest.param(np.array([0, 1]), id="one axis"),
    pytest.param(np.array([[[0, 1]]]), id="three axes"),
    pytest.param(np.zeros((0, 2), dtype=int), id="no row"),
    pytest.param(np.zeros((2, 0), dtype=int), id="no column"),
    pytest.param(np.array([[0, 1], [2, -1]]), id="negative id"),
    pytest.param(np.array([[0, 1], [4, 2]]), id="id V"),
]

# embed -------------------------------------------------------------------------------------


@pytest.mark.exercise("embed")
def test_each_token_takes_its_own_row(impl):
    # row v of the table is 10v .. 10v+4
    vectors = impl.embed(np.array([[2, 0, 3], [1, 1, 0]]), numbered(4, 5))
    first = [[20, 21, 22, 23, 24], [0, 1, 2, 3, 4], [30, 31, 32, 33, 34]]
    second = [[10, 11, 12, 13, 14], [10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]
    assert_close(vectors, np.array([first, second], dtype=float), "the rows of 2 0 3 and 1 1 0")


@pytest.mark.exercise("embed")
def test_ids_choose_rows_also_where_all_sizes_are_equal(impl):
    # columns would be (1, 11) and (0, 10)
    vectors = impl.embed(np.array([[1, 0], [0, 1]]), numbered(2, 2))
    rows = [[[10.0, 11.0], [0.0, 1.0]], [[0.0, 1.0], [10.0, 11.0]]]
    assert_close(vectors, np.array(rows), "the rows of 1 0 and 0 1")


@pytest.mark.exercise("embed")
def test_one_token_keeps_all_three_axes(impl):
    vectors = impl.embed(np.array([[3]]), numbered(4, 2))
    assert_close(vectors, np.array([[[30.0, 31.0]]]), "a batch of one sequence of one token")


@pytest.mark.exercise("embed")
def test_vectors_have_the_dtype_of_the_table(impl):
    vectors = impl.embed(np.array([[1, 0]]), numbered(3, 2).astype(np.float32))
    assert_close(vectors, np.array([[[10, 11], [0, 1]]], dtype=np.float32), "rows in float32")


@pytest.mark.exercise("embed")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32], ids=lambda d: d.__name__)
def test_ids_of_any_integer_dtype_find_their_row(impl, dtype):
    # 199 * 2 = 398 does not fit in uint8
    vectors = impl.embed(np.array([[199, 7]], dtype=dtype), numbered(200, 2))
    assert_close(vectors, np.array([[[1990.0, 1991.0], [70.0, 71.0]]]), "rows 199 and 7")


@pytest.mark.exercise("embed")
def test_embedding_changes_neither_tokens_nor_table(impl):
    tokens, table = np.array([[2, 0, 1]]), numbered(3, 2)
    impl.embed(tokens, table)
    assert_close(table, numbered(3, 2), "the table after the call")
    assert_close(tokens, np.array([[2, 0, 1]]), "tokens after the call")


@pytest.mark.exercise("embed")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_embed_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", impl.embed, tokens, numbered(4, 3))


@pytest.mark.exercise("embed")
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    vocab=st.integers(1, 5),
    width=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_embed_agrees_with_reference(impl, reference, batch, length, vocab, width, seed):
    tokens, table = ids(seed, batch, length, vocab), drawn(seed, vocab, width)
    assert_close(impl.embed(tokens, table), reference.embed(tokens, table), "the tokens' rows")


# one_hot -----------------------------------------------------------------------------------


@pytest.mark.exercise("one_hot")
def test_each_token_has_its_one_in_its_own_column(impl):
    # ids 3 and 4 do not occur; their columns are there all the same
    vectors = impl.one_hot(np.array([[2, 0, 1], [0, 0, 2]]), 5)
    the, cat, sat = [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]
    assert_close(vectors, np.array([[sat, the, cat], [the, the, sat]], dtype=float), "one-hot")


@pytest.mark.exercise("one_hot")
def test_the_vocabulary_is_the_last_axis_also_where_all_sizes_are_equal(impl):
    # vocabulary before time would be the transpose of each row's matrix: [[0, 1], [0, 1]] first
    vectors = impl.one_hot(np.array([[1, 1], [0, 1]]), 2)
    expected = [[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]
    assert_close(vectors, np.array(expected), "one-hot of 1 1 and 0 1")


@pytest.mark.exercise("one_hot")
def test_one_hot_leaves_tokens_as_they_are(impl):
    tokens = np.array([[2, 0], [1, 2]])
    impl.one_hot(tokens, 3)
    assert_close(tokens, np.array([[2, 0], [1, 2]]), "tokens after the call")


@pytest.mark.exercise("one_hot")
def test_a_later_call_leaves_an_earlier_result_alone(impl):
    earlier = impl.one_hot(np.array([[1, 0]]), 2)
    impl.one_hot(np.array([[1, 1]]), 2)
    assert_close(earlier, np.array([[[0.0, 1.0], [1.0, 0.0]]]), "one-hot of 1 0, after 1 1")


@pytest.mark.exercise("one_hot")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_one_hot_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", impl.one_hot, tokens, 4)


@pytest.mark.exercise("one_hot")
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    vocab=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_one_hot_agrees_with_reference(impl, reference, batch, length, vocab, seed):
    tokens = ids(seed, batch, length, vocab)
    assert_close(impl.one_hot(tokens, vocab), reference.one_hot(tokens, vocab), "one-hot")


# add_positions -----------------------------------------------------------------------------

# Two sequences of three tokens, four features each: 100, 200, 300 and 400, 500, 600.
HUNDREDS = 100.0 * np.arange(1, 7).reshape(2, 3, 1) * np.ones(4)


@pytest.mark.exercise("add_positions")
def test_each_token_gets_the_row_of_its_place(impl):
    # row c is 10c .. 10c+3: place 1 makes 210 .. 213 of 200 and 510 .. 513 of 500
    first = [[100, 101, 102, 103], [210, 211, 212, 213], [320, 321, 322, 323]]
    second = [[400, 401, 402, 403], [510, 511, 512, 513], [620, 621, 622, 623]]
    summed = impl.add_positions(HUNDREDS.copy(), numbered(7, 4))
    assert_close(summed, np.array([first, second], dtype=float), "tokens plus places 0, 1, 2")


@pytest.mark.exercise("add_positions")
def test_the_first_token_stands_at_the_offset(impl):
    # places 2, 3, 4 of 7
    first = [[120, 121, 122, 123], [230, 231, 232, 233], [340, 341, 342, 343]]
    second = [[420, 421, 422, 423], [530, 531, 532, 533], [640, 641, 642, 643]]
    summed = impl.add_positions(HUNDREDS.copy(), numbered(7, 4), 2)
    assert_close(summed, np.array([first, second], dtype=float), "tokens plus places 2, 3, 4")


@pytest.mark.exercise("add_positions")
def test_places_run_along_the_sequence_also_where_all_sizes_are_equal(impl):
    # along the batch the second token would get row 0 in the first sequence, 1 in the second
    summed = impl.add_positions(np.zeros((2, 2, 2)), numbered(2, 2))
    expected = [[[0.0, 1.0], [10.0, 11.0]], [[0.0, 1.0], [10.0, 11.0]]]
    assert_close(summed, np.array(expected), "places 0 and 1 in both sequences")


@pytest.mark.exercise("add_positions")
def test_the_last_place_of_the_table_can_be_used(impl):
    # places 3 and 4 of 5: offset + T = C
    summed = impl.add_positions(np.ones((1, 2, 3)), numbered(5, 3), 3)
    assert_close(summed, np.array([[[31.0, 32, 33], [41, 42, 43]]]), "1 plus places 3 and 4")


@pytest.mark.exercise("add_positions")
def test_the_sum_has_the_dtype_of_x(impl):
    summed = impl.add_positions(np.ones((1, 2, 3), np.float32), numbered(4, 3))
    expected = np.array([[[1, 2, 3], [11, 12, 13]]], dtype=np.float32)
    assert_close(summed, expected, "float32 tokens plus float64 places")


@pytest.mark.exercise("add_positions")
def test_adding_positions_changes_neither_x_nor_positions(impl):
    x, positions = HUNDREDS.copy(), numbered(7, 4)
    impl.add_positions(x, positions, 1)
    assert_close(x, HUNDREDS, "x after the call")
    assert_close(positions, numbered(7, 4), "positions after the call")


BAD_OFFSETS = [  # for a table of 5 places
    pytest.param(6, 0, id="longer than the table"),
    pytest.param(2, -1, id="one before the table"),
    pytest.param(2, -4, id="rows 1 and 2 from the end"),
    pytest.param(3, 4, id="one row left for three tokens"),
    pytest.param(2, 4, id="one place too far"),
    pytest.param(2, 5, id="behind the table"),
]


@pytest.mark.exercise("add_positions")
@pytest.mark.parametrize(("length", "offset"), BAD_OFFSETS)
def test_places_outside_the_table_are_refused(impl, length, offset):
    refuses(
        ValueError, "offset", impl.add_positions, np.ones((2, length, 3)), numbered(5, 3), offset
    )


BAD_WIDTHS = [
    pytest.param(4, (5, 1), id="one feature for all"),
    pytest.param(1, (5, 4), id="one token feature"),
    pytest.param(4, (5, 3), id="three features for four"),
    pytest.param(4, (4,), id="one row without its axis"),
    pytest.param(4, (5, 2, 4), id="a row for each sequence"),
]


@pytest.mark.exercise("add_positions")
@pytest.mark.parametrize(("width", "shape"), BAD_WIDTHS)
def test_positions_of_another_width_are_refused(impl, width, shape):
    refuses(ValueError, "positions", impl.add_positions, np.ones((2, 2, width)), np.ones(shape))


@pytest.mark.exercise("add_positions")
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    width=st.integers(1, 3),
    offset=st.integers(0, 3),
    unused=st.integers(0, 2),
)
def test_add_positions_agrees_with_reference(impl, reference, batch, length, width, offset, unused):
    x, positions = drawn(0, batch, length, width), drawn(1, offset + length + unused, width)
    expected = reference.add_positions(x, positions, offset)
    assert_close(impl.add_positions(x, positions, offset), expected, "tokens plus places")


# embedding_backward ------------------------------------------------------------------------


@pytest.mark.exercise("embedding_backward")
def test_each_gradient_reaches_the_row_of_its_token(impl):
    # each place has its own digit, so the sum tells which gradients a row got
    # row 0: 1 + 100 + 1000, row 1: 100000, row 2: 10 + 10000, row 3: none
    tokens = np.array([[0, 2, 0], [0, 2, 1]])
    digits = np.array([[1.0, 10, 100], [1000, 10000, 100000]])
    grad = impl.embedding_backward(tokens, digits[..., None] * [1, 2, 3, 4, 5], 4)
    sums = np.array([1101.0, 100000, 10010, 0])
    assert_close(grad, sums[:, None] * [1, 2, 3, 4, 5], "the table's gradient")


@pytest.mark.exercise("embedding_backward")
def test_gradients_of_a_repeated_id_add_up(impl):
    # the sat the: row 0 twice, row 1 never, row 2 once
    grad = impl.embedding_backward(np.array([[0, 2, 0]]), np.ones((1, 3, 4)), 3)
    assert_close(grad, np.array([[2.0] * 4, [0.0] * 4, [1.0] * 4]), "the table's gradient")


@pytest.mark.exercise("embedding_backward")
def test_gradients_reach_their_rows_also_where_all_sizes_are_equal(impl):
    # row 0: 10, row 1: 1 + 100 + 1000
    digits = np.array([[1.0, 10], [100, 1000]])
    grad = impl.embedding_backward(np.array([[1, 0], [1, 1]]), digits[..., None] * [1, 2], 2)
    assert_close(grad, np.array([[10.0, 20.0], [1101.0, 2202.0]]), "the table's gradient")


@pytest.mark.exercise("embedding_backward")
def test_absent_rows_are_there_and_zero(impl):
    # ids 1 and 3 of 6
    grad = impl.embedding_backward(np.array([[3, 1]]), np.array([[[7.0], [8.0]]]), 6)
    assert_close(grad, np.array([[0.0], [8], [0], [7], [0], [0]]), "a row for each of 6 tokens")


@pytest.mark.exercise("embedding_backward")
def test_the_gradient_has_the_dtype_of_grad(impl):
    grad = impl.embedding_backward(np.array([[1, 1]]), np.ones((1, 2, 3), np.float32), 2)
    expected = np.array([[0, 0, 0], [2, 2, 2]], dtype=np.float32)
    assert_close(grad, expected, "the gradient in float32")


@pytest.mark.exercise("embedding_backward")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32], ids=lambda d: d.__name__)
def test_ids_of_any_integer_dtype_train_their_row(impl, dtype):
    # 199 * 2 = 398 does not fit in uint8
    tokens = np.array([[199, 7, 199]], dtype=dtype)
    grad = impl.embedding_backward(tokens, np.array([[[1.0, 2], [3, 4], [5, 6]]]), 200)
    assert_close(grad[[7, 199]], np.array([[3.0, 4], [6, 8]]), "rows 7 and 199")


@pytest.mark.exercise("embedding_backward")
def test_backward_is_the_transpose_of_the_lookup(impl):
    # the lookup is linear in the table, so grad . lookup(table) = backward(grad) . table
    tokens, table, upstream = ids(0, 3, 5, vocab=4), drawn(1, 4, 2), drawn(2, 3, 5, 2)
    grad = impl.embedding_backward(tokens, upstream, 4)
    assert_close((grad * table).sum(), (upstream * table[tokens]).sum(), "backward(grad) . table")


@pytest.mark.exercise("embedding_backward")
def test_backward_changes_neither_tokens_nor_grad(impl):
    tokens, grad = np.array([[0, 2, 0]]), drawn(0, 1, 3, 2)
    impl.embedding_backward(tokens, grad, 3)
    assert_close(grad, drawn(0, 1, 3, 2), "grad after the call")
    assert_close(tokens, np.array([[0, 2, 0]]), "tokens after the call")


@pytest.mark.exercise("embedding_backward")
def test_a_second_call_starts_from_zero(impl):
    tokens, grad = np.array([[0, 1, 0]]), np.array([[[1.0], [2.0], [4.0]]])
    impl.embedding_backward(tokens, grad, 2)
    again = impl.embedding_backward(tokens, grad, 2)
    assert_close(again, np.array([[5.0], [2.0]]), "the gradient of the second call")


@pytest.mark.exercise("embedding_backward")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_embedding_backward_refuses_bad_tokens(impl, tokens):
    grad = np.ones((*tokens.shape, 3))
    refuses(ValueError, "tokens", impl.embedding_backward, tokens, grad, 4)


BAD_GRADS = [  # for tokens of shape (2, 3)
    pytest.param((3, 4), id="no batch axis"),
    pytest.param((1, 3, 4), id="one sequence for two"),
    pytest.param((2, 1, 4), id="one token for three"),
    pytest.param((3, 2, 4), id="time first"),
    pytest.param((2, 3), id="no width"),
]


@pytest.mark.exercise("embedding_backward")
@pytest.mark.parametrize("shape", BAD_GRADS)
def test_embedding_backward_refuses_a_grad_of_another_shape(impl, shape):
    tokens = np.array([[0, 2, 0], [1, 1, 2]])
    refuses(ValueError, "grad", impl.embedding_backward, tokens, np.ones(shape), 4)


@pytest.mark.exercise("embedding_backward")
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    vocab=st.integers(1, 5),
    width=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_embedding_backward_agrees_with_reference(
    impl, reference, batch, length, vocab, width, seed
):
    tokens, grad = ids(seed, batch, length, vocab), drawn(seed, batch, length, width)
    expected = reference.embedding_backward(tokens, grad, vocab)
    assert_close(impl.embedding_backward(tokens, grad, vocab), expected, "the table's gradient")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise("embed", "one_hot")
def test_a_lookup_is_a_product_with_one_hot_vectors(impl):
    tokens, table = ids(0, 2, 3, vocab=4), drawn(1, 4, 5)
    assert_close(impl.one_hot(tokens, 4) @ table, impl.embed(tokens, table), "one_hot @ table")


@pytest.mark.exercise("embed", "one_hot", "add_positions", "embedding_backward")
def test_the_file_as_written_agrees_with_reference(impl, reference):
    tokens, table, positions = ids(0, 2, 3, vocab=4), drawn(1, 4, 5), drawn(2, 6, 5)
    answers = []
    for module in (impl, reference):
        x = module.add_positions(module.embed(tokens, table), positions, 2)
        logits = x @ table.T  # tied: (B, T, V)
        grad = (logits - module.one_hot(tokens, 4)) @ table
        answers.append(module.embedding_backward(tokens, grad, 4))
    assert_close(answers[0], answers[1], "the table's gradient, end to end")
