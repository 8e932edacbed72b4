"""Chapter 1: embeddings (NumPy)."""

import numpy as np


def _sequences(tokens, vocab_size):
    """The ids as lists of Python integers."""
    if not isinstance(tokens, np.ndarray) or len(tokens.shape) != 2:
        raise ValueError("tokens: wanted one row of ids per sequence")
    rows = tokens.tolist()
    if not rows or not rows[0]:
        raise ValueError("tokens: nothing to look up")
    for row in rows:
        for token in row:
            if type(token) is not int:
                raise ValueError(f"tokens: {token} is no whole number")
            if not 0 <= token < vocab_size:
                raise ValueError(f"tokens: {token} is not one of the {vocab_size} ids")
    return rows


def embed(tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Right, in plain loops."""
    batch = []
    for row in _sequences(tokens, table.shape[0]):
        batch.append(np.stack([table[token] for token in row]))
    return np.stack(batch)


def one_hot(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Right, in plain loops."""
    rows = _sequences(tokens, vocab_size)
    out = np.zeros((len(rows), len(rows[0]), vocab_size))
    for b, row in enumerate(rows):
        for t, token in enumerate(row):
            out[b, t, token] = 1
    return out


def add_positions(x: np.ndarray, positions: np.ndarray, offset: int = 0) -> np.ndarray:
    """Right, in plain loops."""
    B, T, D = x.shape
    if len(positions.shape) != 2 or positions.shape[1] != D:
        raise ValueError(f"positions: wanted {D} features in each row")
    out = np.empty_like(x)
    for t in range(T):
        place = offset + t
        if place not in range(positions.shape[0]):
            raise ValueError(f"offset: place {place} has no row")
        for b in range(B):
            for d in range(D):
                out[b, t, d] = x[b, t, d] + positions[place, d]
    return out


def embedding_backward(tokens: np.ndarray, grad: np.ndarray, vocab_size: int) -> np.ndarray:
    """Right, in plain loops."""
    rows = _sequences(tokens, vocab_size)
    if len(grad.shape) != 3 or grad.shape[0] != len(rows) or grad.shape[1] != len(rows[0]):
        raise ValueError("grad: wanted one vector per token")
    out = np.zeros((vocab_size, grad.shape[2]), dtype=grad.dtype)
    for b, row in enumerate(rows):
        for t, token in enumerate(row):
            out[token] += grad[b, t]
    return out
