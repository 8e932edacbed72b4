"""Chapter 5: the transformer block (torch).

Layer norm, GELU and the feed-forward network; then the pre-LN block, which adds attention and
feed-forward to a stream that nothing else touches; then what a stack of blocks costs.

Letters: B batch, T positions, D width, F width of the feed-forward, V vocabulary.

Sources: Ba et al. 2016, arXiv:1607.06450 (layer norm); Hendrycks and Gimpel 2016,
arXiv:1606.08415 (GELU); Vaswani et al. 2017, arXiv:1706.03762, section 3.3 (feed-forward); Xiong
et al. 2020, arXiv:2002.04745 (pre-LN).
"""

import math

import torch
from torch import Tensor, nn

from solutions.ch02_attention import causal_mask  # given
from solutions.ch03_multihead import MultiHeadAttention  # given


def check_affine(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Given: refuse a scale or a shift that would broadcast.

    Raises:
        ValueError: naming `weight` or `bias`: not of shape (D,).
    """
    for name, parameter in {"weight": weight, "bias": bias}.items():
        if parameter.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape (D,) = {tuple(x.shape[-1:])}, got {tuple(parameter.shape)}"
            )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Give each token mean 0 and variance 1 over its features, then scale and shift.

    y = weight * (x - mean) / sqrt(var + eps) + bias,   var = mean((x - mean)**2)

    Args:
        x:      (..., D) float32 or float64, any leading axes or none.
        weight: (D,) float, the scale.
        bias:   (D,) float, the shift.
        eps:    added to the variance, inside the square root.

    Returns:
        (..., D) in x's dtype, a new tensor; differentiable, through mean and variance too. What
        came in is unchanged.

    Raises:
        ValueError: naming `weight` or `bias`; `check_affine` checks them.

    Not allowed: nn.LayerNorm, F.layer_norm and the functions below them.

    Example (mean 3, variance 4):
        >>> x = torch.tensor([1.0, 1.0, 5.0, 5.0])
        >>> layer_norm(x, weight=torch.ones(4), bias=torch.zeros(4))
        tensor([-1.0000, -1.0000,  1.0000,  1.0000])

    Always true:
        * a number added to all features of a token changes nothing;
        * a token whose features are all equal gives bias;
        * no token sees another: neither the batch nor the sequence takes part in mean and var.
    """
    raise NotImplementedError("ch05 layer_norm")


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiply each number by the probability that a standard normal variable is below it.

    "none": x P(x),   P(x) = (1 + erf(x / sqrt(2))) / 2
    "tanh": x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2

    Args:
        x:           (...) float.
        approximate: "none", the exact function, or "tanh", the approximation of GPT-2.

    Returns:
        (...) in x's shape and dtype, a new tensor; differentiable. x is unchanged.

    Raises:
        ValueError: naming `approximate`: another word.

    Not allowed: F.gelu, nn.GELU and the functions below them. erf and tanh are.

    Example (84.13 % of a normal distribution lie below 1, 15.87 % below -1):
        >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1587,  0.0000,  0.8413])
        >>> gelu(torch.tensor([-1.0, 0.0, 1.0]), approximate="tanh")
        tensor([-0.1588,  0.0000,  0.8412])

    Always true:
        * gelu(x) - gelu(-x) = x, as for relu;
        * the two differ by less than 5e-4 anywhere.
    """
    raise NotImplementedError("ch05 gelu")


class FeedForward(nn.Module):
    """Two layers that treat every token alike and alone; the constructor is given.

    Args:
        d_model: D, the width of what comes in and goes out.
        d_ff:    F, the width between, often 4 D.
        dropout: probability with which a number of the result is dropped in training.

    Attributes:
        up_proj:   nn.Linear, D to F, with bias.
        down_proj: nn.Linear, F to D, with bias.
        dropout:   nn.Dropout.
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Widen each token, bend it, bring it back to its width.

        out = dropout(down_proj(gelu(up_proj(x)))),   gelu the exact one

        Args:
            x: (..., D) float, any leading axes or none.

        Returns:
            (..., D) in x's dtype. Dropout acts once, on the result, and in training only. There is
            no residual here: the block adds it. x is unchanged.

        Example (D = 1, F = 2; gelu(1) + gelu(-1) = 0.8413 - 0.1587, and 10 more as bias):
            >>> feedforward = FeedForward(d_model=1, d_ff=2).requires_grad_(False)
            >>> _ = feedforward.up_proj.weight.copy_(torch.tensor([[1.0], [-1.0]]))
            >>> _ = feedforward.up_proj.bias.zero_()
            >>> _ = feedforward.down_proj.weight.fill_(1.0)
            >>> _ = feedforward.down_proj.bias.fill_(10.0)
            >>> feedforward(torch.tensor([[0.0], [1.0]]))
            tensor([[10.0000],
                    [10.6827]])

        Always true:
            * a token's result depends on that token alone, and not on where it stands.
        """
        raise NotImplementedError("ch05 FeedForward.forward")


def add_residual(x: Tensor, update: Tensor) -> Tensor:
    """Add a sub-layer's update to the stream, and let nothing broadcast.

    out = x + update

    Args:
        x:      (...) float, the stream, often (B, T, D).
        update: (...) float, of exactly x's shape.

    Returns:
        (...) in x's dtype, a new tensor; differentiable in both. x and update are unchanged.

    Raises:
        ValueError: naming `update`: of another shape than x, also one that would broadcast.

    Example (two tokens of width 2):
        >>> add_residual(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.full((2, 2), 10.0))
        tensor([[11., 12.],
                [13., 14.]])

    Always true:
        * x gets the gradient of out as it is, and so does update;
        * an update of 0 changes nothing.
    """
    raise NotImplementedError("ch05 add_residual")


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each added to the stream (pre-LN); the constructor is given.

    Args:
        d_model: D, the width of the stream.
        n_heads: H, divides d_model.
        d_ff:    F, the width inside the feed-forward.
        dropout: probability for both sub-layers' outputs and for the attention weights.

    Attributes:
        ln_attention, ln_feedforward: nn.LayerNorm over D, each with a weight and a bias of its
            own, eps 1e-5.
        attention:   MultiHeadAttention, no biases; drops attention weights itself.
        feedforward: FeedForward, with biases; drops its output itself.
        dropout:     nn.Dropout, for the attention's output.

    Raises:
        ValueError: naming `n_heads`: below 1, or does not divide d_model.
    """

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
        """Let each token gather from those before it, then think alone; pre-LN and causal.

        middle = hidden + dropout(attention(ln_attention(hidden), causal mask))
        out    = middle + feedforward(ln_feedforward(middle))

        Args:
            hidden:         (B, T, D) float, the stream.
            past_key_value: None. Chapter 10 passes keys and values of earlier tokens here.
            use_cache:      False. Chapter 10 asks for this call's keys and values here.

        Returns:
            (out, None): out (B, T, D) in hidden's dtype and on its device; None stands where
            chapter 10 returns keys and values. Dropout acts in training only, once on each
            sub-layer's output. hidden is unchanged.

        Raises:
            NotImplementedError: with "chapter 10" in the message, if past_key_value is not None or
                use_cache is true: ignoring them would give a wrong answer.

        Not allowed: nn.TransformerEncoder, nn.TransformerEncoderLayer and the functions below them.

        Example (q and k are 0, so a token adds the mean of the normed tokens up to it; the normed
        tokens are (-1, 1), (1, -1), (-1, 1); the feed-forward adds 0):
            >>> block = TransformerBlock(d_model=2, n_heads=1, d_ff=4).requires_grad_(False)
            >>> for name, scale in {"q": 0, "k": 0, "v": 1, "o": 1}.items():
            ...     _ = block.get_submodule(f"attention.{name}_proj").weight.copy_(
            ...         scale * torch.eye(2)
            ...     )
            >>> _ = block.feedforward.down_proj.weight.zero_()
            >>> _ = block.feedforward.down_proj.bias.zero_()
            >>> out, cache = block(torch.tensor([[[0.0, 2.0], [2.0, 0.0], [0.0, 2.0]]]))
            >>> out
            tensor([[[-1.0000,  3.0000],
                     [ 2.0000,  0.0000],
                     [-0.3333,  2.3333]]])
            >>> cache is None
            True

        Always true:
            * where both sub-layers give 0, out is hidden;
            * out[:, :t] depends on hidden[:, :t] alone;
            * equals one layer of nn.TransformerEncoder (norm_first) under a causal mask, with the
              same weights and zeros for the biases that the attention here does not have.
        """
        raise NotImplementedError("ch05 TransformerBlock.forward")


