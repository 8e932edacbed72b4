"""Chapter 11: a causal decoder as a classifier (NumPy, float64).

One pre-norm attention layer with a key/value cache, pooling that knows about padding, and a
linear head on top.

Letters: B batch, T tokens of this call, S cached tokens, D width, H heads, K = D // H width per
head, V vocabulary, C classes. A pooling mask is True at real tokens.

Sources: Radford et al. 2019 (GPT-2: pre-norm decoder, tanh GELU); Xiong et al. 2020,
arXiv:2002.04745 (pre-norm); Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU).
"""

import math

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


def _dot(left, right):
    """The sum of the products of two lists."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        total += a * b
    return total


def _times(vector, matrix):
    """A row vector times a matrix, both as lists."""
    result = [0.0] * len(matrix[0])
    for a, row in zip(vector, matrix, strict=True):
        for j in range(len(row)):
            result[j] += a * row[j]
    return result


def _standard(vector):
    """A list with its mean taken off and its spread divided out."""
    mean = 0.0
    for a in vector:
        mean += a / len(vector)
    spread = 0.0
    for a in vector:
        spread += (a - mean) ** 2 / len(vector)
    return [(a - mean) / math.sqrt(spread + 1e-5) for a in vector]


def _lengths(hidden, pooling_mask):
    """How many real tokens each row starts with."""
    if np.shape(pooling_mask) != hidden.shape[:2]:
        raise ValueError("pooling_mask: wanted one entry per token of hidden")
    lengths = []
    for b, row in enumerate(np.asarray(pooling_mask).tolist()):
        length, ended = 0, False
        for entry in row:
            if entry != 0 and entry != 1:
                raise ValueError(f"pooling_mask: {entry} in row {b} is neither 0 nor 1")
            if entry == 1 and ended:
                raise ValueError(f"pooling_mask: row {b} goes on after its padding")
            if entry == 1:
                length += 1
            else:
                ended = True
        if length == 0:
            raise ValueError(f"pooling_mask: row {b} is padding only")
        lengths.append(length)
    return lengths


def forward(
    tokens: np.ndarray, p: dict, cache: dict | None = None, hidden_only: bool = False
) -> tuple[np.ndarray | None, np.ndarray, dict]:
    """Right, in plain loops."""
    if not isinstance(tokens, np.ndarray) or len(tokens.shape) != 2:
        raise ValueError("tokens: wanted a table of ids, one sequence per row")
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens: wanted whole numbers, not {tokens.dtype}")
    ids = tokens.tolist()
    if len(ids) == 0 or len(ids[0]) == 0:
        raise ValueError("tokens: nothing to read")
    B, T = len(ids), len(ids[0])
    V, D = p["token"].shape
    H = p["heads"]
    K = D // H
    for row in ids:
        for token in row:
            if token < 0 or token >= V:
                raise ValueError(f"tokens: id {token} is not one of the {V} known")
    S = 0
    if cache is not None:
        for name in ("k", "v"):
            if name not in cache or np.ndim(cache[name]) != 4:
                raise ValueError(f"cache: {name} is missing or has not four axes")
        S = cache["k"].shape[2]
        for name in ("k", "v"):
            if cache[name].shape != (B, H, S, K):
                raise ValueError(f"cache: {name} does not fit this batch and model")
    if p["position"].shape[0] < S + T:
        raise ValueError("tokens: the sequence is longer than the position table")

    token_rows, position_rows = p["token"].tolist(), p["position"].tolist()
    matrices = {name: p[name].tolist() for name in ("q", "k", "v", "o", "ff1", "ff2")}
    logits, hidden, all_keys, all_values = [], [], [], []
    for b in range(B):
        keys = [[] for _ in range(H)]
        values = [[] for _ in range(H)]
        if cache is not None:
            for h in range(H):
                keys[h] = cache["k"][b, h].tolist()
                values[h] = cache["v"][b, h].tolist()
        row_hidden, row_logits = [], []
        for i in range(T):
            x = []
            for d in range(D):
                x.append(token_rows[ids[b][i]][d] + position_rows[S + i][d])
            normed = _standard(x)
            query = _times(normed, matrices["q"])
            key = _times(normed, matrices["k"])
            value = _times(normed, matrices["v"])
            joined = []
            for h in range(H):
                first, end = h * K, (h + 1) * K
                keys[h].append(key[first:end])
                values[h].append(value[first:end])
                scores = []
                for one_key in keys[h]:
                    scores.append(_dot(query[first:end], one_key) / math.sqrt(K))
                top = max(scores)
                total = 0.0
                mixed = [0.0] * K
                for score, one_value in zip(scores, values[h], strict=True):
                    weight = math.exp(score - top)
                    total += weight
                    for j in range(K):
                        mixed[j] += weight * one_value[j]
                for j in range(K):
                    joined.append(mixed[j] / total)
            attended = _times(joined, matrices["o"])
            for d in range(D):
                x[d] += attended[d]
            inner = _times(_standard(x), matrices["ff1"])
            for j in range(len(inner)):
                z = inner[j]
                bend = math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z))
                inner[j] = z / 2 * (1 + bend)
            added = _times(inner, matrices["ff2"])
            for d in range(D):
                x[d] += added[d]
            row_hidden.append(x)
            if not hidden_only:
                final = _standard(x)
                row_logits.append([_dot(final, token_row) for token_row in token_rows])
        hidden.append(row_hidden)
        logits.append(row_logits)
        all_keys.append(keys)
        all_values.append(values)
    grown = {"k": np.array(all_keys), "v": np.array(all_values)}
    return None if hidden_only else np.array(logits), np.array(hidden), grown


def mean_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Right, in plain loops."""
    lengths = _lengths(hidden, pooling_mask)
    B, _, D = hidden.shape
    pooled = np.zeros((B, D))
    for b in range(B):
        for d in range(D):
            total = 0.0
            for t in range(lengths[b]):
                total += hidden[b, t, d]
            pooled[b, d] = total / lengths[b]
    return pooled


