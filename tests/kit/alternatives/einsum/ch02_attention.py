"""Chapter 2: scaled dot-product attention (torch).

A stable softmax, the two masks every transformer needs, and attention itself.

Letters: B batch, H heads, T query positions, S key positions, K width of queries and keys per
head. An attention mask is bool, and True means *blocked*: this query must not see this key.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
"""

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
    """Right, with logsumexp."""
    return torch.exp(x - torch.logsumexp(x, dim=dim, keepdim=True))


def causal_mask(t_q: int, t_k: int | None = None) -> Tensor:
    """Right, with triu."""
    if t_k is None:
        t_k = t_q
    if t_q < 1:
        raise ValueError(f"t_q must be at least 1, got {t_q}")
    if t_q > t_k:
        raise ValueError(f"t_q must not exceed t_k, got {t_q} and {t_k}")
    return torch.ones(t_q, t_k, dtype=torch.bool).triu(diagonal=t_k - t_q + 1)


def padding_mask(lengths: list[int] | Tensor, max_length: int) -> Tensor:
    """Right, with a running count."""
    counts = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths)
    if counts.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"lengths must be whole numbers, got {counts.dtype}")
    if counts.dim() != 1:
        raise ValueError(f"lengths must have one axis, got {counts.dim()}")
    if not all(0 <= n <= max_length for n in counts.tolist()):
        raise ValueError(f"lengths must lie between 0 and {max_length}")
    valid = torch.ones(len(counts), max_length).cumsum(dim=1) <= counts.unsqueeze(1)
    return valid.logical_not().unsqueeze(1).unsqueeze(1)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, return_weights: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Right, with einsum, in float32 or wider, a finite fill and weights renormalized."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    quarter = q.shape[-1] ** -0.25
    scores = torch.einsum("...qd,...kd->...qk", q.to(dtype) * quarter, k.to(dtype) * quarter)
    if mask is None:
        mask = torch.zeros_like(scores, dtype=torch.bool)
    check_mask(mask, scores.shape)
    scores = torch.where(mask, torch.full_like(scores, -1e9), scores)
    weights = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) * ~mask
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, torch.ones_like(total), total)
    out = torch.einsum("...qk,...kd->...qd", weights, v.to(dtype)).to(v.dtype)
    return (out, weights.to(q.dtype)) if return_weights else out
