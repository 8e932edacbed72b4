"""Chapter 3: multi-head attention (torch).

The width D is cut into H heads of K = D / H features. Each head attends on its own, then the
heads stand side by side again and one last projection mixes them.

Letters: B batch, T query positions, S key positions (S = T in self-attention), D width, H heads,
K width per head. An attention mask is bool, and True means *blocked*.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


def check_inputs(x: Tensor, context: Tensor | None, mask: Tensor | None) -> None:
    """Given: refuse what would broadcast into a wrong answer."""
    if x.ndim != 3:
        raise ValueError(f"x must have shape (B, T, D), got {tuple(x.shape)}")
    if context is not None and (context.ndim != 3 or len(context) != len(x)):
        raise ValueError(f"context must be ({len(x)}, S, D), got {tuple(context.shape)}")
    if mask is not None and mask.ndim not in (2, 4):
        raise ValueError(
            "mask must have two axes (T, S) or four that broadcast to (B, H, T, S), got "
            f"{tuple(mask.shape)}; a mask (B, T, S) becomes mask[:, None]"
        )


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Right, with unflatten and permute."""
    try:
        heads = x.unflatten(2, (n_heads, x.shape[2] // n_heads))
    except (RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"n_heads = {n_heads} does not divide {x.shape[2]}") from error
    return heads.permute(0, 2, 1, 3).contiguous()


def merge_heads(x: Tensor) -> Tensor:
    """Right, with movedim and flatten."""
    return torch.movedim(x, 1, 2).flatten(2)


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
        """Right, with einsum, heads folded into the batch and a finite fill."""
        check_inputs(x, context, mask)
        context = x if context is None else context
        B, T, D = x.shape
        S, H = context.shape[1], self.n_heads

        def folded(projection, tokens):
            return split_heads(projection(tokens), H).flatten(0, 1)  # (B H, T or S, K)

        q = folded(self.q_proj, x) * D**-0.5 * H**0.5
        scores = torch.einsum("ntk,nsk->nts", q, folded(self.k_proj, context))
        if mask is None:
            seen = torch.ones_like(scores)
        else:
            if mask.dtype != torch.bool:
                raise ValueError(f"mask must be bool, got {mask.dtype}")
            try:
                seen = (~mask).expand(B, H, T, S).flatten(0, 1).to(scores.dtype)
            except RuntimeError as error:
                raise ValueError(f"mask does not fit: {error}") from error
        scores = scores - 1e9 * (1 - seen)
        weights = torch.softmax(scores, dim=-1) * seen
        kept = dropout(weights, self.dropout.p, training=self.training)
        mixed = torch.einsum("nts,nsk->ntk", kept, folded(self.v_proj, context))
        # o_proj, head by head: each multiplies its own columns of the weight
        columns = self.o_proj.weight.unflatten(1, (H, self.d_head))  # (D, H, K)
        out = torch.einsum("bhtk,dhk->btd", mixed.unflatten(0, (B, H)), columns)
        if self.o_proj.bias is not None:
            out = out + self.o_proj.bias
        return (out, weights.unflatten(0, (B, H))) if return_weights else out
