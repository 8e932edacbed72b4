"""Chapter 7: the trainable decoder (torch).

A stack of blocks between an embedding and a head, a loss over every position, and the instruments
that tell why such a model does not learn: does the optimizer hold its parameters, do gradients
reach them, does it fit one fixed batch, and can that batch be fitted at all?

Letters: B batch, T positions, D width, V vocabulary. Targets lie on the positions that predict
them, and -100 is "not scored".

Sources: Radford et al. 2019 (GPT-2: learned positions, final norm, standard deviation 0.02); Xiong
et al. 2020, arXiv:2002.04745 (pre-LN); Loshchilov and Hutter 2017, arXiv:1711.05101 (AdamW).
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, one_hot

from solutions.ch05_block import TransformerBlock

UNSCORED = -100


@dataclass(frozen=True)
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
        """Right, with all sizes at once."""
        *sizes, dropout = astuple(self)
        for name, size in zip(self.__dataclass_fields__, sizes, strict=False):
            if type(size) != int or not size > 0:  # noqa: E721
                raise ValueError(f"{name} is {size!r}, must be a positive int")
        ids, _, width, heads, *_ = sizes
        if ids <= 2:
            raise ValueError(f"vocab_size is {ids}: there are three reserved ids")
        if divmod(width, heads)[1] != 0:
            raise ValueError(f"n_heads is {heads}, which does not divide {width}")
        if not (dropout >= 0.0 and dropout < 1.0):
            raise ValueError(f"dropout is {dropout}, must be at least 0 and below 1")


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
        """Right, with one-hot products."""
        if past_key_values is not None or use_cache:
            raise NotImplementedError("no cache before chapter 10: past_key_values, use_cache")
        if tokens.ndim != 2 or 0 in tokens.shape or tokens.shape[1] > self.config.block_size:
            raise ValueError(f"tokens must fit (B, {self.config.block_size}): {tokens.shape}")
        if tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64, not {tokens.dtype}")
        table, places = self.token_embedding.weight, self.position_embedding.weight
        vectors = one_hot(tokens, len(table)).to(table.dtype)
        hidden = torch.einsum("btv,vd->btd", vectors, table) + places[None, : tokens.shape[1]]
        hidden = nn.functional.dropout(hidden, self.embedding_dropout.p, self.training)
        for block in self.blocks.children():
            hidden = block.forward(hidden, None, False)[0]
        norm = self.final_norm
        hidden = layer_norm(hidden, hidden.shape[2:], norm.weight, norm.bias, norm.eps)
        logits = torch.einsum("btd,vd->btv", hidden, self.head.weight)
        out = {"logits": logits, "past_key_values": None}
        return out | {"loss": token_loss(logits, targets) if targets is not None else None}


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Right, with one-hot targets."""
    if targets.dtype != torch.int64 or targets.shape != logits.shape[:2]:
        raise ValueError(f"targets must be int64 {logits.shape[:2]}, not {targets.shape}")
    scored = targets != UNSCORED
    if not scored.any():
        raise ValueError("targets has no position that counts")
    wanted = one_hot(targets.where(scored, torch.zeros_like(targets)), logits.shape[2])
    weights = wanted.to(logits.dtype) * scored[..., None] / scored.sum()
    return -torch.einsum("btv,btv->", logits.log_softmax(dim=-1), weights)


def optimizer_mismatch(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[str], list[str]]:
    """Right, with dicts that are keyed by the object."""
    wanted = {p: name for name, p in model.named_parameters()}
    held = {
        p: f"group {g}, parameter {i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, p in enumerate(group["params"])
    }

    def only(first, second):
        return [label for p, label in first.items() if p not in second and p.requires_grad]

    return only(wanted, held), only(held, wanted)


def gradient_report(model: nn.Module) -> dict[str, dict[str, str | float | None]]:
    """Right, by sums."""

    def entry(grad):
        if grad is None:
            return {"norm": None, "status": "missing"}
        wide = grad.to(torch.float64)
        norm = torch.einsum("i,i->", wide.flatten(), wide.flatten()).sqrt().item()
        if bool((wide - wide != 0).any()):
            return {"norm": norm, "status": "non-finite"}
        return {"norm": norm, "status": "ok" if wide.count_nonzero() else "zero"}

    return {name: entry(parameter.grad) for name, parameter in model.named_parameters()}


def fit_fixed_batch(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    steps: int = 120,
    lr: float = 0.02,
    max_norm: float = 1.0,
) -> list[float]:
    """Right, with Adam, which is AdamW without decay, and gradients zeroed after each step."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr)
    model.zero_grad(set_to_none=False)

    def train() -> Iterator[float]:
        for _ in range(steps):
            loss = model(tokens, targets)["loss"]
            yield loss.item()
            loss.backward()
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
            for g in grads:
                g.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield model(tokens, targets)["loss"].item()

    return list(train())


def conflict_floor(tokens: Tensor, targets: Tensor) -> float:
    """Right, with a matrix of which places share a prefix."""
    if targets.shape != tokens.shape or targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64 {tuple(tokens.shape)}")
    if torch.all(targets == UNSCORED):
        raise ValueError("targets: no place is scored")
    same = tokens[:, None] == tokens[None]  # (B, B, T)
    same_prefix = same.cumprod(dim=-1).bool()
    scored = targets != UNSCORED
    same_target = targets[:, None] == targets[None]
    shared = (same_prefix & scored[None]).sum(dim=1).double()  # (B, T)
    agreed = (same_prefix & same_target).sum(dim=1).double()
    return (shared.log() - agreed.log())[scored].mean().item()
