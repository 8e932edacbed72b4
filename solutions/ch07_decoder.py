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
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from solutions.ch05_block import TransformerBlock  # given

NOT_SCORED = -100


def check_tokens(tokens: Tensor, block_size: int) -> None:
    """Given: refuse what is no batch of ids, or longer than the position table.

    Raises:
        ValueError: naming `tokens`: not int64 of shape (B, T), no row, no column, or T above
            block_size.
    """
    if tokens.dtype != torch.int64 or tokens.ndim != 2:
        raise ValueError(
            f"tokens must be int64 of shape (B, T), got {tokens.dtype} {tuple(tokens.shape)}"
        )
    B, T = tokens.shape
    if B == 0 or T == 0:
        raise ValueError(f"tokens must have at least one row and one column, got ({B}, {T})")
    if T > block_size:
        raise ValueError(f"tokens have {T} positions, block_size is {block_size}; cut them first")


def check_targets(targets: Tensor, shape: tuple[int, int]) -> None:
    """Given: refuse targets that do not lie on the positions one by one, or that score none.

    Raises:
        ValueError: naming `targets`: not int64, not of this shape (B, T), or all -100.
    """
    if targets.dtype != torch.int64 or targets.shape != shape:
        raise ValueError(
            f"targets must be int64 of shape (B, T) = {tuple(shape)}, "
            f"got {targets.dtype} {tuple(targets.shape)}"
        )
    if (targets == NOT_SCORED).all():
        raise ValueError("targets are all -100: a mean over no position is no number")


@dataclass(frozen=True)
class Config:
    """The sizes of a `TransformerLM`; every one is checked when the object is made.

    Args:
        vocab_size: V.
        block_size: the number of positions, the longest context.
        d_model:    D, the width of the stream.
        n_heads:    heads, divides d_model.
        n_layers:   blocks.
        d_ff:       the width inside the feed-forward.
        dropout:    probability, for the embedding and inside the blocks.
    """

    vocab_size: int
    block_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    dropout: float = 0.0

    def __post_init__(self):
        """Refuse a configuration that no model can have; the dataclass calls this by itself.

        Raises:
            ValueError: naming the field: a size (all fields but dropout) that is not an int or is
                below 1, where True and 2.0 are no ints; `vocab_size` below 3 (unknown, begin and
                end take three ids); `n_heads` that does not divide d_model; `dropout` outside
                0 <= dropout < 1, NaN included.

        Example (4 does not divide 6):
            >>> Config(vocab_size=5, block_size=8, d_model=6, n_heads=4, n_layers=2, d_ff=12)
            Traceback (most recent call last):
            ValueError: n_heads must divide d_model = 6, got n_heads=4

        Always true:
            * a model can be built from every Config that exists.
        """
        # --- solution ---
        for name in ("vocab_size", "block_size", "d_model", "n_heads", "n_layers", "d_ff"):
            size = getattr(self, name)
            if type(size) is not int or size < 1:  # True is an instance of int
                raise ValueError(f"{name} must be a positive int, got {size!r}")
        if self.vocab_size < 3:
            raise ValueError(f"vocab_size must be at least 3, got {self.vocab_size}")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads must divide d_model = {self.d_model}, got n_heads={self.n_heads}"
            )
        if not 0 <= self.dropout < 1:  # NaN fails every comparison, so it ends here too
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


