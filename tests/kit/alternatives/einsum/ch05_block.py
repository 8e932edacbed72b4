"""Chapter 5: the transformer block (torch).

Layer norm, GELU and the feed-forward network; then the pre-LN block, which adds attention and
feed-forward to a stream that nothing else touches; then what a stack of blocks costs.

Letters: B batch, T positions, D width, F width of the feed-forward, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.ch03_multihead import MultiHeadAttention


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Right, with torch's own variance and rsqrt."""
    D = x.size(-1)
    if weight.size() != (D,):
        raise ValueError(f"weight has {weight.size()}, not ({D},)")
    if bias.size() != (D,):
        raise ValueError(f"bias has {bias.size()}, not ({D},)")
    var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, (x - mean) * torch.rsqrt(var + eps), weight)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Right, with the normal distribution of torch.special, and powers by multiplication."""
    match approximate:
        case "none":
            return x * torch.special.ndtr(x)
        case "tanh":
            u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            return 0.5 * x + 0.5 * x * torch.tanh(u)
    raise ValueError(f"approximate: {approximate}")


class FeedForward(nn.Module):
    """Two layers that treat every token alike and alone; the constructor is given."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Right, with einsum, PyTorch's GELU and the functional dropout."""
        wide = torch.einsum("...d,fd->...f", x, self.up_proj.weight) + self.up_proj.bias
        out = torch.einsum("...f,df->...d", F.gelu(wide), self.down_proj.weight)
        return F.dropout(out + self.down_proj.bias, self.dropout.p, self.training)


def add_residual(x: Tensor, update: Tensor) -> Tensor:
    """Right, by stacking the two and summing them."""
    try:
        return torch.stack([x, update]).sum(dim=0)
    except RuntimeError as error:
        raise ValueError(f"update does not have x's shape: {error}") from error


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each added to the stream (pre-LN); the constructor is given."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.ln_attention = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, n_heads, dropout)
        self.dropout = nn.Dropout(dropout)
        self.ln_feedforward = nn.LayerNorm(d_model)
        self.feedforward = FeedForward(d_model, d_ff, dropout)

    def forward(
        self, hidden: Tensor, past_key_value: None = None, use_cache: bool = False
    ) -> tuple[Tensor, None]:
        """Right, with this file's layer_norm, a mask of four axes and plain sums."""
        if not (past_key_value is None and use_cache is False):
            raise NotImplementedError("there is no cache before chapter 10")

        def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
            return layer_norm(x, norm.weight, norm.bias, norm.eps)

        B, T, _ = hidden.shape
        visible = torch.ones(T, T, device=hidden.device).tril().bool()
        mask = visible.logical_not().expand(B, 1, T, T)
        gathered = self.attention(normed(hidden, self.ln_attention), mask=mask)
        middle = hidden + F.dropout(gathered, self.dropout.p, self.training)
        return middle + self.feedforward(normed(middle, self.ln_feedforward)), None


def parameter_ledger(
    vocab_size: int, block_size: int, d_model: int, n_layers: int, d_ff: int
) -> dict[str, int]:
    """Right, multiplied out: a block has D (4 D + 2 F + 5) + F."""
    V, C, D, N = vocab_size, block_size, d_model, n_layers
    return {
        "total": D * (2 * V + C + 2) + N * (D * (4 * D + 2 * d_ff + 5) + d_ff),
        "token_embedding": V * D,
        "position_embedding": C * D,
        "blocks": N * (D * (4 * D + 2 * d_ff + 5) + d_ff),
        "final_norm": D + D,
        "head": V * D,
    }
