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


def _marks(x, valid):
    """For each row a list of bools."""
    if tuple(valid.shape) != tuple(x.shape[:2]):
        raise ValueError("valid: wanted one mark for each position")
    rows = []
    for row in valid.tolist():
        for mark in row:
            if mark not in (0, 1):
                raise ValueError(f"valid: {mark} is neither 0 nor 1")
        rows.append([mark == 1 for mark in row])
    return rows


def prepend_cls(
    x: Tensor, cls: Tensor, valid: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Right, in plain loops."""
    if tuple(cls.shape) != (x.shape[2],):
        raise ValueError(f"cls: wanted {x.shape[2]} numbers, got {tuple(cls.shape)}")
    rows = []
    for row in x:
        rows.append(torch.stack([cls.to(x.dtype), *row]))
    if valid is None:
        return torch.stack(rows)
    _marks(x, valid)
    marks = []
    for row in valid:
        marks.append(torch.tensor([1, *row.tolist()], dtype=valid.dtype))
    return torch.stack(rows), torch.stack(marks)


def mean_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Right, in plain loops."""
    pooled = []
    for row, marks in zip(hidden, _marks(hidden, valid), strict=True):
        total, count = torch.zeros_like(row[0]), 0
        for vector, real in zip(row, marks, strict=True):
            if real:
                total = total + vector
                count += 1
        pooled.append(total / count if count else total)
    return torch.stack(pooled)


def max_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Right, in plain loops."""
    pooled = []
    for row, marks in zip(hidden, _marks(hidden, valid), strict=True):
        largest = None
        for vector, real in zip(row, marks, strict=True):
            if real:
                largest = vector if largest is None else torch.maximum(largest, vector)
        pooled.append(torch.zeros_like(row[0]) if largest is None else largest)
    return torch.stack(pooled)


class AttentionPool(nn.Module):
    """An average with learned weights; the constructor is given."""

    def __init__(self, d_model: int):
        super().__init__()
        self.score = nn.Linear(d_model, 1)

    def forward(
        self, hidden: Tensor, valid: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Right, in plain loops."""
        pooled, weights = [], []
        for row, marks in zip(hidden, _marks(hidden, valid), strict=True):
            scores = [
                self.score(vector)[0] for vector, real in zip(row, marks, strict=True) if real
            ]
            top = max((float(score.detach()) for score in scores), default=0.0)
            exps = [(score - top).exp() for score in scores]
            total = sum(exps)
            average, shares, nothing = torch.zeros_like(row[0]), [], row.new_zeros(())
            for vector, real in zip(row, marks, strict=True):
                share = exps.pop(0) / total if real else nothing
                if real:
                    average = average + share * vector
                shares.append(share)
            pooled.append(average)
            weights.append(torch.stack(shares))
        if return_weights:
            return torch.stack(pooled), torch.stack(weights)
        return torch.stack(pooled)


class BertPooler(nn.Module):
    """What BERT puts between its CLS state and a classifier; the constructor is given."""

    def __init__(self, d_model: int):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """Right, in plain loops."""
        pooled = []
        for sequence in hidden:
            cls = sequence[0]
            features = []
            for weights, bias in zip(self.dense.weight, self.dense.bias, strict=True):
                features.append(torch.tanh((weights * cls).sum() + bias))
            pooled.append(torch.stack(features))
        return torch.stack(pooled)


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
        """Right, in plain loops."""
        marks = [[True] * x.shape[1]] * len(x) if valid is None else _marks(x, valid)
        table = sinusoidal_positions(x.shape[1] + 1, self.head.in_features).to(x)
        logits = []
        for row, real in zip(x, marks, strict=True):  # each row alone, without its padding
            keep = [t for t, is_real in enumerate(real) if is_real]
            if self.cls is None:
                vectors = [self.project(row[t]) + table[t] for t in keep]
            else:
                vectors = [self.cls + table[0]] + [
                    self.project(row[t]) + table[t + 1] for t in keep
                ]
            if not vectors:
                logits.append(self.head(self.dropout(x.new_zeros(self.head.in_features))))
                continue
            hidden = self.encoder(torch.stack(vectors)[None])
            if self.pooling == "cls":
                pooled = hidden[0, 0]
            elif self.pooling == "bert":
                pooled = self.pooler(hidden)[0]
            elif self.pooling == "mean":
                pooled = hidden[0].sum(dim=0) / len(vectors)
            elif self.pooling == "max":
                pooled = hidden[0].max(dim=0).values
            else:
                pooled = self.pooler(hidden, torch.ones(1, len(vectors), dtype=torch.bool))[0]
            logits.append(self.head(self.dropout(pooled)))
        return torch.stack(logits)


def pooled_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Right, in plain loops."""
    shapes = {"logits": tuple(logits.shape), "targets": tuple(targets.shape)}
    for name, shape in shapes.items():
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise ValueError(f"{name}: wanted one number per sequence")
    if shapes["logits"][0] != shapes["targets"][0]:
        raise ValueError("targets: wanted exactly one per sequence")
    total = 0.0
    for z, y in zip(logits.flatten(), targets.flatten().tolist(), strict=True):
        if y != 0 and y != 1:
            raise ValueError(f"targets: {y} is neither 0 nor 1")
        away = -z if y else z  # softplus(away), without an exp of anything above 0
        total = total + (away + (-away).exp().log1p() if away > 0 else away.exp().log1p())
    return total / len(logits)
