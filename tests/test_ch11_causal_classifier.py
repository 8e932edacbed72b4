"""Chapter 11: a causal decoder as a classifier."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.checks import assert_close, refuses

S = 1 / math.sqrt(1 + 1e-5)  # normalize((1, -1)) is (S, -S): mean 0, variance 1, eps 1e-5


def parameters(width=12, heads=3, vocab=7, max_length=9, seed=0):
    """Normal parameters of the given sizes, drawn without the code under test."""
    rng = np.random.default_rng(seed)
    p = {"token": rng.normal(size=(vocab, width)), "position": rng.normal(size=(max_length, width))}
    p |= {name: rng.normal(size=(width, width)) / math.sqrt(width) for name in "qkvo"}
    p |= {"ff1": rng.normal(size=(width, 4 * width)) / math.sqrt(width)}
    p |= {"ff2": rng.normal(size=(4 * width, width)) / math.sqrt(4 * width)}
    return p | {"heads": heads}


def silent(token, heads=1, max_length=9):
    """Parameters in which positions, attention and feed-forward add nothing."""
    token = np.array(token, dtype=float)
    width = token.shape[1]
    p = {name: np.zeros((width, width)) for name in "qkvo"}
    p |= {"ff1": np.zeros((width, 4 * width)), "ff2": np.zeros((4 * width, width))}
    return p | {"token": token, "position": np.zeros((max_length, width)), "heads": heads}


def padded(lengths, width, extra=0, seed=0):
    """Random hidden states whose padding is large, and their mask."""
    T = max(lengths) + extra
    mask = np.arange(T) < np.array(lengths)[:, None]
    hidden = np.random.default_rng(seed).normal(size=(len(lengths), T, width))
    return np.where(mask[..., None], hidden, 100 + hidden), mask


# forward -----------------------------------------------------------------------------------


def running_mean_parameters():
    return silent([[1, -1], [-1, 1]]) | {"v": np.eye(2), "o": np.eye(2)}


@pytest.mark.exercise("forward")
def test_attention_is_the_running_mean_when_queries_are_zero(impl):
    # equal scores: position t averages v over 0..t, v = (S, -S), (S, -S), (-S, S)
    # so it adds S, S and S/3 to the first feature of 1, 1 and -1
    _, hidden, _ = impl.forward(np.array([[0, 0, 1]]), running_mean_parameters())
    first = np.array([1 + S, 1 + S, -1 + S / 3])
    assert_close(hidden, np.stack([first, -first], -1)[None], "hidden at each position")


@pytest.mark.exercise("forward")
def test_attention_adds_the_projected_values_of_the_normed_tokens(impl):
    # one token (3, -3), normed (n, -n) with n = 3 / sqrt(9 + 1e-5); v keeps it and o doubles it
    p = silent([[3, -3]]) | {"v": np.eye(2), "o": 2 * np.eye(2)}
    _, hidden, _ = impl.forward(np.array([[0]]), p)
    n = 3 / math.sqrt(9 + 1e-5)
    assert_close(hidden, np.array([[[3 + 2 * n, -3 - 2 * n]]]), "x + o v normed(x)")


@pytest.mark.exercise("forward")
def test_logits_are_the_normed_hidden_state_times_the_token_table(impl):
    # one token, attention adds nothing: hidden = (1, -3), mean -1, deviations 2 and -2, variance 4
    # normed (n, -n) with n = 2 / sqrt(4 + 1e-5); times the rows (1, -3) and (0, 5): 4n and -5n
    logits, _, _ = impl.forward(np.array([[0]]), silent([[1, -3], [0, 5]]))
    n = 2 / math.sqrt(4 + 1e-5)
    assert_close(logits, np.array([[[4 * n, -5 * n]]]), "logits over the vocabulary")


@pytest.mark.exercise("forward")
def test_hidden_is_what_stands_before_the_final_norm(impl):
    # nothing is added to the token's own row (1, -3); the final norm would give (1, -1)
    _, hidden, _ = impl.forward(np.array([[0]]), silent([[1, -3], [0, 5]]))
    assert_close(hidden, np.array([[[1.0, -3.0]]]), "hidden")


@pytest.mark.exercise("forward")
def test_positions_are_added_to_the_tokens(impl):
    # rows 0, 1, 2 of the table, to the token (1, -1)
    p = silent([[1, -1]]) | {"position": np.array([[0.0, 10.0], [20.0, 30.0], [40.0, 50.0]])}
    _, hidden, _ = impl.forward(np.array([[0, 0, 0]]), p)
    assert_close(hidden, np.array([[[1.0, 9], [21, 29], [41, 49]]]), "token plus position")


@pytest.mark.exercise("forward")
def test_the_feed_forward_reads_the_normed_stream_and_is_added_to_it(impl):
    # x = (3, -3), normed (n, -n) with n = 3 / sqrt(9 + 1e-5); ff1 hands on the two features and
    # ff2 brings them back: x + (gelu(n), gelu(-n)), gelu by tanh: 0.8411920 and -0.1588080 at n = 1
    p = silent([[3, -3]])
    p["ff1"][[0, 1], [0, 1]] = 1.0
    p["ff2"][[0, 1], [0, 1]] = 1.0
    _, hidden, _ = impl.forward(np.array([[0]]), p)
    assert_close(hidden, np.array([[[3.8411920, -3.1588080]]]), "x + gelu(normed x)", rtol=1e-6)


@pytest.mark.exercise("forward")
def test_the_feed_forward_reads_what_attention_has_added(impl):
    # x = (1, -1) and v turns it round and trebles it: x + a = (1 - 3S, -1 + 3S), near (-2, 2)
    # ff1 hands on feature 0 of the normed sum, near -1; ff2 adds gelu(-1) = -0.1588080 to feature 0
    p = silent([[1, -1]]) | {"v": -3 * np.eye(2), "o": np.eye(2)}
    p["ff1"][0, 0] = 1.0
    p["ff2"][0, 0] = 1.0
    _, hidden, _ = impl.forward(np.array([[0]]), p)
    assert_close(hidden, np.array([[[-2.1588, 2.0]]]), "hidden", atol=1e-4)


@pytest.mark.exercise("forward")
def test_each_head_scales_its_scores_by_its_own_width(impl):
    # a = (1, -1, 1, -1), b = (1, 1, -1, -1); both heads have width 2, q doubles head 1
    # at b, head 0: scores 0 for a, 2 S^2 for b, over sqrt(2): weight w0 = sigmoid(sqrt(2) S^2) on b
    #       head 1: twice that, w1 = sigmoid(2 sqrt(2) S^2)
    # head 0 mixes (S, -S) and (S, S) to (S, S (2 w0 - 1))
    # head 1 mixes (S, -S) and (-S, -S) to (S (1 - 2 w1), -S)
    p = silent([[1, -1, 1, -1], [1, 1, -1, -1]], heads=2)
    p |= {"q": np.diag([1.0, 1, 2, 2]), "k": np.eye(4), "v": np.eye(4), "o": np.eye(4)}
    _, hidden, _ = impl.forward(np.array([[0, 1]]), p)
    w0, w1 = (1 / (1 + math.exp(-scale * math.sqrt(2) * S * S)) for scale in (1, 2))
    added = [S, S * (2 * w0 - 1), S * (1 - 2 * w1), -S]
    assert_close(hidden[0, 1] - [1, 1, -1, -1], np.array(added), "what attention adds at token b")


@pytest.mark.exercise("forward")
def test_queries_ask_and_keys_answer(impl):
    # a = (1, -1, 1, -1), c = (1, -1, -1, 1); q reads feature 1, k and v read feature 2
    # at c: q = -S; keys S at a, -S at c: scores -S^2 and S^2, over sqrt(4)
    # weight on c = sigmoid(S^2), on a 1 - that; values S and -S: S (1 - 2 sigmoid(S^2))
    # with q and k exchanged both scores are equal and nothing is added
    # with all three transposed q writes feature 1, k and v feature 2: scores of 0, feature 2 gets S
    p = silent([[1, -1, 1, -1], [1, -1, -1, 1]])
    for name, feature in (("q", 1), ("k", 2), ("v", 2)):
        p[name] = np.zeros((4, 4))
        p[name][feature, 0] = 1.0
    p["o"] = np.eye(4)
    _, hidden, _ = impl.forward(np.array([[0, 1]]), p)
    weight = 1 / (1 + math.exp(-S * S))
    expected = np.array([1 + S * (1 - 2 * weight), -1, -1, 1])
    assert_close(hidden[0, 1], expected, "hidden at token c")


@pytest.mark.exercise("forward")
def test_a_chunk_sees_the_cached_tokens_and_its_own_past(impl):
    # three tokens cached with values (S, -S) each, then two tokens with (-S, S): equal scores, so
    # the first averages 3 S - S over 4 and the second 3 S - 2 S over 5
    p = running_mean_parameters()
    cached = {"k": np.zeros((1, 1, 3, 2)), "v": np.full((1, 1, 3, 2), S) * [1, -1]}
    _, hidden, _ = impl.forward(np.array([[1, 1]]), p, cached)
    first = np.array([-1 + S / 2, -1 + S / 5])
    assert_close(hidden, np.stack([first, -first], -1)[None], "hidden of the chunk")


@pytest.mark.exercise("forward")
def test_positions_go_on_after_the_cached_tokens(impl):
    # two tokens cached: the next ones stand at positions 2 and 3
    p = silent([[1, -1]]) | {"position": np.arange(8.0).reshape(4, 2)}
    cached = {"k": np.zeros((1, 1, 2, 2)), "v": np.zeros((1, 1, 2, 2))}
    _, hidden, _ = impl.forward(np.array([[0, 0]]), p, cached)
    assert_close(hidden, np.array([[[5.0, 4.0], [7.0, 6.0]]]), "token plus position 2 and 3")


@pytest.mark.exercise("forward")
def test_the_new_cache_holds_old_entries_first(impl):
    # k and v copy the normed token (S, -S); the cached entries are 7 and 8
    p = silent([[1, -1]]) | {"k": np.eye(2), "v": np.eye(2)}
    cached = {"k": np.full((1, 1, 1, 2), 7.0), "v": np.full((1, 1, 1, 2), 8.0)}
    _, _, cache = impl.forward(np.array([[0]]), p, cached)
    assert_close(cache["k"], np.array([[[[7.0, 7.0], [S, -S]]]]), "keys, old before new")
    assert_close(cache["v"], np.array([[[[8.0, 8.0], [S, -S]]]]), "values, old before new")


@pytest.mark.exercise("forward")
@pytest.mark.parametrize("chunks", [[7], [3, 2, 2], [1, 1, 5], [6, 1]], ids=str)
def test_chunks_give_what_one_pass_gives(impl, reference, chunks):
    tokens = np.array([[0, 3, 6, 2, 2, 5, 1], [4, 4, 0, 1, 3, 6, 2]])
    p = parameters()
    _, whole, _ = reference.forward(tokens, p)
    cache, start, hidden = None, 0, []
    for size in chunks:
        _, part, cache = impl.forward(tokens[:, start : start + size], p, cache)
        hidden.append(part)
        start += size
    assert_close(np.concatenate(hidden, axis=1), whole, "hidden of all chunks")


@pytest.mark.exercise("forward")
def test_hidden_only_skips_the_vocabulary_and_nothing_else(impl, reference):
    tokens = np.array([[0, 3, 6], [4, 4, 0]])
    logits, hidden, cache = impl.forward(tokens, parameters(), hidden_only=True)
    _, expected, expected_cache = reference.forward(tokens, parameters())
    assert_close(hidden, expected, "hidden with hidden_only")
    assert_close(cache["k"], expected_cache["k"], "the cache's keys with hidden_only")
    assert_close(cache["v"], expected_cache["v"], "the cache's values with hidden_only")
    assert logits is None, f"hidden_only=True gives None for the logits, got {type(logits)}"


@pytest.mark.exercise("forward")
def test_large_scores_do_not_overflow(impl):
    # at position 1 key b scores 2 S^2 10^6 / sqrt(2) and key a minus that: all weight on b, exactly
    p = silent([[1, -1], [-1, 1]]) | {"q": 1e3 * np.eye(2), "k": 1e3 * np.eye(2)}
    p |= {"v": np.eye(2), "o": np.eye(2)}
    _, hidden, _ = impl.forward(np.array([[0, 1]]), p)
    assert_close(hidden[0, 1], np.array([-1 - S, 1 + S]), "hidden where scores are 10^6")


@pytest.mark.exercise("forward")
def test_the_future_has_no_weight_however_high_it_scores(impl):
    # q = 10^3, k = -10^3: a token scores itself -2 S^2 10^6 / sqrt(2) = -1.4e6, the other +1.4e6
    # position 0 sees only itself, all weight on a = (1, -1): 1 + S
    # position 1 sees a at +1.4e6 and itself at -1.4e6, all weight on a: -1 + S
    # the second row is a, a: every score is -1.4e6, both positions 1 + S
    p = silent([[1, -1], [-1, 1]]) | {"q": 1e3 * np.eye(2), "k": -1e3 * np.eye(2)}
    p |= {"v": np.eye(2), "o": np.eye(2)}
    _, hidden, _ = impl.forward(np.array([[0, 1], [0, 0]]), p)
    first = np.array([[1 + S, -1 + S], [1 + S, 1 + S]])
    assert_close(hidden, np.stack([first, -first], -1), "hidden beside a future that scores")


@pytest.mark.exercise("forward")
def test_only_differences_of_scores_count(impl):
    # the query is (sqrt(2), 0), so each score is its key's first feature, sqrt(2) / sqrt(K) = 1
    # scores 1000, 1000 + log 3, 1000 + log 4: weights 1/8, 3/8, 4/8 of the values 16, 24, 8
    # 2 + 9 + 4 = 15, added to the first feature of (1, -1)
    p = silent([[1, -1]]) | {"o": np.eye(2)}
    for name, value in (("q", math.sqrt(2)), ("k", 1000 + math.log(4)), ("v", 8)):
        p[name][0, 0] = value / S  # what the normed first feature, S, turns into the value
    keys, values = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2))
    keys[0, 0, :, 0], values[0, 0, :, 0] = [1000, 1000 + math.log(3)], [16, 24]
    _, hidden, _ = impl.forward(np.array([[0]]), p, {"k": keys, "v": values})
    assert_close(hidden, np.array([[[16.0, -1.0]]]), "hidden with weights 1/8, 3/8, 4/8")


@pytest.mark.exercise("forward")
def test_nothing_that_came_in_is_changed(impl):
    p = parameters()
    tokens = np.array([[0, 3], [4, 6]])
    cache = {"k": np.ones((2, 3, 4, 4)), "v": np.ones((2, 3, 4, 4))}
    impl.forward(tokens, p, cache)
    assert_close(tokens, np.array([[0, 3], [4, 6]]), "tokens after the call")
    assert_close(cache["k"], np.ones((2, 3, 4, 4)), "the cache's keys after the call")
    assert_close(cache["v"], np.ones((2, 3, 4, 4)), "the cache's values after the call")
    for name, value in parameters().items():
        assert_close(p[name], value, f"p[{name!r}] after the call")


BAD_TOKENS = [
    pytest.param(np.array([[0.0, 1.0]]), id="floats"),
    pytest.param(np.array([[True, False]]), id="bools"),
    pytest.param(np.array([0, 1]), id="one axis"),
    pytest.param(np.zeros((1, 2, 1), dtype=int), id="three axes"),
    pytest.param(np.zeros((0, 2), dtype=int), id="no row"),
    pytest.param(np.zeros((1, 0), dtype=int), id="no token"),
    pytest.param(np.array([[0, -1]]), id="negative id"),
    pytest.param(np.array([[0, 7]]), id="id V"),
    pytest.param(np.zeros((1, 10), dtype=int), id="beyond the position table"),
]


@pytest.mark.exercise("forward")
@pytest.mark.parametrize("tokens", BAD_TOKENS)
def test_forward_refuses_bad_tokens(impl, tokens):
    refuses(ValueError, "tokens", impl.forward, tokens, parameters())


@pytest.mark.exercise("forward")
def test_forward_refuses_to_pass_the_position_table_with_a_cache(impl):
    # nine positions, eight cached: one token fits, two do not
    cache = {"k": np.zeros((1, 3, 8, 4)), "v": np.zeros((1, 3, 8, 4))}
    refuses(ValueError, "tokens", impl.forward, np.array([[0, 1]]), parameters(), cache)


BAD_CACHES = [
    pytest.param((2, 3, 4, 4), (2, 3, 4, 4), id="another batch"),
    pytest.param((1, 2, 4, 4), (1, 2, 4, 4), id="another number of heads"),
    pytest.param((1, 3, 4, 5), (1, 3, 4, 5), id="another width"),
    pytest.param((1, 3, 4, 4), (1, 3, 3, 4), id="fewer values than keys"),
    pytest.param((1, 4, 12), (1, 4, 12), id="heads not split"),
]


@pytest.mark.exercise("forward")
@pytest.mark.parametrize(("keys", "values"), BAD_CACHES)
def test_forward_refuses_a_cache_of_another_shape(impl, keys, values):
    cache = {"k": np.zeros(keys), "v": np.zeros(values)}
    refuses(ValueError, "cache", impl.forward, np.array([[0, 1]]), parameters(), cache)


@pytest.mark.exercise("forward")
def test_forward_refuses_a_cache_without_values(impl):
    cache = {"k": np.zeros((1, 3, 4, 4))}
    refuses(ValueError, "cache", impl.forward, np.array([[0, 1]]), parameters(), cache)


@pytest.mark.exercise("forward")
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    cached=st.integers(0, 3),
    heads=st.integers(1, 3),
    head_width=st.integers(1, 3),
)
def test_forward_agrees_with_reference(impl, reference, batch, length, cached, heads, head_width):
    p = parameters(heads * head_width, heads, vocab=5, max_length=7)
    tokens = np.random.default_rng(1).integers(0, 5, size=(batch, cached + length))
    cache = reference.forward(tokens[:, :cached], p)[2] if cached else None
    logits, hidden, new = impl.forward(tokens[:, cached:], p, cache)
    expected_logits, expected_hidden, expected = reference.forward(tokens[:, cached:], p, cache)
    assert_close(hidden, expected_hidden, "hidden")
    assert_close(logits, expected_logits, "logits")
    assert_close(new["k"], expected["k"], "keys")
    assert_close(new["v"], expected["v"], "values")


# mean_pool ---------------------------------------------------------------------------------

LENGTHS_2_AND_4 = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
LENGTHS_2_AND_4.setflags(write=False)  # one exercise's test must not change another's input


@pytest.mark.exercise("mean_pool")
def test_each_row_is_divided_by_its_own_length(impl):
    # row 0: (2 + 4) / 2 = 3 and (4 + 8) / 2 = 6; row 1: (1 + 2 + 3 + 4) / 4 = 2.5
    # all by 4: [1.5, 3]; with the padding: [51.5, 53]
    hidden = np.array([[[2, 4], [4, 8], [100, 100], [100, 100]], [[1, 1], [2, 2], [3, 3], [4, 4]]])
    pooled = impl.mean_pool(hidden.astype(float), LENGTHS_2_AND_4)
    assert_close(pooled, np.array([[3.0, 6.0], [2.5, 2.5]]), "the mean over each row's real tokens")


@pytest.mark.exercise("mean_pool")
@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, float], ids=lambda d: d.__name__)
def test_a_mask_of_any_dtype_will_do(impl, dtype):
    # (1 + 3) / 2 = 2 and 0; the second row is (5, 7) alone
    hidden = np.array([[[1.0, 0], [3, 0], [9, 9]], [[5, 7], [9, 9], [9, 9]]])
    mask = np.array([[1, 1, 0], [1, 0, 0]], dtype=dtype)
    assert_close(impl.mean_pool(hidden, mask), np.array([[2.0, 0], [5, 7]]), "the masked mean")


@pytest.mark.exercise("mean_pool")
def test_a_uint8_mask_counts_beyond_255(impl):
    # the mean of 0..299 is 299 / 2; 300 in 8 bits is 300 - 256 = 44, and 44850 / 44 is 1019.3
    hidden = np.arange(300.0)[None, :, None]
    pooled = impl.mean_pool(hidden, np.ones((1, 300), dtype=np.uint8))
    assert_close(pooled, np.array([[149.5]]), "the mean of 300 real tokens")


@pytest.mark.exercise("mean_pool")
def test_pooling_changes_neither_hidden_nor_mask(impl):
    hidden, mask = padded([2, 4], width=3)
    hidden_before, mask_before = hidden.copy(), mask.copy()
    impl.mean_pool(hidden, mask)
    assert_close(hidden, hidden_before, "hidden after the call")
    assert_close(mask, mask_before, "pooling_mask after the call")


BAD_MASKS = [
    pytest.param([[1, 1, 1], [1, 1, 1]], id="another length"),
    pytest.param([[1, 1, 0, 0]], id="another batch"),
    pytest.param([[1, 1]] * 4, id="batch and time exchanged"),
    pytest.param([1] * 8, id="one axis"),
    pytest.param([[[1]] * 4] * 2, id="three axes"),
    pytest.param([[1, 0.5, 0, 0], [1, 1, 1, 1]], id="0.5"),
    pytest.param([[2, 2, 0, 0], [1, 1, 1, 1]], id="2"),
    pytest.param([[1, 1, -1, 0], [1, 1, 1, 1]], id="-1"),
    pytest.param([[0, 0, 0, 0], [1, 1, 1, 1]], id="an empty row"),
    pytest.param([[0, 0, 1, 1], [1, 1, 1, 1]], id="left padding"),
    pytest.param([[1, 0, 1, 0], [1, 1, 1, 1]], id="a hole"),
]


@pytest.mark.exercise("mean_pool")
@pytest.mark.parametrize("mask", BAD_MASKS)
def test_mean_pool_refuses_a_bad_mask(impl, mask):
    hidden, _ = padded([2, 4], width=3)
    refuses(ValueError, "pooling_mask", impl.mean_pool, hidden, np.array(mask))


@pytest.mark.exercise("mean_pool")
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    width=st.integers(1, 3),
    extra=st.integers(0, 3),
)
def test_mean_pool_agrees_with_reference(impl, reference, lengths, width, extra):
    hidden, mask = padded(lengths, width, extra)
    assert_close(impl.mean_pool(hidden, mask), reference.mean_pool(hidden, mask), "the masked mean")


# last_valid_pool ---------------------------------------------------------------------------


@pytest.mark.exercise("last_valid_pool")
def test_each_row_gives_its_last_real_token(impl):
    # lengths 2 and 4 of 5 columns: the entries at 1 and 3; the last column would give 30 and 100
    hidden = np.array([[10.0, 40, 20, 50, 30], [60, 90, 80, 70, 100]])[..., None]
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    pooled = impl.last_valid_pool(hidden, mask)
    assert_close(pooled, np.array([[40.0], [70.0]]), "hidden at the last real token")


@pytest.mark.exercise("last_valid_pool")
@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, float], ids=lambda d: d.__name__)
def test_the_last_real_token_is_found_in_a_mask_of_any_dtype(impl, dtype):
    # lengths 1 and 3 of 3 columns: the entries at 0 and 2; a full row has no column after its last
    hidden = np.array([[[7.0, 3], [8, 1], [9, 2]], [[6, 4], [2, 9], [5, 8]]])
    mask = np.array([[1, 0, 0], [1, 1, 1]], dtype=dtype)
    pooled = impl.last_valid_pool(hidden, mask)
    assert_close(pooled, np.array([[7.0, 3], [5, 8]]), "hidden at the last real token")


@pytest.mark.exercise("last_valid_pool")
def test_the_last_of_300_tokens_is_found_in_a_uint8_mask(impl):
    # 301 columns, the last one padding: the last real token is 299; 300 in 8 bits is 44
    hidden = np.arange(301.0)[None, :, None]
    mask = np.array([[1] * 300 + [0]], dtype=np.uint8)
    assert_close(impl.last_valid_pool(hidden, mask), np.array([[299.0]]), "token 299 of 0..299")


@pytest.mark.exercise("last_valid_pool")
def test_last_valid_pool_changes_neither_hidden_nor_mask(impl):
    hidden, mask = padded([2, 4], width=3)
    hidden_before, mask_before = hidden.copy(), mask.copy()
    impl.last_valid_pool(hidden, mask)
    assert_close(hidden, hidden_before, "hidden after the call")
    assert_close(mask, mask_before, "pooling_mask after the call")


@pytest.mark.exercise("last_valid_pool")
@pytest.mark.parametrize("mask", BAD_MASKS)
def test_last_valid_pool_refuses_a_bad_mask(impl, mask):
    hidden, _ = padded([2, 4], width=3)
    refuses(ValueError, "pooling_mask", impl.last_valid_pool, hidden, np.array(mask))


@pytest.mark.exercise("last_valid_pool")
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    width=st.integers(1, 3),
    extra=st.integers(0, 3),
)
def test_last_valid_pool_agrees_with_reference(impl, reference, lengths, width, extra):
    hidden, mask = padded(lengths, width, extra)
    expected = reference.last_valid_pool(hidden, mask)
    assert_close(impl.last_valid_pool(hidden, mask), expected, "hidden at the last real token")


# classify ----------------------------------------------------------------------------------

HEAD = np.array([[1.0, 0.0], [1.0, 2.0]])
BIAS = np.array([0.0, 0.5])


@pytest.mark.exercise("classify")
def test_the_head_reads_the_mean_hidden_state(impl):
    # hidden is the token's own row
    # row 0: (9, 2), (1, 3), (5, 7) average to (5, 4), times the head (5 + 4, 2 * 4) = (9, 8)
    # row 1: (5, 7), (1, 3) average to (3, 5), times the head (8, 10); then the bias (0, 0.5)
    p = silent([[1, 3], [5, 7], [9, 2], [100, -50]])
    tokens, mask = np.array([[2, 0, 1, 3], [1, 0, 3, 3]]), np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    logits = impl.classify(tokens, p, mask, HEAD, BIAS)
    assert_close(logits, np.array([[9.0, 8.5], [8.0, 10.5]]), "class logits")


@pytest.mark.exercise("classify")
def test_other_ids_under_the_mask_change_nothing(impl, reference):
    p = parameters()
    head, bias = np.random.default_rng(3).normal(size=(12, 5)), np.arange(5.0)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    expected = reference.classify(np.array([[3, 1, 0, 0], [2, 6, 0, 5]]), p, mask, head, bias)
    logits = impl.classify(np.array([[3, 1, 6, 2], [2, 6, 0, 5]]), p, mask, head, bias)
    assert_close(logits, expected, "class logits with other ids in the padding")


@pytest.mark.exercise("classify")
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_more_right_padding_changes_nothing(impl, reference, extra):
    p = parameters()
    head, bias = np.random.default_rng(3).normal(size=(12, 5)), np.arange(5.0)
    expected = reference.classify(np.array([[3, 1, 6]]), p, np.ones((1, 3)), head, bias)
    tokens, mask = np.array([[3, 1, 6] + [4] * extra]), np.array([[1] * 3 + [0] * extra])
    assert_close(impl.classify(tokens, p, mask, head, bias), expected, "class logits")


@pytest.mark.exercise("classify")
def test_classify_refuses_left_padding(impl):
    tokens, mask = np.array([[0, 3, 1]]), np.array([[0, 1, 1]])
    head, bias = np.random.default_rng(3).normal(size=(12, 2)), np.array([0.5, -0.5])
    refuses(ValueError, "pooling_mask", impl.classify, tokens, parameters(), mask, head, bias)


@pytest.mark.exercise("classify")
@pytest.mark.parametrize("mask", BAD_MASKS)
def test_classify_refuses_a_bad_mask(impl, mask):
    tokens, p = np.array([[3, 1, 6, 2], [2, 6, 0, 5]]), parameters()
    head, bias = np.random.default_rng(3).normal(size=(12, 2)), np.array([0.5, -0.5])
    refuses(ValueError, "pooling_mask", impl.classify, tokens, p, np.array(mask), head, bias)


@pytest.mark.exercise("classify")
@pytest.mark.parametrize("padding", [-100, 7], ids=["-100", "id V"])
def test_classify_refuses_an_unknown_id_under_the_mask(impl, padding):
    tokens, mask = np.array([[3, 1, padding]]), np.array([[1, 1, 0]])
    head, bias = np.random.default_rng(3).normal(size=(12, 2)), np.array([0.5, -0.5])
    refuses(ValueError, "tokens", impl.classify, tokens, parameters(), mask, head, bias)


@pytest.mark.exercise("classify")
def test_classify_refuses_a_text_longer_than_the_position_table(impl):
    # ten tokens, nine positions
    tokens, mask = np.array([[3, 1, 6, 2, 2, 6, 0, 5, 4, 1]]), np.ones((1, 10))
    head, bias = np.random.default_rng(3).normal(size=(12, 2)), np.array([0.5, -0.5])
    refuses(ValueError, "tokens", impl.classify, tokens, parameters(), mask, head, bias)


@pytest.mark.exercise("classify")
def test_classify_changes_none_of_its_arguments(impl):
    p, mask = parameters(), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    tokens = np.array([[3, 1, 6, 2], [2, 6, 0, 5]])
    head, bias = np.ones((12, 2)), np.array([0.5, -0.5])
    impl.classify(tokens, p, mask, head, bias)
    assert_close(tokens, np.array([[3, 1, 6, 2], [2, 6, 0, 5]]), "tokens after the call")
    assert_close(mask, np.array([[1, 1, 0, 0], [1, 1, 1, 1]]), "pooling_mask after the call")
    assert_close(head, np.ones((12, 2)), "head after the call")
    assert_close(bias, np.array([0.5, -0.5]), "bias after the call")
    for name, value in parameters().items():
        assert_close(p[name], value, f"p[{name!r}] after the call")


@pytest.mark.exercise("classify")
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    extra=st.integers(0, 2),
    classes=st.integers(1, 3),
)
def test_classify_agrees_with_reference(impl, reference, lengths, extra, classes):
    rng = np.random.default_rng(2)
    hidden, mask = padded(lengths, 1, extra)
    tokens = rng.integers(0, 7, size=mask.shape)
    head, bias = rng.normal(size=(12, classes)), rng.normal(size=classes)
    logits = impl.classify(tokens, parameters(), mask, head, bias)
    expected = reference.classify(tokens, parameters(), mask, head, bias)
    assert_close(logits, expected, "class logits")


# classification_loss -----------------------------------------------------------------------


@pytest.mark.exercise("classification_loss")
def test_one_row_costs_its_negative_log_probability(impl):
    # ln 2, ln 3, ln 5 are probabilities 0.2, 0.3, 0.5: label 2 costs log 2
    # ln 1, ln 6, ln 1 are 1/8, 6/8, 1/8: label 0 costs log 8; the mean is log 16 / 2 = log 4
    # every row with every label: log 2, log 5, log 8, log 8, a mean of 1.6154
    logits = np.log([[2.0, 3.0, 5.0], [1.0, 6.0, 1.0]])
    loss = impl.classification_loss(logits, np.array([2, 0]))
    assert_close(loss, math.log(4), "-log softmax(logits)[label]")


@pytest.mark.exercise("classification_loss")
def test_the_loss_is_the_mean_over_rows(impl):
    # equal logits cost log 3 with any label; ln 1, ln 2, ln 5 with label 1 costs log(8 / 2)
    logits = np.array([[0.0, 0.0, 0.0], [math.log(1), math.log(2), math.log(5)]])
    loss = impl.classification_loss(logits, np.array([2, 1]))
    assert_close(loss, (math.log(3) + math.log(4)) / 2, "the mean of log 3 and log 4")


@pytest.mark.exercise("classification_loss")
def test_classification_loss_gives_a_float(impl):
    # equal logits cost log 3
    loss = impl.classification_loss(np.zeros((2, 3)), np.array([2, 1]))
    assert_close(loss, math.log(3), "the loss of equal logits")
    assert isinstance(loss, float), f"the loss is a float, got {type(loss).__name__}"


@pytest.mark.exercise("classification_loss")
def test_classification_loss_changes_neither_logits_nor_labels(impl):
    logits, labels = np.array([[1.0, 3.0, 2.0], [4.0, -1.0, 0.0]]), np.array([2, 0])
    impl.classification_loss(logits, labels)
    assert_close(logits, np.array([[1.0, 3.0, 2.0], [4.0, -1.0, 0.0]]), "logits after the call")
    assert_close(labels, np.array([2, 0]), "labels after the call")


@pytest.mark.exercise("classification_loss")
def test_logits_of_a_thousand_cost_what_they_should(impl):
    # row 0: 2000 below the best; row 1: the best of three, free; row 2: equal at -1000, log 3
    logits = np.array([[1000.0, -1000.0, 0.0], [1000.0, 0.0, 0.0], [-1000.0] * 3])
    loss = impl.classification_loss(logits, np.array([1, 0, 2]))
    assert_close(loss, (2000 + 0 + math.log(3)) / 3, "the loss at +-1000", rtol=1e-6)


BAD_LABELS = [
    pytest.param(np.array([0, -1]), id="negative"),
    pytest.param(np.array([0, -100]), id="-100"),
    pytest.param(np.array([0, 3]), id="label C"),
    pytest.param(np.array([0.0, 1.0]), id="floats"),
    pytest.param(np.array([True, False]), id="bools"),
    pytest.param(np.array([[0], [1]]), id="two axes"),
    pytest.param(np.array([0]), id="fewer labels than rows"),
    pytest.param(np.array([0, 1, 2]), id="more labels than rows"),
]


@pytest.mark.exercise("classification_loss")
@pytest.mark.parametrize("labels", BAD_LABELS)
def test_classification_loss_refuses_bad_labels(impl, labels):
    refuses(ValueError, "labels", impl.classification_loss, np.zeros((2, 3)), labels)


@pytest.mark.exercise("classification_loss")
def test_classification_loss_refuses_logits_without_classes(impl):
    refuses(ValueError, "logits", impl.classification_loss, np.zeros(2), np.array([0, 1]))


@pytest.mark.exercise("classification_loss")
def test_classification_loss_refuses_logits_of_three_axes(impl):
    refuses(ValueError, "logits", impl.classification_loss, np.zeros((2, 1, 3)), np.array([0, 1]))


@pytest.mark.exercise("classification_loss")
def test_classification_loss_refuses_an_empty_batch(impl):
    labels = np.zeros(0, dtype=int)
    refuses(ValueError, "logits", impl.classification_loss, np.zeros((0, 3)), labels)


@pytest.mark.exercise("classification_loss")
@given(
    rows=st.lists(
        st.tuples(st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 1)), min_size=1, max_size=4
    )
)
def test_classification_loss_agrees_with_reference(impl, reference, rows):
    logits, labels = (
        np.array([row[:2] for row in rows], dtype=float),
        np.array([r[2] for r in rows]),
    )
    expected = reference.classification_loss(logits, labels)
    assert_close(impl.classification_loss(logits, labels), expected, "the mean loss")


# binary_loss -------------------------------------------------------------------------------


@pytest.mark.exercise("binary_loss")
@pytest.mark.parametrize(("label", "margin"), [(1, 2.0), (0, -2.0)], ids=["label 1", "label 0"])
def test_one_logit_costs_the_softplus_of_its_margin(impl, label, margin):
    # z = 2: label 1 costs log(1 + e^-2) = 0.1269280, label 0 costs log(1 + e^2) = 2.1269280
    loss = impl.binary_loss(np.array([2.0]), np.array([label]))
    assert_close(loss, math.log1p(math.exp(-margin)), "log(1 + e^-margin)")


COLUMNS = [
    pytest.param((2,), (2,), id="B and B"),
    pytest.param((2, 1), (2,), id="B,1 and B"),
    pytest.param((2,), (2, 1), id="B and B,1"),
    pytest.param((2, 1), (2, 1), id="B,1 and B,1"),
]


@pytest.mark.exercise("binary_loss")
@pytest.mark.parametrize(("logits_shape", "labels_shape"), COLUMNS)
def test_each_logit_meets_its_own_label(impl, logits_shape, labels_shape):
    # 2 with label 1 and -1 with label 0: log(1 + e^-2) and log(1 + e^-1)
    # every logit with every label: half of each crossed over, 0.9701
    logits = np.array([2.0, -1.0]).reshape(logits_shape)
    loss = impl.binary_loss(logits, np.array([1, 0]).reshape(labels_shape))
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert_close(loss, expected, "the mean over pairs")


@pytest.mark.exercise("binary_loss")
@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, float], ids=lambda d: d.__name__)
def test_labels_of_any_dtype_will_do(impl, dtype):
    # 2 with label 1 and -1 with label 0: log(1 + e^-2) and log(1 + e^-1)
    loss = impl.binary_loss(np.array([2.0, -1.0]), np.array([1, 0], dtype=dtype))
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert_close(loss, expected, "the mean over pairs")


@pytest.mark.exercise("binary_loss")
def test_binary_loss_gives_a_float(impl):
    # a logit of 0 costs log 2 with either label
    loss = impl.binary_loss(np.zeros((2, 1)), np.array([1, 0]))
    assert_close(loss, math.log(2), "the loss of zero logits")
    assert isinstance(loss, float), f"the loss is a float, got {type(loss).__name__}"


@pytest.mark.exercise("binary_loss")
def test_binary_loss_changes_neither_logits_nor_labels(impl):
    logits, labels = np.array([2.0, -1.0]), np.array([1, 0])
    impl.binary_loss(logits, labels)
    assert_close(logits, np.array([2.0, -1.0]), "logits after the call")
    assert_close(labels, np.array([1, 0]), "labels after the call")


@pytest.mark.exercise("binary_loss")
def test_binary_logits_of_a_thousand_cost_what_they_should(impl):
    # right by a thousand: free; wrong by a thousand: a thousand
    loss = impl.binary_loss(np.array([1000.0, -1000.0, 1000.0, -1000.0]), np.array([1, 0, 0, 1]))
    assert_close(loss, 500.0, "the loss at +-1000", rtol=1e-6)


BAD_BINARY = [
    pytest.param([0.0, 0.0], [0, 2], "labels", id="label 2"),
    pytest.param([0.0, 0.0], [1, -1], "labels", id="label -1"),
    pytest.param([0.0, 0.0], [0.5, 1], "labels", id="soft label"),
    pytest.param([0.0, 0.0], [1], "labels", id="fewer labels than logits"),
    pytest.param([0.0], [0, 1], "labels", id="more labels than logits"),
    pytest.param([0.0, 0.0], [[0, 1]], "labels", id="labels in a row"),
    pytest.param([0.0, 0.0], [[1, 0], [0, 1]], "labels", id="two labels a row"),
    pytest.param([0.0, 0.0], [[[0]], [[1]]], "labels", id="labels of three axes"),
    pytest.param([0.0], 1, "labels", id="a label without an axis"),
    pytest.param([[0.0, 0.0], [0.0, 0.0]], [0, 1], "logits", id="two logits a row"),
    pytest.param([[0.0, 0.0]], [0, 1], "logits", id="logits in a row"),
    pytest.param([[[0.0]], [[0.0]]], [0, 1], "logits", id="logits of three axes"),
    pytest.param(0.0, [1], "logits", id="a logit without an axis"),
    pytest.param([], [], "logits", id="an empty batch"),
]


@pytest.mark.exercise("binary_loss")
@pytest.mark.parametrize(("logits", "labels", "argument"), BAD_BINARY)
def test_binary_loss_refuses(impl, logits, labels, argument):
    refuses(ValueError, argument, impl.binary_loss, np.array(logits), np.array(labels))


@pytest.mark.exercise("binary_loss")
@given(
    pairs=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=1, max_size=4),
    column=st.booleans(),
)
def test_binary_loss_agrees_with_reference(impl, reference, pairs, column):
    logits, labels = np.array(pairs, dtype=float).T
    logits = logits[:, None] if column else logits
    expected = reference.binary_loss(logits, labels)
    assert_close(impl.binary_loss(logits, labels), expected, "the mean loss")


# All together ------------------------------------------------------------------------------


@pytest.mark.exercise(
    "forward",
    "mean_pool",
    "last_valid_pool",
    "classify",
    "classification_loss",
    "binary_loss",
)
def test_the_file_as_written_agrees_with_reference(impl, reference):
    p, mask = parameters(), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    tokens, labels = np.array([[3, 1, 6, 2], [2, 6, 0, 5]]), np.array([0, 1])
    head, bias = np.random.default_rng(3).normal(size=(12, 2)), np.array([0.5, -0.5])
    losses = []
    for module in (impl, reference):
        logits = module.classify(tokens, p, mask, head, bias)
        _, hidden, _ = module.forward(tokens, p)
        last = module.last_valid_pool(hidden, mask) @ head
        loss = module.classification_loss(logits, labels)
        losses.append([loss, module.binary_loss(last[:, 1] - last[:, 0], labels)])
    assert_close(np.array(losses[0]), np.array(losses[1]), "both losses, end to end")