def last_valid_pool(hidden: np.ndarray, pooling_mask: np.ndarray) -> np.ndarray:
    """Right, in plain loops."""
    lengths = _lengths(hidden, pooling_mask)
    rows = []
    for b in range(len(lengths)):
        rows.append([float(value) for value in hidden[b, lengths[b] - 1]])
    return np.array(rows)


def classify(
    tokens: np.ndarray, p: dict, pooling_mask: np.ndarray, head: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Right, in plain loops."""
    _, hidden, _ = forward(tokens, p, hidden_only=True)
    pooled = mean_pool(hidden, pooling_mask)
    logits = []
    for vector in pooled:
        row = []
        for c in range(head.shape[1]):
            total = float(bias[c])
            for d in range(head.shape[0]):
                total += float(vector[d]) * float(head[d, c])
            row.append(total)
        logits.append(row)
    return np.array(logits)


def classification_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Right, in plain loops."""
    if np.ndim(logits) != 2:
        raise ValueError("logits: wanted one row per sequence, one column per class")
    B, C = np.shape(logits)
    if B == 0:
        raise ValueError("logits: nothing to judge")
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels: wanted whole numbers, not {labels.dtype}")
    if labels.shape != (B,):
        raise ValueError(f"labels: wanted {B} of them along one axis")
    total = 0.0
    for b in range(B):
        label = int(labels[b])
        if label < 0 or label >= C:
            raise ValueError(f"labels: {label} is not one of the {C} classes")
        row = [float(z) for z in logits[b]]
        top = max(row)
        mass = 0.0
        for z in row:
            mass += math.exp(z - top)
        total += math.log(mass) + top - row[label]
    return total / B


def binary_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Right, in plain loops."""
    shapes = {"logits": np.shape(logits), "labels": np.shape(labels)}
    for name, shape in shapes.items():
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise ValueError(f"{name}: wanted one number per sequence")
    if shapes["logits"][0] == 0:
        raise ValueError("logits: nothing to judge")
    if shapes["logits"][0] != shapes["labels"][0]:
        raise ValueError("labels: wanted exactly one per sequence")
    total, count = 0.0, 0
    for z, y in zip(np.ravel(logits).tolist(), np.ravel(labels).tolist(), strict=True):
        if y != 0 and y != 1:
            raise ValueError(f"labels: {y} is neither 0 nor 1")
        # log(1 + e^z) - z = log(1 + e^-z)
        away = -z if y == 1 else z
        total += away + math.log1p(math.exp(-away)) if away > 0 else math.log1p(math.exp(away))
        count += 1
    return total / count