class TransformerLM(nn.Module):
    """A decoder-only language model; the constructor is given.

    Args:
        config: Config.

    Attributes:
        config:             as given.
        token_embedding:    nn.Embedding, V rows.
        position_embedding: nn.Embedding, block_size rows, learned.
        embedding_dropout:  nn.Dropout.
        blocks:             nn.ModuleList of n_layers TransformerBlock (chapter 5), each with
                            parameters of its own.
        final_norm:         nn.LayerNorm.
        head:               nn.Linear from D to V, no bias, not tied to the token embedding.

    Linear and embedding weights start normal with standard deviation 0.02, linear biases at 0.
    """

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
        """Predict the next token at every position, and score the predictions if targets are given.

        hidden = dropout(token_embedding[tokens] + position_embedding[0 .. T-1])
        hidden = block(hidden)    for each block in turn
        logits = head(final_norm(hidden))
        loss   = token_loss(logits, targets)

        Args:
            tokens:          (B, T) int64 in 0..V-1, T at most block_size.
            targets:         None, or (B, T) int64: what each position should predict, already
                             aligned, -100 where nothing is scored.
            past_key_values: None. Chapter 10 passes keys and values of earlier tokens here.
            use_cache:       False. Chapter 10 asks for this call's keys and values here.

        Returns:
            dict of "logits" (B, T, V), at every position and in the graph, with targets or
            without; "loss", a scalar in the graph, or None without targets; "past_key_values", None
            until chapter 10. Dropout acts in training only. tokens and targets are unchanged.

        Raises:
            ValueError: naming `tokens` (`check_tokens` checks them) or `targets` (as `token_loss`
                does).
            NotImplementedError: with "chapter 10" in the message, if past_key_values is not None or
                use_cache is true: ignoring them would give a wrong answer.
            any exception, for an id outside 0..V-1.

        Example (positions 0; attention and feed-forward give 0; embeddings (1, 0) and (0, 1); the
        norm makes them (a, -a) and (-a, a), a = 0.5 / sqrt(0.25 + 1e-5); the head's rows are
        (1, 0), (0, 1), (0, 0)):
            >>> config = Config(3, block_size=2, d_model=2, n_heads=1, n_layers=2, d_ff=2)
            >>> model = TransformerLM(config).requires_grad_(False)
            >>> _ = model.position_embedding.weight.zero_()
            >>> for block in model.blocks:
            ...     _ = block.attention.o_proj.weight.zero_()
            ...     _ = block.feedforward.down_proj.weight.zero_()
            >>> _ = model.token_embedding.weight.copy_(torch.eye(3, 2))
            >>> _ = model.head.weight.copy_(torch.eye(3, 2))
            >>> out = model(torch.tensor([[0, 1]]), targets=torch.tensor([[1, 0]]))
            >>> out["logits"]
            tensor([[[ 1.0000, -1.0000,  0.0000],
                     [-1.0000,  1.0000,  0.0000]]])
            >>> out["loss"]  # log(e^a + e^-a + 1) + a
            tensor(2.4076)

        Always true:
            * logits[:, t] depends on tokens[:, : t + 1] alone;
            * the samples of a batch do not see each other;
            * in evaluation two calls on the same input agree exactly.
        """
        # --- solution ---
        if past_key_values is not None or use_cache:
            raise NotImplementedError("past_key_values and use_cache belong to chapter 10")
        check_tokens(tokens, self.config.block_size)
        T = tokens.shape[1]
        places = torch.arange(T, device=tokens.device)  # (T,)
        hidden = self.token_embedding(tokens) + self.position_embedding(places)  # (B, T, D)
        hidden = self.embedding_dropout(hidden)
        for block in self.blocks:
            hidden, _ = block(hidden)
        logits = self.head(self.final_norm(hidden))  # (B, T, V)
        loss = None if targets is None else token_loss(logits, targets)
        return {"logits": logits, "loss": loss, "past_key_values": None}


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the scored positions of a whole batch.

    loss = sum over scored (b, t) of -log softmax(logits[b, t])[targets[b, t]] / number scored

    Args:
        logits:  (B, T, V) float, not probabilities; may be as large as +-1000.
        targets: (B, T) int64 in 0..V-1, or -100 for "not scored". logits[b, t] predicts
                 targets[b, t]: whoever made the batch has shifted it, nothing is shifted here.

    Returns:
        scalar in logits' dtype, in the graph, in nats. logits and targets are unchanged.

    Raises:
        ValueError: naming `targets`; `check_targets` checks them.
        any exception, for a scored target outside 0..V-1.

    F.cross_entropy is allowed.

    Example (softmax of [ln 1, ln 4] is [1/5, 4/5]; the middle position is not scored):
        >>> logits = torch.tensor([[[1.0, 4.0], [9.0, 9.0], [1.0, 4.0]]]).log()
        >>> token_loss(logits, torch.tensor([[1, -100, 0]]))  # (-log 4/5 - log 1/5) / 2
        tensor(0.9163)

    Always true:
        * equal logits cost log V;
        * logits at positions that are not scored change nothing.
    """
    # --- solution ---
    check_targets(targets, logits.shape[:-1])
    rows, labels = logits.flatten(0, 1), targets.flatten()  # (B*T, V), (B*T,)
    return F.cross_entropy(rows, labels, ignore_index=NOT_SCORED)


def optimizer_mismatch(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[str], list[str]]:
    """Compare what an optimizer updates with what a model wants updated.

    Args:
        model:     any module.
        optimizer: any optimizer; only its param_groups are read, a list of dicts with "params".

    Returns:
        (not_held, not_in_model). not_held: the names of parameters that no group holds, as in
        model.named_parameters() and in that order; no step will move them. not_in_model: for each
        parameter of a group that is none of the model's, "group g, parameter i", both counted from
        0, in the optimizer's order; steps move it, and nobody reads it. It is the object that
        counts: an equal tensor is another parameter. Frozen parameters (requires_grad is False) are
        in neither list. Nothing is changed.

    Example (a layer is replaced after the optimizer was built):
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model[1] = nn.Linear(3, 5, bias=False)
        >>> optimizer_mismatch(model, optimizer)
        (['1.weight'], ['group 0, parameter 2', 'group 0, parameter 3'])

    Always true:
        * an optimizer just built from model.parameters() gives ([], []).
    """
    # --- solution ---
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    owned = {id(p) for p in model.parameters()}
    not_held = [
        name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held
    ]
    not_in_model = [
        f"group {g}, parameter {i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, p in enumerate(group["params"])
        if p.requires_grad and id(p) not in owned
    ]
    return not_held, not_in_model


def gradient_report(model: nn.Module) -> dict[str, dict[str, str | float | None]]:
    """Say of each parameter whether a gradient has reached it.

    Args:
        model: any module, usually after backward().

    Returns:
        {name: {"status": .., "norm": ..}} for every parameter, frozen ones too, named and ordered
        as in model.named_parameters(). The status, the first that applies:
            "missing":    there is no gradient; norm is None;
            "non-finite": an entry is NaN or infinite; norm is NaN or infinite;
            "zero":       every entry is 0; norm is 0.0. A row of zeros is legal: the embedding of
                          an absent token has one;
            "ok":         anything else.
        norm is a float, the root of the sum of squares, computed in float64: float32 would square
        1e-30 to 0 and 1e30 to infinity. Nothing is changed.

    Example (3-4-5):
        >>> model = nn.ParameterDict({"a": torch.zeros(2), "b": torch.zeros(2)})
        >>> model["a"].grad = torch.tensor([3.0, -4.0])
        >>> gradient_report(model)
        {'a': {'status': 'ok', 'norm': 5.0}, 'b': {'status': 'missing', 'norm': None}}

    Always true:
        * "zero" is not "missing": a path there is, and nothing comes along it.
    """
    # --- solution ---
    report = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if grad is None:
            status = "missing"
        elif not grad.isfinite().all():
            status = "non-finite"
        else:
            status = "ok" if grad.any() else "zero"
        norm = None if grad is None else grad.double().norm().item()
        report[name] = {"status": status, "norm": norm}
    return report


def fit_fixed_batch(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    steps: int = 120,
    lr: float = 0.02,
    max_norm: float = 1.0,
) -> list[float]:
    """Train a model on one batch again and again: the first test of anything that should learn.

    A step: the batch's loss, its gradients (nothing left of earlier ones), all of them together
    scaled down to max_norm if their common norm is above it, then AdamW.

    Args:
        model:    called as model(tokens, targets)["loss"], like `TransformerLM`; trained in place.
        tokens:   (B, T) int64.
        targets:  (B, T) int64, -100 where nothing is scored.
        steps:    0 or more.
        lr:       the learning rate.
        max_norm: the largest norm of all gradients taken as one vector.

    Returns:
        steps + 1 floats: the loss before each step, then the loss after the last one. AdamW has no
        weight decay and is otherwise as torch.optim.AdamW by default; it starts anew in each call.
        The model's mode is left as it is; with dropout the losses are noise.

    Raises:
        what the model refuses.

    Example (a head of zeros costs log 3; what two positions should say is soon known by heart):
        >>> _ = torch.manual_seed(7)
        >>> model = TransformerLM(Config(3, 2, d_model=8, n_heads=2, n_layers=1, d_ff=16))
        >>> _ = nn.init.zeros_(model.head.weight)
        >>> tokens, targets = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
        >>> losses = fit_fixed_batch(model, tokens, targets, steps=60)
        >>> len(losses), round(losses[0], 4), losses[-1] < 0.1
        (61, 1.0986, True)

    Always true:
        * no loss is below `conflict_floor(tokens, targets)`, whatever the model (without dropout).
    """
    # --- solution ---
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        loss = model(tokens, targets)["loss"]
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    with torch.no_grad():
        losses.append(model(tokens, targets)["loss"].item())
    return losses


def conflict_floor(tokens: Tensor, targets: Tensor) -> float:
    """The lowest mean loss that any causal model can reach on this batch.

    At position t a model knows tokens[b, : t + 1] and nothing else, so where that prefix is the
    same, its prediction is the same. The best one is the share of each target among the places
    with that prefix:

    floor = sum over scored (b, t) of -log(share of targets[b, t] at its prefix) / number scored

    Args:
        tokens:  (B, T) int64.
        targets: (B, T) int64, already aligned, -100 where nothing is scored.

    Returns:
        float, in nats; 0 if no two scored places contradict each other.

    Raises:
        ValueError: naming `targets`; `check_targets` checks them.

    Example (the prefix 0, 1 is followed once by 2 and once by 0: log 2 at two of four places):
        >>> tokens, targets = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 2], [1, 0]])
        >>> round(conflict_floor(tokens, targets), 7)
        0.3465736

    Always true:
        * a target under another prefix, or at another length, contradicts nothing;
        * at a prefix seen n times the cost is between 0 and log n.
    """
    # --- solution ---
    check_targets(targets, tokens.shape)
    seen = defaultdict(Counter)  # for each prefix, how often each target follows
    for row, labels in zip(tokens.tolist(), targets.tolist(), strict=True):
        for t, label in enumerate(labels):
            if label != NOT_SCORED:
                seen[tuple(row[: t + 1])][label] += 1
    total = 0.0
    for counts in seen.values():
        n = counts.total()
        total -= sum(count * math.log(count / n) for count in counts.values())
    return total / sum(counts.total() for counts in seen.values())
