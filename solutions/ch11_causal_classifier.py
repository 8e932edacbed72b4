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
    """Given: the parameters, normal with standard deviation width**-0.5.

    Returns:
        dict with token (V, D), position (max_length, D), q, k, v, o (D, D), ff1 (D, 4 D),
        ff2 (4 D, D), drawn in this order, and heads (int).

    Raises:
        ValueError: a size below 1, or a width that heads does not divide.
    """
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
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))


def cached_length(tokens: np.ndarray, p: dict, cache: dict | None) -> int:
    """Given: S, how many tokens the cache holds (0 for None), after checking forward's arguments.

    Raises:
        ValueError: naming `tokens` (not integers of shape (B, T), empty, an id outside 0..V-1,
            or reaching past the position table) or `cache` (keys or values not (B, H, S, K)).
    """
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
            wanted = f"({B}, {H}, S, {D // H})"
            raise ValueError(f"cache must hold k and v of shape {wanted}, got {shapes}")
    if S + T > len(p["position"]):
        last = len(p["position"]) - 1
        raise ValueError(f"tokens reach position {S + T - 1}, the position table ends at {last}")
    return S


def valid_lengths(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Given: the number of real tokens in each row, (B,) int, after checking the mask.

    Raises:
        ValueError: naming `pooling_mask`: not of hidden's shape (B, T), an entry that is neither
            0 nor 1, a row without a real token, or padding before a real token.
    """
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
    """Run the decoder over tokens that follow the S cached ones.

    x      = token[tokens] + position[S : S + T]
    a      = softmax(q k^T / sqrt(K)) v per head, from normalize(x); keys at S + i and before only
    x      = x + a o
    hidden = x + gelu(normalize(x) ff1) ff2
    logits = normalize(hidden) token^T

    Args:
        tokens:      (B, T) integers in 0..V-1.
        p:           parameters, as from `initialize`; matrices act from the right (x @ p["q"]).
                     Head h owns columns h K to (h + 1) K of q, k, v and the same rows of o.
        cache:       None, or {"k", "v"}: keys and values (B, H, S, K) of the tokens before these.
        hidden_only: skip the projection to the vocabulary and give None for the logits.

    Returns:
        logits (B, T, V) or None; hidden (B, T, D), after the feed-forward and *before* the final
        norm; the new cache {"k", "v"}, each (B, H, S + T, K), old entries first. Nothing that
        came in is changed.

    Raises:
        ValueError: naming `tokens` or `cache`; `cached_length` checks both.

    Example (q = k = 0, so attention is the mean of what is visible; ff1 = ff2 = 0; s = 0.999995):
        >>> p = initialize(vocab=2, width=2, heads=1, max_length=3)
        >>> p |= {name: np.zeros_like(p[name]) for name in ("position", "q", "k", "ff1", "ff2")}
        >>> p |= {"token": np.array([[1.0, -1.0], [-1.0, 1.0]]), "v": np.eye(2), "o": np.eye(2)}
        >>> logits, hidden, cache = forward(np.array([[0, 0, 1]]), p)
        >>> hidden[0, :, 0].round(4).tolist()  # 1 + s, 1 + s, -1 + s/3
        [2.0, 2.0, -0.6667]
        >>> cache["k"].shape
        (1, 1, 3, 2)

    Always true:
        * hidden at t does not depend on tokens after t (as long as all is finite);
        * chunks fed one after another, each with the last one's cache, give what one pass gives.
    """
    # --- solution ---
    S = cached_length(tokens, p, cache)
    B, T = tokens.shape

    def split(x):
        return x.reshape(B, T, p["heads"], -1).transpose(0, 2, 1, 3)  # (B, H, T, K)

    x = p["token"][tokens] + p["position"][S : S + T]  # (B, T, D)
    normed = normalize(x)
    q, k, v = (split(normed @ p[name]) for name in "qkv")
    if cache is not None:
        k = np.concatenate([cache["k"], k], axis=2)  # (B, H, S+T, K)
        v = np.concatenate([cache["v"], v], axis=2)

    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])  # (B,H,T,K) @ (B,H,K,S+T)
    blocked = np.arange(S + T) > S + np.arange(T)[:, None]  # (T, S+T)
    scores = np.where(blocked, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(B, T, -1)  # (B, T, D)

    x = x + mixed @ p["o"]
    hidden = x + gelu(normalize(x) @ p["ff1"]) @ p["ff2"]
    logits = None if hidden_only else normalize(hidden) @ p["token"].T  # (B, T, V)
    return logits, hidden, {"k": k, "v": v}


def mean_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Average each row's hidden states over its real tokens.

    pooled[b] = sum over real t of hidden[b, t] / number of real tokens in row b

    Args:
        hidden:       (B, T, D) float.
        pooling_mask: (B, T), bool or 0 and 1 of any dtype, True = a real token; right-padded, at
                      least one per row.

    Returns:
        (B, D) float. Neither argument is changed.

    Raises:
        ValueError: naming `pooling_mask`; `valid_lengths` checks it.

    Example (row 0 has two real tokens, row 1 four):
        >>> row = [[2, 4], [4, 8], [100, 100], [100, 100]]
        >>> hidden = np.array([row, [[1, 1], [2, 2], [3, 3], [4, 4]]], dtype=float)
        >>> mean_pool(hidden, np.array([[1, 1, 0, 0], [1, 1, 1, 1]])).tolist()
        [[3.0, 6.0], [2.5, 2.5]]

    Always true:
        * finite values under the mask change nothing;
        * the pooled vector of a row does not depend on how far the batch is padded.
    """
    # --- solution ---
    lengths = valid_lengths(hidden, pooling_mask)
    valid = np.asarray(pooling_mask, dtype=bool)
    return (hidden * valid[..., None]).sum(axis=1) / lengths[:, None]  # (B, D)


def last_valid_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Take each row's hidden state at its last real token.

    Args:
        hidden:       (B, T, D) float.
        pooling_mask: (B, T), bool or 0 and 1 of any dtype, True = a real token; right-padded, at
                      least one per row.

    Returns:
        (B, D) float. Neither argument is changed.

    Raises:
        ValueError: naming `pooling_mask`; `valid_lengths` checks it.

    Example (lengths 2 and 4):
        >>> hidden = np.array([[[10.0], [20.0], [30.0], [40.0]]] * 2)
        >>> last_valid_pool(hidden, np.array([[1, 1, 0, 0], [1, 1, 1, 1]])).tolist()
        [[20.0], [40.0]]

    Always true:
        * in a causal model this is the one position that has seen the whole sequence.
    """
    # --- solution ---
    lengths = valid_lengths(hidden, pooling_mask)
    return hidden[np.arange(len(hidden)), lengths - 1]  # (B, D)


def classify(
    tokens: np.ndarray, p: dict, pooling_mask: np.ndarray, head: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Class logits of each sequence: a linear head on the mean of its hidden states.

    logits = mean_pool(hidden, pooling_mask) @ head + bias

    The hidden states are `forward`'s, before the final norm; the vocabulary plays no part.

    Args:
        tokens:       (B, T) integers in 0..V-1; any of these ids may stand under the mask, and no
                      other, such as -100.
        p:            parameters, as from `initialize`.
        pooling_mask: (B, T), bool or 0 and 1 of any dtype, True = a real token; right-padded, at
                      least one per row.
        head:         (D, C) float.
        bias:         (C,) float.

    Returns:
        (B, C) float, logits and not probabilities. None of the arguments is changed.

    Raises:
        ValueError: naming `tokens` or `pooling_mask`, as `forward` and `mean_pool` do.

    Example (attention and feed-forward add nothing, so hidden is the token's own row):
        >>> p = initialize(vocab=3, width=2, heads=1, max_length=4)
        >>> p |= {name: np.zeros_like(p[name]) for name in ("position", "o", "ff2")}
        >>> p["token"] = np.array([[1.0, 3.0], [5.0, 7.0], [100.0, 100.0]])
        >>> head, bias = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([0.0, 0.5])
        >>> classify(np.array([[0, 1, 2]]), p, np.array([[1, 1, 0]]), head, bias).tolist()
        [[8.0, 10.5]]

    Always true:
        * other ids under the mask change nothing;
        * the same sequence with more right padding gives the same logits.
    """
    # --- solution ---
    _, hidden, _ = forward(tokens, p, hidden_only=True)
    return mean_pool(hidden, pooling_mask) @ head + bias  # (B, D) @ (D, C)


def classification_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy of exclusive classes.

    loss = mean over b of log(sum over c of exp(logits[b, c])) - logits[b, labels[b]]

    Args:
        logits: (B, C) float, not probabilities; may be as large as +-1000.
        labels: (B,) integers in 0..C-1; bools are not integers.

    Returns:
        float, in nats. Neither argument is changed.

    Raises:
        ValueError: naming `logits` (not two axes, no row) or `labels` (not integers, not of shape
            (B,), outside 0..C-1, so that -100 ignores nothing).

    Example (log(1 + e^-2)):
        >>> round(classification_loss(np.array([[1.0, 3.0]]), np.array([1])), 7)
        0.126928

    Always true:
        * the same number added to a row's logits changes nothing;
        * equal logits cost log C.
    """
    # --- solution ---
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (B, C), got {logits.shape}")
    B, C = logits.shape
    if B == 0:
        raise ValueError("logits must have at least one row")
    if labels.shape != (B,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be {B} integers, got {labels.dtype} {labels.shape}")
    if labels.min() < 0 or labels.max() >= C:
        raise ValueError(f"labels must be in 0..{C - 1}, got {labels.min()}..{labels.max()}")
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))  # (B, C)
    return float(-log_probs[np.arange(B), labels].mean())


def binary_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean binary cross-entropy of one logit per sequence.

    loss = mean over b of log(1 + exp(z)) - y z,   z = logits[b], y = labels[b]

    Args:
        logits: (B,) or (B, 1) float, not probabilities; may be as large as +-1000.
        labels: (B,) or (B, 1), each 0 or 1, of any dtype; its shape need not be that of logits.

    Returns:
        float, in nats. Neither argument is changed.

    Raises:
        ValueError: naming `logits` (another shape, no row) or `labels` (another shape, another
            number of rows, a value that is neither 0 nor 1).

    Example (log(1 + e^-2): the two-class loss above, since 3 - 1 = 2):
        >>> round(binary_loss(np.array([2.0]), np.array([1])), 7)
        0.126928

    Always true:
        * binary_loss(z, y) = classification_loss of the rows [0, z] with labels y;
        * a logit of 0 costs log 2.
    """
    # --- solution ---
    logits, labels = np.asarray(logits), np.asarray(labels)
    for name, array in (("logits", logits), ("labels", labels)):
        if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
            raise ValueError(f"{name} must have shape (B,) or (B, 1), got {array.shape}")
    if len(logits) == 0:
        raise ValueError("logits must have at least one row")
    if len(labels) != len(logits):
        raise ValueError(f"labels must have {len(logits)} rows as logits has, got {len(labels)}")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")
    z, y = logits.reshape(-1), labels.reshape(-1)
    return float((np.logaddexp(0.0, z) - y * z).mean())
