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
    """Given: valid as bool (B, T), after checking it.

    Raises:
        ValueError: naming `valid`: not of x's shape (B, T) (a shape that would only broadcast
            counts as wrong), or an entry that is neither 0 nor 1.
    """
    if valid.shape != x.shape[:2]:
        wanted = tuple(x.shape[:2])
        raise ValueError(f"valid must have shape (B, T) = {wanted}, got {tuple(valid.shape)}")
    if not ((valid == 0) | (valid == 1)).all():
        raise ValueError("valid must be bool, or all 0 and 1")
    return valid.bool()


def prepend_cls(
    x: Tensor, cls: Tensor, valid: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Put one vector, the same for all, in front of every sequence.

    out[b] = cls, x[b, 0], ..., x[b, T - 1]

    Args:
        x:     (B, T, D) float.
        cls:   (D,) float, a parameter in most uses.
        valid: None, or (B, T) bool or 0/1 integer, True = a real position, any pattern.

    Returns:
        (B, T + 1, D) in x's dtype, a new tensor, differentiable in x and cls; if valid is given,
        a pair of that and a new valid (B, T + 1) in valid's dtype, in which CLS is real.

    Raises:
        ValueError: naming `cls` (not of shape (D,)) or `valid`; `real_positions` checks that one.

    Example (two positions become three; the second one is padding):
        >>> x, cls = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([7.0, 8.0])
        >>> out, valid = prepend_cls(x, cls, torch.tensor([[1, 0]]))
        >>> out.tolist()
        [[[7.0, 8.0], [1.0, 2.0], [3.0, 4.0]]]
        >>> valid.tolist()
        [[1, 1, 0]]

    Always true:
        * the gradient of cls is the sum over the batch of the gradients at position 0;
        * CLS is real in every row, also where nothing else is.
    """
    # --- solution ---
    B, _, D = x.shape
    if cls.shape != (D,):
        raise ValueError(f"cls must have shape (D,) = ({D},), got {tuple(cls.shape)}")
    if valid is not None:
        real_positions(x, valid)
        valid = torch.cat([valid.new_ones(B, 1), valid], dim=1)  # (B, T+1)
    x = torch.cat([cls.to(x.dtype).expand(B, 1, D), x], dim=1)  # (B, T+1, D)
    return x if valid is None else (x, valid)


def mean_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Average each sequence over its real positions.

    pooled[b] = sum over real t of hidden[b, t] / number of real positions in row b

    Args:
        hidden: (B, T, D) float, T at least 1; finite, also at padding.
        valid:  (B, T) bool or 0/1 integer, True = a real position; left padding, holes and rows
                without any real position are right.

    Returns:
        (B, D) in hidden's dtype, differentiable; zeros in a row without real positions. hidden and
        valid are unchanged.

    Raises:
        ValueError: naming `valid`; `real_positions` checks it.

    Example (row 0 has two real positions on the right; row 1 has none):
        >>> hidden = torch.tensor([[[100.0, 100.0], [2.0, 4.0], [4.0, 8.0]]] * 2)
        >>> mean_pool(hidden, torch.tensor([[0, 1, 1], [0, 0, 0]])).tolist()
        [[3.0, 6.0], [0.0, 0.0]]

    Always true:
        * other values at padding change nothing, and padding has the gradient 0;
        * each real position has the upstream gradient over the number of real ones.
    """
    # --- solution ---
    valid = real_positions(hidden, valid)
    total = (hidden * valid[..., None]).sum(dim=1)  # (B, T, D) -> (B, D)
    return total / valid.sum(dim=1, keepdim=True).clamp(min=1)  # 0 / 1 in an empty row


def max_pool(hidden: Tensor, valid: Tensor) -> Tensor:
    """Take each feature's largest value over the real positions of each sequence.

    pooled[b, d] = max over real t of hidden[b, t, d]

    Args:
        hidden: (B, T, D) float, T at least 1; finite, also at padding, and of any size and sign.
        valid:  (B, T) bool or 0/1 integer, True = a real position; left padding, holes and rows
                without any real position are right.

    Returns:
        (B, D) in hidden's dtype, differentiable (ties may share a gradient or not); zeros in a row
        without real positions. hidden and valid are unchanged.

    Raises:
        ValueError: naming `valid`; `real_positions` checks it.

    Example (each feature's winner stands elsewhere; padding would give 0):
        >>> hidden = torch.tensor([[[-3.0, -1.0], [-2.0, -5.0], [0.0, 0.0]]])
        >>> max_pool(hidden, torch.tensor([[1, 1, 0]])).tolist()
        [[-2.0, -1.0]]

    Always true:
        * other values at padding change nothing, and padding has the gradient 0;
        * the gradient of a feature goes to the position that won it.
    """
    # --- solution ---
    valid = real_positions(hidden, valid)
    largest = hidden.masked_fill(~valid[..., None], -torch.inf).amax(dim=1)  # (B, D)
    return largest.where(valid.any(dim=1, keepdim=True), 0)


class AttentionPool(nn.Module):
    """An average with learned weights; the constructor is given.

    Args:
        d_model: D.

    Attributes:
        score: nn.Linear, D to 1, with bias.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.score = nn.Linear(d_model, 1)

    def forward(
        self, hidden: Tensor, valid: Tensor, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Score each position, turn the scores into weights, average with them.

        weights[b] = softmax over real t of score(hidden[b, t]),   0 at padding
        pooled[b]  = sum over t of weights[b, t] hidden[b, t]

        Args:
            hidden:         (B, T, D) float, T at least 1; finite, also at padding.
            valid:          (B, T) bool or 0/1 integer, True = a real position; left padding, holes
                            and rows without any real position are right.
            return_weights: also return the weights.

        Returns:
            pooled (B, D), or (pooled, weights) with weights (B, T); in hidden's dtype,
            differentiable through values and weights. In a row without real positions both are
            zeros, and all gradients are finite. hidden and valid are unchanged.

        Raises:
            ValueError: naming `valid`; `real_positions` checks it.

        Example (scores 0 and log 3, so weights 1/4 and 3/4; the third position is padding):
            >>> pool = AttentionPool(d_model=2).requires_grad_(False)
            >>> _ = pool.score.weight.copy_(torch.tensor([[1.0, 0.0]])), pool.score.bias.zero_()
            >>> hidden = torch.tensor([[[0.0, 4.0], [1.0986123, 8.0], [9.0, 100.0]]])
            >>> pooled, weights = pool(hidden, torch.tensor([[1, 1, 0]]), return_weights=True)
            >>> weights
            tensor([[0.2500, 0.7500, 0.0000]])
            >>> pooled[:, 1]  # 4 / 4 + 8 * 3/4
            tensor([7.0000])

        Always true:
            * the weights of a row sum to one if it has a real position;
            * equal scores give mean_pool; score's bias changes nothing.
        """
        # --- solution ---
        valid = real_positions(hidden, valid)
        scores = self.score(hidden).squeeze(-1)  # (B, T)
        # a finite fill: a softmax over nothing but -inf is NaN, and so is its gradient
        scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=1) * valid
        pooled = (weights[..., None] * hidden).sum(dim=1)  # (B, T, 1) * (B, T, D) -> (B, D)
        return (pooled, weights) if return_weights else pooled


