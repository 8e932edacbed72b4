"""Chapter 13: an encoder as a classifier (torch).

Every token reads every real token, to its left and to its right; the mean over the real tokens
goes to a linear head. Padding must be left out twice: as a key in attention, and in the mean.

Letters: B batch, T positions, D width, H heads, F width of the feed-forward, V vocabulary, C
classes. An attention mask is bool, and True means *blocked*.
"""

import torch
from torch import Tensor, nn

from solutions.ch03_multihead import MultiHeadAttention
from solutions.ch04_positions import sinusoidal_positions
from solutions.ch05_block import FeedForward


def check_tokens(tokens: Tensor, max_len: int) -> None:
    """Refuse what is no batch of ids, check by check."""
    if len(tokens.shape) != 2:
        raise ValueError(f"tokens: wanted two axes, not {len(tokens.shape)}")
    if tokens.dtype is not torch.long:
        raise ValueError(f"tokens: wanted int64, not {tokens.dtype}")
    if tokens.shape[1] == 0:
        raise ValueError("tokens: there is no column")
    if tokens.shape[1] > max_len:
        raise ValueError(f"tokens: {tokens.shape[1]} columns are more than {max_len}")


class EncoderBlock(nn.Module):
    """Attention both ways, then feed-forward, both added; the constructor is given."""

    def __init__(self, d_model: int, n_heads: int, ff_dim: int, dropout: float = 0.0):
        super().__init__()
        self.ln_attention = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, n_heads, dropout, bias=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_feedforward = nn.LayerNorm(d_model)
        self.feedforward = FeedForward(d_model, ff_dim, dropout)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Right, sample by sample."""
        if mask is not None and mask.ndim == 3:
            raise ValueError("mask: three axes would line samples up with heads")
        outs, weights = [], []
        for b in range(len(hidden)):
            own = mask
            if mask is not None and mask.ndim == 4 and len(mask) > 1:
                own = mask[b : b + 1]
            x = hidden[b : b + 1]
            update, seen = self.attention(self.ln_attention(x), None, own, True)
            middle = x + self.dropout(update)
            thought = [self.feedforward(self.ln_feedforward(token)) for token in middle.unbind(1)]
            outs.append(middle + torch.stack(thought, dim=1))
            weights.append(seen)
        if return_weights:
            return torch.cat(outs), torch.cat(weights)
        return torch.cat(outs)


class EncoderClassifier(nn.Module):
    """An encoder with a padding-aware mean and a linear head; the constructor is given."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        ff_dim: int = 128,
        dropout: float = 0.1,
        max_len: int = 64,
        num_classes: int = 2,
        pad_id: int = 0,
    ):
        super().__init__()
        self.pad_id = pad_id
        self.max_len = max_len
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.register_buffer("positions", sinusoidal_positions(max_len, d_model), persistent=False)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(d_model, n_heads, ff_dim, dropout) for _ in range(n_layers)
        )
        self.final_norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Right, without any mask: each row is run by itself, without its padding."""
        check_tokens(tokens, self.max_len)
        logits = []
        for row in tokens:
            columns = [t for t, token in enumerate(row.tolist()) if token != self.pad_id]
            pooled = torch.zeros_like(self.head.weight[0])
            if columns:
                hidden = self.token_embedding(row[columns]) + self.positions[columns]
                hidden = self.embedding_dropout(hidden)[None]
                for block in self.blocks:
                    hidden = block(hidden)
                for t in range(len(columns)):
                    pooled = pooled + self.final_norm(hidden[0, t]) / len(columns)
            logits.append(self.head(pooled))
        return torch.stack(logits)

    def get_attention_weights(self, tokens: Tensor, layer: int) -> Tensor:
        """Right, row by row, with a mask of two axes."""
        check_tokens(tokens, self.max_len)
        if layer not in range(len(self.blocks)):
            raise ValueError(f"layer: there is no {layer}")
        rows = []
        for row in tokens:
            blocked = torch.stack([row == self.pad_id] * len(row))  # (T, T)
            hidden = self.token_embedding(row) + self.positions[: len(row)]
            hidden = self.embedding_dropout(hidden)[None]
            for i in range(layer):
                hidden = self.blocks[i](hidden, mask=blocked)
            rows.append(self.blocks[layer](hidden, mask=blocked, return_weights=True)[1])
        return torch.cat(rows)
