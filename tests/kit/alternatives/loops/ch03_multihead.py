"""Chapter 3: multi-head attention (torch).

The width D is cut into H heads of K = D / H features. Each head attends on its own, then the
heads stand side by side again and one last projection mixes them.

Letters: B batch, T query positions, S key positions (S = T in self-attention), D width, H heads,
K width per head. An attention mask is bool, and True means *blocked*.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
"""

import math

import torch
from torch import Tensor, nn


def _weights_of(scores: Tensor, blocked: list[bool]) -> Tensor:
    """Softmax of one query's scores over the keys that are left; zeros when none is."""
    left = [j for j in range(len(blocked)) if not blocked[j]]
    weights = [scores.new_zeros(()) for _ in blocked]
    if left:
        top = max(scores[j].item() for j in left)
        total = sum(torch.exp(scores[j] - top) for j in left)
        for j in left:
            weights[j] = torch.exp(scores[j] - top) / total
    return torch.stack(weights)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Right, head by head."""
    width = x.shape[2]
    if n_heads <= 0 or n_heads * (width // n_heads) != width:
        raise ValueError(f"n_heads: {n_heads} do not share {width} features evenly")
    size = width // n_heads
    heads = []
    for h in range(n_heads):
        heads.append(x[:, :, h * size : (h + 1) * size])
    return torch.stack(heads, dim=1)


def merge_heads(x: Tensor) -> Tensor:
    """Right, head by head."""
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on K features of its own; the constructor is given."""

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = False):
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model = {d_model}, got n_heads={n_heads}")
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, d_model, bias=bias)
        self.v_proj = nn.Linear(d_model, d_model, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Right, in plain loops over samples, heads and queries."""
        if len(x.shape) != 3:
            raise ValueError(f"x: wanted samples of tokens, not shape {tuple(x.shape)}")
        if context is None:
            context = x
        if len(context.shape) != 3 or context.shape[0] != x.shape[0]:
            raise ValueError("context: wanted one for each sample of x")
        B, T, S = x.shape[0], x.shape[1], context.shape[1]
        sizes = [B, self.n_heads, T, S]
        if mask is not None:
            if mask.dtype is not torch.bool:
                raise ValueError(f"mask: wanted bools, not {mask.dtype}")
            if mask.dim() == 2:
                mask = mask[None, None]
            elif mask.dim() != 4:
                raise ValueError("mask: wanted two axes or four")
            for size, full in zip(mask.shape, sizes, strict=True):
                if size != full and size != 1:
                    raise ValueError(f"mask: {tuple(mask.shape)} does not fit {sizes}")
            mask = mask.expand(sizes)

        out_rows, weight_rows = [], []
        for b in range(B):
            q, k, v = self.q_proj(x[b]), self.k_proj(context[b]), self.v_proj(context[b])
            mixed_heads, weight_heads = [], []
            for h in range(self.n_heads):
                own = slice(h * self.d_head, (h + 1) * self.d_head)
                mixed, weights = [], []
                for i in range(T):
                    blocked = [False] * S if mask is None else mask[b, h, i].tolist()
                    scores = (k[:, own] * q[i, own]).sum(dim=1) / math.sqrt(self.d_head)
                    weights.append(_weights_of(scores, blocked))
                    kept = self.dropout(weights[-1])
                    mixed.append(sum(kept[j] * v[j, own] for j in range(S)))
                mixed_heads.append(torch.stack(mixed))
                weight_heads.append(torch.stack(weights))
            out_rows.append(self.o_proj(torch.cat(mixed_heads, dim=1)))
            weight_rows.append(torch.stack(weight_heads))
        if return_weights:
            return torch.stack(out_rows), torch.stack(weight_rows)
        return torch.stack(out_rows)