class BertPooler(nn.Module):
    """What BERT puts between its CLS state and a classifier; the constructor is given.

    Args:
        d_model: D.

    Attributes:
        dense: nn.Linear, D to D, with bias.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        """Take the first position of every sequence, all its features, through dense and tanh.

        pooled[b] = tanh(dense(hidden[b, 0]))

        Args:
            hidden: (B, T, D) float, T at least 1; batch first.

        Returns:
            (B, D) in hidden's dtype, differentiable, each entry between -1 and 1. hidden is
            unchanged.

        Example (W = diag(1, -1), no bias: tanh 1 and tanh -2):
            >>> pooler = BertPooler(d_model=2).requires_grad_(False)
            >>> _ = pooler.dense.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
            >>> _ = pooler.dense.bias.zero_()
            >>> pooler(torch.tensor([[[1.0, 2.0], [9.0, 9.0]]]))
            tensor([[ 0.7616, -0.9640]])

        Always true:
            * no position but the first plays a part: what CLS knows, the encoder has put there.
        """
        # --- solution ---
        return self.dense(hidden[:, 0]).tanh()  # (B, T, D) -> (B, D)


class SequenceBinaryClassifier(nn.Module):
    """An encoder, a pooling and one logit for each sequence; the constructor is given.

    Args:
        input_dim: I, features of each position of the input.
        d_model:   D.
        n_heads:   heads of the encoder; divides d_model.
        n_layers:  layers of the encoder.
        pooling:   "cls", "mean", "max", "attention" or "bert".
        d_ff:      width of the encoder's feed-forward.
        dropout:   probability, in the encoder and on the pooled vector.

    Attributes:
        pooling: the word.
        project: nn.Linear, I to D.
        cls:     nn.Parameter (D,) for "cls" and "bert", else None.
        encoder: nn.TransformerEncoder, batch first, post-norm.
        pooler:  AttentionPool for "attention", BertPooler for "bert", else None.
        dropout: nn.Dropout, for the pooled vector.
        head:    nn.Linear, D to 1.

    Raises:
        ValueError: naming `pooling`: another word.
    """

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
        """Give one logit for each sequence.

        hidden = project(x), with CLS in front for "cls" and "bert"
        hidden = encoder(hidden + sinusoidal positions), padding blocked
        pooled = "cls": hidden at CLS         "bert": BertPooler of hidden
                 "mean", "max", "attention": that pool over the real positions
        logits = head(dropout(pooled))

        Args:
            x:     (B, T, I) float, T at least 1; finite, also at padding.
            valid: None, all real; or (B, T) bool or 0/1 integer, True = a real position; left
                   padding, holes and rows without any real position are right.

        Returns:
            (B, 1) in x's dtype: logits and not probabilities. A row without real positions gives a
            finite logit with finite gradients, in training and in evaluation: of "mean", "max" and
            "attention" the head's bias; of "cls" and "bert" what CLS alone gives. x and valid are
            unchanged.

        Positions count from 0 at the first column, padding included; CLS, where there is one,
        stands at 0 and the first column at 1.

        Raises:
            ValueError: naming `valid`; `real_positions` checks it.

        Example (1000 positions of 2 features in, one logit out):
            >>> model = SequenceBinaryClassifier()
            >>> model(torch.zeros(3, 1000, 2)).shape
            torch.Size([3, 1])

        Example (all else is 0, so the encoder norms the positions, (0, 1) to (-1, 1) and
        (sin 1, cos 1) to (1, -1); the head adds 10 to feature 0; row 1 has two real positions):
            >>> model = SequenceBinaryClassifier(1, 2, 1, 1, "max").requires_grad_(False)
            >>> for name, parameter in model.named_parameters():
            ...     _ = parameter.fill_("norm" in name and "weight" in name)
            >>> _ = model.head.weight.copy_(torch.tensor([[1.0, 0.0]])), model.head.bias.fill_(10.0)
            >>> model(torch.zeros(2, 2, 1), torch.tensor([[1, 0], [1, 1]]))
            tensor([[ 9.0000],
                    [11.0000]])

        Always true:
            * other values at padding and more padding on the right change no logit;
            * a sequence's logit does not depend on its neighbors in the batch.
        """
        # --- solution ---
        B, T, _ = x.shape
        valid = x.new_ones(B, T).bool() if valid is None else real_positions(x, valid)
        hidden = self.project(x)  # (B, T, D)
        if self.cls is not None:
            hidden, valid = prepend_cls(hidden, self.cls, valid)  # (B, T+1, D), (B, T+1)
        hidden = hidden + sinusoidal_positions(*hidden.shape[1:]).to(hidden)
        # a row without real positions reads its padding, and no pool reads it
        blocked = ~valid & valid.any(dim=1, keepdim=True)
        hidden = self.encoder(hidden, src_key_padding_mask=blocked)
        match self.pooling:
            case "cls":
                pooled = hidden[:, 0]  # (B, D)
            case "mean":
                pooled = mean_pool(hidden, valid)
            case "max":
                pooled = max_pool(hidden, valid)
            case "attention":
                pooled = self.pooler(hidden, valid)
            case "bert":
                pooled = self.pooler(hidden)
        return self.head(self.dropout(pooled))  # (B, 1)


def pooled_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of one logit for each sequence.

    loss = mean over b of log(1 + exp(z)) - y z,   z = logits[b], y = targets[b]

    Args:
        logits:  (B, 1) or (B,) float, B at least 1; not probabilities, and as large as +-200.
        targets: (B, 1) or (B,), each 0 or 1, of any dtype; its shape need not be that of logits.

    Returns:
        () in logits' dtype, in nats; differentiable. What came in is unchanged.

    Raises:
        ValueError: naming `logits` (another shape) or `targets` (another shape, another number of
            rows, a value that is neither 0 nor 1).

    Example (log(1 + e^-2); wrong by 200 costs 200):
        >>> pooled_loss(torch.tensor([[2.0]]), torch.tensor([1]))
        tensor(0.1269)
        >>> pooled_loss(torch.tensor([[200.0]]), torch.tensor([False]))
        tensor(200.)

    Always true:
        * a logit of 0 costs log 2;
        * the gradient of a logit is (sigmoid(z) - y) / B, so never larger than 1 / B.
    """
    # --- solution ---
    for name, column in (("logits", logits), ("targets", targets)):
        if column.ndim not in (1, 2) or column.shape[1:] not in ((), (1,)):
            raise ValueError(f"{name} must have shape (B, 1) or (B,), got {tuple(column.shape)}")
    if len(targets) != len(logits):
        raise ValueError(f"targets must have {len(logits)} rows as logits has, got {len(targets)}")
    if not ((targets == 0) | (targets == 1)).all():
        raise ValueError("targets must be 0 or 1")
    z, y = logits.reshape(-1), targets.reshape(-1).to(logits.dtype)  # (B,) each
    return F.binary_cross_entropy_with_logits(z, y)