def parameter_ledger(
    vocab_size: int, block_size: int, d_model: int, n_layers: int, d_ff: int
) -> dict[str, int]:
    """Count the parameters of a decoder of such blocks, item by item.

    The decoder is chapter 7's: a table of tokens and one of positions, n_layers blocks as above,
    one more layer norm, and a head of its own (not tied to the token table). The projections q, k,
    v, o and the head have no bias, the feed-forward has two, a layer norm has a weight and a bias.
    The number of heads does not matter.

    Args:
        vocab_size: V.
        block_size: the number of positions.
        d_model:    D.
        n_layers:   blocks.
        d_ff:       F.

    Returns:
        dict of ints: "token_embedding", "position_embedding", "blocks" (all layers together),
        "final_norm", "head", and "total", their sum.

    Example (a block of width 1 and F = 1 has 4 in attention, 4 in feed-forward, 4 in norms):
        >>> ledger = parameter_ledger(vocab_size=5, block_size=3, d_model=1, n_layers=2, d_ff=1)
        >>> ledger["token_embedding"], ledger["position_embedding"], ledger["blocks"]
        (5, 3, 24)
        >>> ledger["final_norm"], ledger["head"], ledger["total"]
        (2, 5, 39)

    Always true:
        * equals the numel of such a module's parameters, counted item by item.
    """
    raise NotImplementedError("ch05 parameter_ledger")
