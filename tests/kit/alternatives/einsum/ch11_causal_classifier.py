"""Chapter 11: a causal decoder as a classifier (NumPy, float64).

One pre-norm attention layer with a key/value cache, pooling that knows about padding, and a
linear head on top.

Letters: B batch, T tokens of this call, S cached tokens, D width, H heads, K = D // H width per
head, V vocabulary, C classes. A pooling mask is True at real tokens.

Sources: Radford et al. 2019 (GPT-2: pre-norm decoder, tanh GELU); Xiong et al. 2020,
arXiv:2002.04745 (pre-norm); Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU).
"""

import numpy as np


def initialize(vocab: int, width: int, heads: int, max_length: int, seed: int = 0) -> dict:
    """Given: the parameters, normal with standard deviation width**-0.5."""
    sizes = {"vocab": vocab, "width": width, "heads": heads, "max_length": max_length}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if width % heads:
        raise ValueError(f"heads must divide width, got heads={heads}, width={width}")
    shapes = {"token": (vocab, width), "position": (max_length, width)}
    shapes |= dict.fromkeys("qkvo", (width, width))
    shapes |= {"ff1": (width, 4 * width), "ff2": (4 * width, width)}
    rng = np.random.default_rng(seed)
    p = {name: rng.normal(0.0, width**-0.5, shape) for name, shape in shapes.items()}
    return p | {"heads": heads}


def normalize(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """Given: zero mean and unit variance over the last axis; no scale, no shift."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def gelu(x: np.ndarray) -> np.ndarray:
    """Given: GELU, tanh approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def cached_length(tokens: np.ndarray, p: dict, cache: dict | None) -> int:
    """Given: S, how many tokens the cache holds, after checking forward's arguments."""
    if np.ndim(tokens) != 2 or not np.issubdtype(np.asarray(tokens).dtype, np.integer):
        raise ValueError(f"tokens must be integers of shape (B, T), got shape {np.shape(tokens)}")
    B, T = tokens.shape
    V, D = p["token"].shape
    if B == 0 or T == 0:
        raise ValueError(f"tokens must have at least one row and one column, got ({B}, {T})")
    if tokens.min() < 0 or tokens.max() >= V:
        raise ValueError(f"tokens must be in 0..{V - 1}, got {tokens.min()}..{tokens.max()}")
    S = 0
    if cache is not None:
        H = p["heads"]
        shapes = [np.shape(cache.get(name)) for name in "kv"]
        S = shapes[0][2] if len(shapes[0]) == 4 else 0
        if shapes != [(B, H, S, D // H)] * 2:
            raise ValueError(
                f"cache must hold k and v of shape ({B}, {H}, S, {D // H}), got {shapes}"
            )
    if len(p["position"]) < S + T:
        raise ValueError(
            f"tokens reach position {S + T - 1}, "
            f"the position table ends at {len(p['position']) - 1}"
        )
    return S


def valid_lengths(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Given: the number of real tokens in each row, (B,) int, after checking the mask."""
    mask = np.asarray(pooling_mask)
    if mask.shape != hidden.shape[:2]:
        raise ValueError(f"pooling_mask must have shape {hidden.shape[:2]}, got {mask.shape}")
    if not np.isin(mask, (0, 1)).all():
        raise ValueError("pooling_mask must be bool, or all 0 and 1")
    lengths = mask.astype(bool).sum(axis=1)
    if (lengths == 0).any():
        row = int(np.argmin(lengths))
        raise ValueError(
            f"pooling_mask row {row} has no valid position; every row needs at least one"
        )
    if (mask[:, 1:] > mask[:, :-1]).any():
        row = int(np.argmax((mask[:, 1:] > mask[:, :-1]).any(axis=1)))
        raise ValueError(
            f"pooling_mask row {row} has padding before a real token; pad on the right"
        )
    return lengths


def forward(
    tokens: np.ndarray, p: dict, cache: dict | None = None, hidden_only: bool = False
) -> tuple[np.ndarray | None, np.ndarray, dict]:
    """Right, with einsum and masks."""
    S = cached_length(tokens, p, cache)
    T, (V, D), H = tokens.shape[1], p["token"].shape, p["heads"]
    K = D // H
    one_hot = (tokens[..., None] == np.arange(V)).astype(float)
    x = np.einsum("btv,vd->btd", one_hot, p["token"]) + p["position"][None, S : S + T]
    n = normalize(x)
    q = np.einsum("btd,dhk->bhtk", n * K**-0.5, p["q"].reshape(D, H, K))
    k, v = (np.einsum("btd,dhk->bhtk", n, p[name].reshape(D, H, K)) for name in "kv")
    if cache is not None:
        k = np.concatenate([cache["k"], k], axis=2)
        v = np.concatenate([cache["v"], v], axis=2)
    hidden_keys = np.triu(np.ones((T, S + T)), k=S + 1)
    scores = np.einsum("bhqk,bhsk->bhqs", q, k) + (-1e9 * hidden_keys)[None, None]
    log_total = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - log_total)
    x = x + np.einsum("bhqs,bhsk,hkd->bqd", weights, v, p["o"].reshape(H, K, D))
    inner = gelu(np.einsum("btd,df->btf", normalize(x), p["ff1"]))
    hidden = x + np.einsum("btf,fd->btd", inner, p["ff2"])
    logits = None
    if not hidden_only:
        logits = np.einsum("btd,vd->btv", normalize(hidden), p["token"])
    return logits, hidden, {"k": k, "v": v}


def mean_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Right, with einsum and masks."""
    valid_lengths(hidden, pooling_mask)
    weights = np.asarray(pooling_mask, dtype=float)
    total = np.einsum("btd,bt->bd", hidden, weights)
    return total / np.add.reduce(weights, axis=1)[:, None]


def last_valid_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Right, with einsum and masks."""
    index = valid_lengths(hidden, pooling_mask)[:, None, None] - 1
    return np.take_along_axis(hidden, index, axis=1).squeeze(1)


def classify(
    tokens: np.ndarray, p: dict, pooling_mask: np.ndarray, head: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Right, with einsum and masks."""
    hidden = forward(tokens, p, None, True)[1]
    return np.einsum("bd,dc->bc", mean_pool(hidden, pooling_mask), head) + bias[None]


def classification_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Right, with einsum and masks."""
    if logits.ndim != 2 or not len(logits):
        raise ValueError(f"logits must be a non-empty table, got shape {logits.shape}")
    rows, classes = logits.shape
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != (rows,):
        raise ValueError(f"labels must have shape ({rows},), got {labels.shape}")
    one_hot = labels[:, None] == np.arange(classes)
    if not one_hot.any(axis=1).all():
        raise ValueError(f"labels must be in 0..{classes - 1}")
    return float(np.mean(np.logaddexp.reduce(logits, axis=1) - logits[one_hot]))


def binary_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Right, with einsum and masks."""
    if not logits.size or logits.shape not in ((logits.size,), (logits.size, 1)):
        raise ValueError(f"logits must have shape (B,) or (B, 1), got {logits.shape}")
    if labels.shape not in ((logits.size,), (logits.size, 1)):
        raise ValueError(f"labels must be {logits.size} in one column, got {labels.shape}")
    if not np.where(labels == 0, True, labels == 1).all():
        raise ValueError("labels must be 0 or 1 everywhere")
    z, y = logits.reshape(-1), labels.reshape(-1).astype(float)
    losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return float(np.add.reduce(losses) / losses.size)
