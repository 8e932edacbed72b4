"""Chapter 2: scaled dot-product attention (torch).

A stable softmax, the two masks every transformer needs, and attention itself.

Letters: B batch, H heads, T query positions, S key positions, K width of queries and keys per
head. An attention mask is bool, and True means *blocked*: this query must not see this key.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
"""

import math

import torch
from torch import Tensor


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Given: refuse a mask that is not bool or does not broadcast to the scores' shape."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True = blocked, got {mask.dtype}")
    sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.ndim > len(shape) or any(size not in (1, full) for size, full in sizes):
        raise ValueError(
            f"mask must broadcast to the scores' shape {tuple(shape)}, got {tuple(mask.shape)}"
        )


def softmax(x: Tensor, dim: int) -> Tensor:
    """Right, slice by slice."""
    slices = list(torch.unbind(x, dim))
    top = slices[0]
    for one in slices[1:]:
        top = torch.maximum(top, one)
    parts = [torch.exp(one - top) for one in slices]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return torch.stack([part / total for part in parts], dim)


def causal_mask(t_q: int, t_k: int | None = None) -> Tensor:
    """Right, in plain loops."""
    keys = t_q if t_k is None else t_k
    if t_q <= 0 or keys < t_q:
        raise ValueError(f"t_q: wanted 1 to {keys} queries, not {t_q}")
    rows = []
    for i in range(t_q):
        seen = keys - t_q + i + 1
        rows.append([False] * seen + [True] * (keys - seen))
    return torch.tensor(rows)


def padding_mask(lengths: list[int] | Tensor, max_length: int) -> Tensor:
    """Right, in plain loops."""
    counts = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    if not isinstance(counts, list):
        raise ValueError("lengths: wanted one number per row")
    rows = []
    for length in counts:
        if not isinstance(length, int) or isinstance(length, bool):
            raise ValueError(f"lengths: {length} is no whole number")
        if length < 0 or length > max_length:
            raise ValueError(f"lengths: {length} is outside 0..{max_length}")
        rows.append([[[False] * length + [True] * (max_length - length)]])
    return torch.tensor(rows, dtype=torch.bool).reshape(len(rows), 1, 1, max_length)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, return_weights: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Right, query by query over the keys it may see."""
    leading, (T, K), S = q.shape[:-2], q.shape[-2:], k.shape[-2]
    if mask is None:
        mask = torch.zeros(T, S, dtype=torch.bool)
    if mask.dtype is not torch.bool:
        raise ValueError(f"mask: wanted True and False, not {mask.dtype}")
    try:
        full = mask.expand(*leading, T, S).reshape(-1, T, S)
    except RuntimeError:
        raise ValueError(f"mask: {tuple(mask.shape)} does not fit the scores") from None
    queries, keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    all_out, all_weights = [], []
    for n in range(len(queries)):
        for i in range(T):
            seen = [j for j in range(S) if not full[n, i, j]]
            out, weights = values.new_zeros(values.shape[-1]), queries.new_zeros(S)
            if seen:
                scores = [(queries[n, i] * keys[n, j]).sum() / math.sqrt(K) for j in seen]
                some = softmax(torch.stack(scores), 0)
                weights = weights.index_put((torch.tensor(seen),), some)
                for weight, j in zip(some, seen, strict=True):
                    out = out + weight * values[n, j]
            all_out.append(out)
            all_weights.append(weights)
    out = torch.stack(all_out).reshape(*leading, T, values.shape[-1])
    weights = torch.stack(all_weights).reshape(*leading, T, S)
    return (out, weights) if return_weights else out
