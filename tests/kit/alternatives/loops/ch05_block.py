"""Chapter 5: the transformer block (torch).

Layer norm, GELU and the feed-forward network; then the pre-LN block, which adds attention and
feed-forward to a stream that nothing else touches; then what a stack of blocks costs.

Letters: B batch, T positions, D width, F width of the feed-forward, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from solutions.ch03_multihead import MultiHeadAttention


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Right, token by token, with the mean of squares less the square of the mean."""
    width = x.shape[-1]
    for name, parameter in (("weight", weight), ("bias", bias)):
        if list(parameter.shape) != [width]:
            raise ValueError(f"{name}: wanted {width} numbers, not shape {tuple(parameter.shape)}")
    tokens = []
    for token in x.reshape(-1, width):
        mean = sum(token) / width
        var = sum(number * number for number in token) / width - mean * mean
        normed = (token - mean) * (var + eps) ** -0.5
        tokens.append(normed * weight + bias)
    return torch.stack(tokens).reshape(x.shape)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Right, with the complementary error function, and tanh as a sigmoid."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: no such form, {approximate!r}")
    if approximate == "tanh":
        u = (2 / math.pi) ** 0.5 * x * (1 + 0.044715 * x * x)
        return x * torch.sigmoid(2 * u)
    return 0.5 * x * torch.erfc(-x * 0.5**0.5)


class FeedForward(nn.Module):
    """Two layers that treat every token alike and alone; the constructor is given."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Right, one wide feature after the other."""
        out = self.down_proj.bias.expand(x.shape)
        for f in range(self.up_proj.out_features):
            feature = (x * self.up_proj.weight[f]).sum(dim=-1) + self.up_proj.bias[f]
            out = out + gelu(feature)[..., None] * self.down_proj.weight[:, f]
        return self.dropout(out)


def add_residual(x: Tensor, update: Tensor) -> Tensor:
    """Right, number by number."""
    if list(x.shape) != list(update.shape):
        raise ValueError(f"update: {tuple(update.shape)} is not {tuple(x.shape)}")
    pairs = zip(x.reshape(-1), update.reshape(-1), strict=True)
    return torch.stack([first + second for first, second in pairs]).reshape(x.shape)


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
        """Right, position by position: each attends to a prefix, so no mask is needed."""
        if use_cache:
            raise NotImplementedError("use_cache: see chapter 10")
        if past_key_value is not None:
            raise NotImplementedError("past_key_value: see chapter 10")
        normed = self.ln_attention(hidden)
        out = []
        for t in range(hidden.shape[1]):
            seen = normed[:, : t + 1]
            attended = self.dropout(self.attention(seen[:, t:], seen))
            middle = hidden[:, t : t + 1] + attended
            out.append(middle + self.feedforward(self.ln_feedforward(middle)))
        return torch.cat(out, dim=1), None


def parameter_ledger(
    vocab_size: int, block_size: int, d_model: int, n_layers: int, d_ff: int
) -> dict[str, int]:
    """Right, by building the parts without memory and counting."""
    with torch.device("meta"):
        parts = {
            "token_embedding": [nn.Embedding(vocab_size, d_model)],
            "position_embedding": [nn.Embedding(block_size, d_model)],
            "blocks": [TransformerBlock(d_model, 1, d_ff) for _ in range(n_layers)],
            "final_norm": [nn.LayerNorm(d_model)],
            "head": [nn.Linear(d_model, vocab_size, bias=False)],
        }
    ledger = {}
    for name, modules in parts.items():
        ledger[name] = 0
        for module in modules:
            for parameter in module.parameters():
                ledger[name] += parameter.numel()
    ledger["total"] = sum(ledger.values())
    return ledger
