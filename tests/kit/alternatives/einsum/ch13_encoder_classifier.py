"""Chapter 13: an encoder as a classifier (torch).

Every token reads every real token, to its left and to its right; the mean over the real tokens
goes to a linear head. Padding must be left out twice: as a key in attention, and in the mean.

Letters: B batch, T positions, D width, H heads, F width of the feed-forward, V vocabulary, C
classes. An attention mask is bool, and True means *blocked*.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.ch03_multihead import MultiHeadAttention
from solutions.ch04_positions import sinusoidal_positions
from solutions.ch05_block import FeedForward


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
        """Right, with einsum on a slice of each head, a finite fill and the functional dropout."""
        B, T, D = hidden.shape
        attention = self.attention
        H, K = attention.n_heads, attention.d_head
        seen = torch.ones(B, H, T, T, dtype=torch.bool, device=hidden.device)
        if mask is not None:
            if mask.dtype != torch.bool or mask.ndim not in (2, 4):
                raise ValueError(f"mask: bool of two or four axes, not {mask.dtype} {mask.ndim}")
            try:
                seen = ~mask.expand(B, H, T, T)
            except RuntimeError as error:
                raise ValueError(f"mask does not fit: {error}") from error

        def headed(projection: nn.Linear) -> Tensor:
            weight = projection.weight.unflatten(0, (H, K))
            out = torch.einsum("btd,hkd->bhtk", normed, weight)
            return out + projection.bias.unflatten(0, (H, K))[:, None]

        normed = F.layer_norm(hidden, (D,), *self.ln_attention.parameters(), self.ln_attention.eps)
        q, k, v = (headed(p) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        scores = torch.einsum("bhik,bhjk->bhij", q, k) * K**-0.5
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1) * seen
        kept = F.dropout(weights, attention.dropout.p, self.training and attention.training)
        mixed = torch.einsum("bhij,bhjk->bihk", kept, v).flatten(2)
        update = F.linear(mixed, *attention.o_proj.parameters())
        middle = hidden.add(F.dropout(update, self.dropout.p, self.dropout.training))
        out = torch.add(middle, self.feedforward(self.ln_feedforward(middle)))
        return (out, weights) if return_weights else out


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
        """Right, with a mask for each pair, and the mean as a product with 1 / n and 0."""
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens: (B, T) of int64, not {tokens.shape} of {tokens.dtype}")
        B, T = tokens.shape
        if T < 1 or T > self.max_len:
            raise ValueError(f"tokens: 1 to {self.max_len} columns, not {T}")
        real = tokens.ne(self.pad_id)
        mask = torch.logical_not(real)[:, None, None, :].expand(B, 1, T, T)
        places = torch.arange(T, device=tokens.device)
        embedded = F.embedding(tokens, self.token_embedding.weight) + self.positions[places]
        hidden = F.dropout(embedded, self.embedding_dropout.p, self.embedding_dropout.training)
        for layer in range(len(self.blocks)):
            hidden = self.blocks[layer](hidden=hidden, mask=mask)
        parts = real / real.sum(dim=1, keepdim=True).clamp(min=1)  # rows sum to 1, or to 0
        pooled = torch.einsum("bt,btd->bd", parts.to(hidden.dtype), self.final_norm(hidden))
        return torch.einsum("bd,cd->bc", pooled, self.head.weight) + self.head.bias

    def get_attention_weights(self, tokens: Tensor, layer: int) -> Tensor:
        """Right, by a hook: what forward hands the block, handed to the block once more."""
        if layer < 0 or layer >= len(self.blocks):
            raise ValueError(f"layer: {layer} is not one of {len(self.blocks)}")
        seen = {}

        def keep(module, args, kwargs):
            seen.update(zip(("hidden", "mask"), args, strict=False), **kwargs)

        hook = self.blocks[layer].register_forward_pre_hook(keep, with_kwargs=True)
        try:
            self(tokens)
        finally:
            hook.remove()
        return self.blocks[layer](seen["hidden"], seen["mask"], return_weights=True)[1]
