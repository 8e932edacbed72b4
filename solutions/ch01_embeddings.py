"""Chapter 1: embeddings (NumPy).

Token ids become vectors, each place in the sequence adds its own, and the gradient finds its way
back to the rows of the table.

Letters: B batch, T tokens, D width, V vocabulary, C rows of the position table (the longest
context).

Sources: Bengio et al. 2003 (a table of word vectors, learned); Gehring et al. 2017,
arXiv:1705.03122 (learned positions, added); Radford et al. 2019 (GPT-2: both tables, no scaling).
"""

import numpy as np


def check_tokens(tokens: np.ndarray, vocab_size: int) -> None:
    """Given: refuse an array that is no batch of token ids.

    Raises:
        ValueError: naming `tokens`: not integers (floats, bools), not of shape (B, T), without a
            row or a column, or with an id outside 0..V-1.
    """
    if tokens.dtype.kind not in "iu":  # signed or unsigned integers; bools are "b"
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens must have shape (B, T), both at least 1, got {tokens.shape}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(
            f"tokens must be in 0..{vocab_size - 1}, got {tokens.min()}..{tokens.max()}; "
            "do the tokenizer and the table belong together?"
        )


def embed(tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look up the row of each token.

    out[b, t] = table[tokens[b, t]]

    The rows come as they are: nothing is scaled, and no id is special.

    Args:
        tokens: (B, T) integers of any width, in 0..V-1.
        table:  (V, D) float, row v is the vector of token v.

    Returns:
        (B, T, D) in the table's dtype. Neither argument is changed.

    Raises:
        ValueError: naming `tokens`; `check_tokens` checks them.

    Example (the cat sat, cat the cat):
        >>> table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> embed(np.array([[0, 1, 2], [1, 0, 1]]), table).tolist()
        [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]]

    Always true:
        * equals one_hot(tokens, V) @ table, as long as the table is finite;
        * a token has the same vector wherever it stands.
    """
    # --- solution ---
    check_tokens(tokens, len(table))
    return table[tokens]  # (B, T, D)


def one_hot(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Write each token as a vector of zeros with a single one.

    out[b, t, v] = 1 if tokens[b, t] == v else 0

    Args:
        tokens:     (B, T) integers of any width, in 0..V-1.
        vocab_size: V, however few of the ids occur.

    Returns:
        (B, T, V) float64, a new array each time. `tokens` is not changed.

    Raises:
        ValueError: naming `tokens`; `check_tokens` checks them.

    Example (sat the):
        >>> one_hot(np.array([[2, 0]]), 3).tolist()
        [[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]

    Always true:
        * each vector sums to 1, and its argmax is the token.
    """
    # --- solution ---
    check_tokens(tokens, vocab_size)
    return (tokens[..., None] == np.arange(vocab_size)).astype(np.float64)  # (B, T, V)


def add_positions(x: np.ndarray, positions: np.ndarray, offset: int = 0) -> np.ndarray:
    """Add to each token the row of its place in the sequence.

    out[b, t] = x[b, t] + positions[offset + t]

    Args:
        x:         (B, T, D) float.
        positions: (C, D) float, row c belongs to place c; the same for every row of the batch.
        offset:    the place of the first token, for instance how many tokens came before.

    Returns:
        (B, T, D) in x's dtype, also where that of `positions` is wider. Neither argument is
        changed.

    Raises:
        ValueError: naming `positions` (not of shape (C, D)) or `offset` (below 0, or
            offset + T > C: there is no row for the last token, and none is used twice).

    Example (places 1 and 2 of 3):
        >>> x = np.array([[[1.0, 2.0], [3.0, 4.0]]])
        >>> add_positions(x, np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]), 1).tolist()
        [[[31.0, 42.0], [53.0, 64.0]]]

    Always true:
        * what is added depends on the place only, neither on the token nor on the batch row;
        * two parts of a sequence, the second with the first one's length as offset, give what
          the whole gives.
    """
    # --- solution ---
    _, T, D = x.shape
    C = len(positions)
    if positions.shape != (C, D):
        raise ValueError(f"positions must have shape (C, D) = ({C}, {D}), got {positions.shape}")
    if offset < 0 or offset + T > C:
        raise ValueError(
            f"offset {offset} puts {T} tokens at places {offset}..{offset + T - 1}, "
            f"but positions has 0..{C - 1}; shorten the context"
        )
    return x + positions[offset : offset + T].astype(x.dtype)  # (B, T, D) + (T, D)


def embedding_backward(tokens: np.ndarray, grad: np.ndarray, vocab_size: int) -> np.ndarray:
    """Give the gradient of the table from the gradient of what `embed` looked up.

    out[v] = sum of grad[b, t] over all (b, t) with tokens[b, t] == v

    Args:
        tokens:     (B, T) integers of any width, in 0..V-1, as they went into `embed`.
        grad:       (B, T, D) float, the loss's gradient with respect to embed's result.
        vocab_size: V, however few of the ids occur.

    Returns:
        (V, D) in grad's dtype. The row of an absent token is exactly 0: the loss does not depend
        on it. Neither argument is changed, and nothing is kept between calls.

    Raises:
        ValueError: naming `tokens`, which are checked first, by `check_tokens`; or naming `grad`:
            not of shape (B, T, D) with the B and T of tokens.

    Example (the sat the; `the` occurs twice):
        >>> embedding_backward(np.array([[0, 2, 0]]), np.ones((1, 3, 2)), 3).tolist()
        [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]

    Always true:
        * equals the sum over b of one_hot(tokens, V)[b]^T @ grad[b];
        * the rows' sum is grad's sum over B and T.
    """
    # --- solution ---
    check_tokens(tokens, vocab_size)
    if grad.shape[:-1] != tokens.shape:
        raise ValueError(f"grad must have shape {tokens.shape} and D, got {grad.shape}")
    grad_table = np.zeros((vocab_size, grad.shape[-1]), grad.dtype)  # (V, D)
    np.add.at(grad_table, tokens, grad)  # unlike +=, adds once for each time an id occurs
    return grad_table
