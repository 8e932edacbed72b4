"""Chapter 3: multi-head attention (torch).

The width D is cut into H heads of K = D / H features. Each head attends on its own, then the
heads stand side by side again and one last projection mixes them.

Letters: B batch, T query positions, S key positions (S = T in self-attention), D width, H heads,
K width per head. An attention mask is bool, and True means *blocked*.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
"""

import torch  # noqa: F401  the examples use it
from torch import Tensor, nn

from solutions.ch02_attention import scaled_dot_product_attention  # given


def check_inputs(x: Tensor, context: Tensor | None, mask: Tensor | None) -> None:
    """Given: refuse what would broadcast into a wrong answer.

    Raises:
        ValueError: naming `x` (not three axes), `context` (not three axes, or another batch than
            x) or `mask` (neither two nor four axes: three would line a batch up with the heads).
    """
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
    """Cut the width into heads, and put the heads beside the batch.

    out[b, h, t, k] = x[b, t, h K + k],   K = D / n_heads

    Args:
        x:       (B, T, D) float.
        n_heads: H, at least 1; divides D.

    Returns:
        (B, H, T, K) in x's dtype; may share x's memory, x is unchanged.

    Raises:
        ValueError: naming `n_heads`: below 1, or does not divide D.

    Example (three tokens of width 4; head 0 takes the first two features of each):
        >>> x = torch.arange(12).reshape(1, 3, 4)
        >>> split_heads(x, 2).tolist()
        [[[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]]

    Always true:
        * a token's features stay with that token: T is never cut or mixed;
        * merge_heads(split_heads(x, n_heads)) is x.
    """
    raise NotImplementedError("ch03 split_heads")


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads of each token side by side again: `split_heads` undone.

    out[b, t, h K + k] = x[b, h, t, k]

    Args:
        x: (B, H, T, K) float, of any memory layout.

    Returns:
        (B, T, D) in x's dtype, D = H K; x is unchanged.

    Example (two heads, two tokens, two features each):
        >>> merge_heads(torch.arange(8).reshape(1, 2, 2, 2)).tolist()
        [[[0, 1, 4, 5], [2, 3, 6, 7]]]

    Always true:
        * split_heads(merge_heads(x), H) is x.
    """
    raise NotImplementedError("ch03 merge_heads")


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on K features of its own; the constructor is given.

    Args:
        d_model: D, the width of what comes in and goes out.
        n_heads: H, divides d_model.
        dropout: probability with which a weight is dropped in training.
        bias:    whether the four projections have one.

    Attributes:
        q_proj, k_proj, v_proj, o_proj: nn.Linear, D to D. Head h owns the output features h K to
            (h + 1) K of q, k and v, and the same input features of o.
        dropout: nn.Dropout.
        n_heads, d_head: H and K.

    Raises:
        ValueError: naming `n_heads`: below 1, or does not divide d_model.

    Example:
        >>> MultiHeadAttention(d_model=6, n_heads=4)
        Traceback (most recent call last):
        ValueError: n_heads must divide d_model = 6, got n_heads=4
    """

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
        """Let each position of x gather what it needs from x itself, or from a context.

        q from x; k and v from context, or from x without one; each split into heads
        weights = softmax(q k^T / sqrt(K)) per head, 0 where blocked
        out     = o_proj(heads side by side of dropout(weights) v)

        Chapter 2's `scaled_dot_product_attention(q, k, v, mask=None, return_weights=False)` is at
        hand; it has no dropout, and with return_weights=True gives (out, weights).

        Args:
            x:       (B, T, D) float, asks.
            context: None (self-attention: x answers), or (B, S, D) float (cross-attention:
                     context answers, with keys and with values).
            mask:    None, or bool, True = blocked: (T, S), or four axes that broadcast to
                     (B, H, T, S), such as (B, 1, 1, S) for padding.
            return_weights: give the weights too.

        Returns:
            out (B, T, D), or (out, weights) with weights (B, H, T, S): every head's own, as they
            were *before* dropout. Dropout acts in training only, on each weight on its own. A
            query whose keys are all blocked has weights 0 and output o_proj(0), and no gradient
            becomes NaN. Nothing that came in is changed.

        Raises:
            ValueError: naming `x`, `context` or `mask`; `check_inputs` checks the axes, and
                `scaled_dot_product_attention` that mask is bool and fits the scores.

        Not allowed: F.scaled_dot_product_attention, nn.MultiheadAttention,
        nn.TransformerEncoder*, and the functions below them.

        Example (head h reads feature h; q asks log 3 times as loud, so a match is 3 against 1):
            >>> attention = MultiHeadAttention(d_model=2, n_heads=2).requires_grad_(False)
            >>> for name, scale in {"q": torch.tensor(3.0).log(), "k": 1, "v": 1, "o": 1}.items():
            ...     _ = attention.get_submodule(f"{name}_proj").weight.copy_(scale * torch.eye(2))
            >>> out, weights = attention(torch.eye(2)[None], return_weights=True)
            >>> weights
            tensor([[[[0.7500, 0.2500],
                      [0.5000, 0.5000]],
            <BLANKLINE>
                     [[0.5000, 0.5000],
                      [0.2500, 0.7500]]]])
            >>> out
            tensor([[[0.7500, 0.5000],
                     [0.5000, 0.7500]]])

        Always true:
            * equals nn.MultiheadAttention with the same weights (batch_first, per-head weights);
            * without a mask, the context's positions permuted together change nothing in out.
        """
        raise NotImplementedError("ch03 MultiHeadAttention.forward")
