"""Chapter 1: embeddings (NumPy)."""

import numpy as np


def _is_batch_of_ids(tokens, vocab_size):
    """Whether these are integers below vocab_size on two axes."""
    integers = np.issubdtype(tokens.dtype, np.integer)
    return (
        integers
        and tokens.ndim == 2
        and 0 not in tokens.shape
        and np.all((tokens >= 0) & (tokens < vocab_size))
    )


def embed(tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Right, as a product with one-hot vectors."""
    product = np.einsum("btv,vd->btd", one_hot(tokens, table.shape[0]), table)
    return product.astype(table.dtype)


def one_hot(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Right, as rows of the identity."""
    if not _is_batch_of_ids(tokens, vocab_size):
        raise ValueError(f"tokens must be a batch of ids below {vocab_size}")
    return np.take(np.identity(vocab_size), tokens, axis=0)


def add_positions(x: np.ndarray, positions: np.ndarray, offset: int = 0) -> np.ndarray:
    """Right, as a copy that is added to."""
    if positions.ndim != 2 or positions.shape[-1] != x.shape[-1]:
        raise ValueError(f"positions have shape {positions.shape}, x has width {x.shape[-1]}")
    places = offset + np.arange(x.shape[1])
    if not np.isin(places, np.arange(len(positions))).all():
        raise ValueError(f"places from offset {offset} on are not all in the table")
    out = x.copy()
    out += np.take(positions, places, axis=0)[None]
    return out


def embedding_backward(tokens: np.ndarray, grad: np.ndarray, vocab_size: int) -> np.ndarray:
    """Right, as a product with one-hot vectors."""
    if not _is_batch_of_ids(tokens, vocab_size):
        raise ValueError(f"tokens must be a batch of ids below {vocab_size}")
    if grad.ndim != 3 or grad.shape[:2] != tokens.shape:
        raise ValueError(f"grad has shape {grad.shape}, tokens {tokens.shape}")
    return np.einsum("btv,btd->vd", one_hot(tokens, vocab_size), grad).astype(grad.dtype)
