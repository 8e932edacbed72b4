"""Chapter 12: pooling (torch).

From a vector for each position to one yes or no for each sequence: a CLS vector in front, the
mean, the maximum, a learned average, BERT's pooler; then a classifier that offers them all.

Letters: B batch, T positions, D width, I features of the input. `valid` is True, or 1, at real
positions and False, or 0, at padding, in any pattern; the padding mask of nn.TransformerEncoder is
the opposite, True = blocked.

Sources: Devlin et al. 2019, arXiv:1810.04805 (CLS; the pooler is in the released code); Lin et
al. 2017, arXiv:1703.03130 (attention pooling); Reimers and Gurevych 2019, arXiv:1908.10084 (CLS,
mean and maximum compared).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.ch04_positions import sinusoidal_positions  # given

POOLINGS = ("cls", "mean", "max", "attention", "bert")


def real_positions(x: Tensor, valid: Tensor) -> Tensor:
    """Given: valid as bool (B, T), after checking it."""
    if valid.shape != x.shape[:2]:
        wanted = tuple(x.shape[:2])
        raise ValueError(f"valid must have shape (B, T) = {wanted}, got {tuple(valid.shape)}")
    if not ((valid == 0) | (valid == 1)).all():
        raise ValueError("valid must be bool, or all 0 and 1")
    return valid.bool()


def prepend_cls(
    x: Tensor, cls: Tensor, valid: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Right, with einsum and other fills."""
    if list(cls.shape) != [x.size(-1)]:
        raise ValueError(f"cls must be one vector of width {x.size(-1)}, got {list(cls.shape)}")
    out = F.pad(x, (0, 0, 1, 0))
    first = (torch.arange(out.size(1)) == 0).to(x.dtype)
    out = out + torch.einsum("t,d->td", first, cls.to(x.dtype))
    if valid is None:
        return out
    if valid.shape != x.shape[:2]:
        raise ValueError(f"valid must be {list(x.shape[:2])}, got {list(valid.shape)}")
    return out, F.pad(valid.long(), (1, 0), value=1).to(valid.dtype)


def mean_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Right, with einsum and other fills."""
    weights = real_positions(hidden, valid).to(hidden.dtype)
    total = torch.einsum("btd,bt->bd", hidden, weights)
    return total / (weights.sum(1) + 1e-30)[:, None]


def max_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Right, with einsum and other fills."""
    marks = real_positions(hidden, valid)
    filled = torch.where(marks.unsqueeze(-1), hidden, torch.finfo(hidden.dtype).min)
    largest = filled.max(dim=1)[0]
    return torch.where(marks.any(1).unsqueeze(-1), largest, torch.zeros_like(largest))


class AttentionPool(nn.Module):
    """An average with learned weights; the constructor is given."""

    def __init__(self, d_model: int):
        super().__init__()
        self.score = nn.Linear(d_model, 1)

    def forward(
        self, hidden: Tensor, valid: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Right, with einsum and other fills."""
        marks = real_positions(hidden, valid).to(hidden.dtype)
        scores = torch.einsum("btd,d->bt", hidden, self.score.weight[0]) + self.score.bias
        shifted = scores + (1 - marks) * -1e9
        exp = (shifted - shifted.amax(1, keepdim=True).detach()).exp() * marks
        weights = exp / exp.sum(1, keepdim=True).clamp_min(1e-30)
        pooled = torch.bmm(weights.unsqueeze(1), hidden).squeeze(1)
        if not return_weights:
            return pooled
        return pooled, weights


class BertPooler(nn.Module):
    """What BERT puts between its CLS state and a classifier; the constructor is given."""

    def __init__(self, d_model: int):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """Right, with einsum and other fills."""
        first = hidden.select(1, 0)
        return torch.tanh(torch.einsum("bi,oi->bo", first, self.dense.weight) + self.dense.bias)


class SequenceBinaryClassifier(nn.Module):
    """An encoder, a pooling and one logit for each sequence; the constructor is given."""

    def __init__(
        self,
        input_dim: int = 2,
        d_model: int = 8,
        n_heads: int = 2,
        n_layers: int = 2,
        pooling: str = "cls",
        d_ff: int = 32,
        dropout: float = 0.0,
    ):
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        self.pooling = pooling
        self.project = nn.Linear(input_dim, d_model)
        has_cls = pooling in ("cls", "bert")
        self.cls = nn.Parameter(0.02 * torch.randn(d_model)) if has_cls else None
        layer = nn.TransformerEncoderLayer(d_model, n_heads, d_ff, dropout, batch_first=True)
        # nested tensors drop padded columns, and take right padding only
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        poolers = {"attention": AttentionPool, "bert": BertPooler}
        self.pooler = poolers[pooling](d_model) if pooling in poolers else None
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(d_model, 1)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Right, with einsum and other fills."""
        hidden = F.linear(x, self.project.weight, self.project.bias)
        marks = torch.ones(x.shape[:2]) if valid is None else real_positions(x, valid).float()
        if self.pooling in ("cls", "bert"):
            hidden, marks = prepend_cls(hidden, self.cls, marks)
        hidden = hidden + sinusoidal_positions(hidden.size(1), hidden.size(2)).to(hidden)[None]
        blocked = marks == 0
        blocked[blocked.all(1), 0] = False  # one position to read, where there is none
        hidden = self.encoder(hidden, src_key_padding_mask=blocked)
        pools = {
            "cls": lambda: hidden.select(1, 0),
            "bert": lambda: self.pooler(hidden),
            "mean": lambda: mean_pool(hidden, marks),
            "max": lambda: max_pool(hidden, marks),
            "attention": lambda: self.pooler(hidden, marks),
        }
        return self.head(self.dropout(pools[self.pooling]()))


def pooled_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Right, with einsum and other fills."""
    rows = logits.shape[0] if logits.ndim else 0
    if logits.shape not in ((rows,), (rows, 1)) or rows == 0:
        raise ValueError(f"logits must have shape (B,) or (B, 1), got {tuple(logits.shape)}")
    if targets.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"targets must be {rows} in one column, got {tuple(targets.shape)}")
    y = targets.flatten().to(logits.dtype)
    if not torch.equal(y * (1 - y), torch.zeros_like(y)):
        raise ValueError("targets must be 0 or 1 everywhere")
    z = logits.flatten()
    return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)).mean()
