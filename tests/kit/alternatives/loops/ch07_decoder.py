"""Chapter 7: the trainable decoder (torch).

A stack of blocks between an embedding and a head, a loss over every position, and the instruments
that tell why such a model does not learn: does the optimizer hold its parameters, do gradients
reach them, does it fit one fixed batch, and can that batch be fitted at all?

Letters: B batch, T positions, D width, V vocabulary. Targets lie on the positions that predict
them, and -100 is "not scored".

Sources: Radford et al. 2019 (GPT-2: learned positions, final norm, standard deviation 0.02); Xiong
et al. 2020, arXiv:2002.04745 (pre-LN); Loshchilov and Hutter 2017, arXiv:1711.05101 (AdamW).
"""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from solutions.ch05_block import TransformerBlock


@dataclass
class Config:
    """The sizes of a model."""

    vocab_size: int
    block_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    dropout: float = 0.0

    def __post_init__(self):
        """Right, field by field."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "dropout":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{field.name}: {value!r} is no whole number")
            least = 3 if field.name == "vocab_size" else 1
            if value < least:
                raise ValueError(f"{field.name}: {value} is less than {least}")
        width_of_a_head = self.d_model // self.n_heads
        if width_of_a_head * self.n_heads != self.d_model:
            raise ValueError(f"n_heads: {self.n_heads} do not share {self.d_model} evenly")
        if math.isnan(self.dropout) or self.dropout < 0 or self.dropout >= 1:
            raise ValueError(f"dropout: {self.dropout} is no probability below 1")


class TransformerLM(nn.Module):
    """A decoder-only language model; the constructor is given."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.block_size, config.d_model)
        self.embedding_dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(config.d_model, config.n_heads, config.d_ff, config.dropout)
            for _ in range(config.n_layers)
        )
        self.final_norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        past_key_values: None = None,
        use_cache: bool = False,
    ) -> dict[str, Tensor | None]:
        """Right, sample by sample and token by token."""
        if use_cache:
            raise NotImplementedError("use_cache: see chapter 10")
        if past_key_values is not None:
            raise NotImplementedError("past_key_values: see chapter 10")
        if tokens.dtype is not torch.long:
            raise ValueError(f"tokens: wanted int64, got {tokens.dtype}")
        if tokens.dim() != 2 or tokens.numel() == 0:
            raise ValueError(f"tokens: wanted at least one row and column, got {tokens.shape}")
        if tokens.size(1) > self.config.block_size:
            raise ValueError(f"tokens: {tokens.size(1)} do not fit {self.config.block_size} places")
        samples = []
        for row in tokens.tolist():
            vectors = []
            for place, token in enumerate(row):
                if token < 0 or token >= self.config.vocab_size:
                    raise KeyError(token)
                vector = self.token_embedding.weight[token]
                vectors.append(vector + self.position_embedding.weight[place])
            samples.append(torch.stack(vectors))
        stream = self.embedding_dropout(torch.stack(samples))
        rows = []
        for sample in stream:
            hidden = sample[None]
            for i in range(self.config.n_layers):
                hidden = self.blocks[i](hidden)[0]
            words = [self.head(self.final_norm(vector)) for vector in hidden[0]]
            rows.append(torch.stack(words))
        logits = torch.stack(rows)
        loss = None
        if targets is not None:
            loss = token_loss(logits, targets)
        return {"logits": logits, "loss": loss, "past_key_values": None}


def _check_targets(targets, B, T):
    if targets.dtype is not torch.long:
        raise ValueError(f"targets: wanted int64, got {targets.dtype}")
    if targets.dim() != 2 or targets.size(0) != B or targets.size(1) != T:
        raise ValueError(f"targets: wanted ({B}, {T}), got {tuple(targets.shape)}")
    if targets.ne(-100).sum() == 0:
        raise ValueError("targets: nothing is scored")


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Right, place by place."""
    B, T, V = logits.shape
    _check_targets(targets, B, T)
    costs = []
    for b, row in enumerate(targets.tolist()):
        for t, label in enumerate(row):
            if label == -100:
                continue
            if not 0 <= label < V:
                raise LookupError(f"targets: {label} is outside 0..{V - 1}")
            costs.append(torch.logsumexp(logits[b, t], dim=0) - logits[b, t, label])
    return sum(costs) / len(costs)


def optimizer_mismatch(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[str], list[str]]:
    """Right, pair by pair."""
    mine, theirs = list(model.named_parameters()), []
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            theirs.append((f"group {g}, parameter {i}", parameter))

    def without_partner(these, those):
        lonely = []
        for name, parameter in these:
            found = False
            for _, other in those:
                if parameter is other:
                    found = True
            if not found and parameter.requires_grad:
                lonely.append(name)
        return lonely

    return without_partner(mine, theirs), without_partner(theirs, mine)


def gradient_report(model: nn.Module) -> dict[str, dict[str, str | float | None]]:
    """Right, entry by entry."""
    report = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            report[name] = {"status": "missing", "norm": None}
            continue
        status, entries = "zero", parameter.grad.flatten().tolist()
        for entry in entries:
            if math.isinf(entry) or math.isnan(entry):
                status = "non-finite"
            elif entry != 0 and status == "zero":
                status = "ok"
        report[name] = {"status": status, "norm": math.sqrt(sum(e * e for e in entries))}
    return report


def fit_fixed_batch(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    steps: int = 120,
    lr: float = 0.02,
    max_norm: float = 1.0,
) -> list[float]:
    """Right, with AdamW written out."""
    trained = [p for p in model.parameters() if p.requires_grad]
    first = [torch.zeros_like(p) for p in trained]
    second = [torch.zeros_like(p) for p in trained]
    losses = []
    for step in range(1, steps + 1):
        for p in trained:
            p.grad = None
        loss = model(tokens, targets)["loss"]
        loss.backward()
        losses.append(float(loss))
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trained if p.grad is not None))
        scale = 1.0 if norm <= max_norm else max_norm / norm
        with torch.no_grad():
            for p, m, v in zip(trained, first, second, strict=True):
                if p.grad is None:
                    continue
                g = p.grad * scale
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    losses.append(float(model(tokens, targets)["loss"].detach()))
    return losses


def conflict_floor(tokens: Tensor, targets: Tensor) -> float:
    """Right, place against place."""
    _check_targets(targets, *tokens.shape)
    places = []
    for b in range(tokens.size(0)):
        for t in range(tokens.size(1)):
            if targets[b, t] != -100:
                places.append((tokens[b, : t + 1].tolist(), int(targets[b, t])))
    total = 0.0
    for prefix, label in places:
        alike = [other for path, other in places if path == prefix]
        total += math.log(len(alike)) - math.log(alike.count(label))
    return total / len(places)
