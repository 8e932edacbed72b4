"""Chapter 2: scaled dot-product attention (torch).

A stable softmax, the two masks every transformer needs, and attention itself.

Letters: B batch, H heads, T query positions, S key positions, K width of queries and keys per
head. An attention mask is bool, and True means *blocked*: this query must not see this key.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
"""

import math

import torch
from torch import Tensor


def check_mask(mask: Tensor, shape: torch.Size) -> None:
    """Given: refuse a mask that `scaled_dot_product_attention` must not take.

    Args:
        mask:  the caller's mask.
        shape: (..., T, S), the shape of the scores.

    Raises:
        ValueError: naming `mask`: not bool, or a shape that does not broadcast to `shape`.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True = blocked, got {mask.dtype}")
    sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.ndim > len(shape) or any(size not in (1, full) for size, full in sizes):
        raise ValueError(
            f"mask must broadcast to the scores' shape {tuple(shape)}, got {tuple(mask.shape)}"
        )


def softmax(x: Tensor, dim: int) -> Tensor:
    """Turn numbers into positive weights that sum to one along `dim`.

    y_i = exp(x_i) / sum_j exp(x_j)

    Args:
        x:   (...) float, of any size: 1e4 and -1e4 are ordinary entries, -inf gets weight 0.
        dim: the axis along which the weights sum to one; may be negative.

    Returns:
        (...) float, a new tensor of x's shape and dtype (float64 stays float64 on the way);
        differentiable. x is unchanged. A slice of nothing but -inf is unspecified.

    Not allowed: torch's softmax and log_softmax in any form; logsumexp is allowed.

    Example (exp gives 1 and 3):
        >>> softmax(torch.tensor([0.0, math.log(3)]), dim=0)
        tensor([0.2500, 0.7500])
        >>> softmax(torch.tensor([1000.0, 1000 + math.log(3)]), dim=0)
        tensor([0.2500, 0.7500])

    Always true:
        * the same number added to every entry along dim changes nothing;
        * y sums to one along dim, so its gradient along dim sums to zero.
    """
    raise NotImplementedError("ch02 softmax")


def causal_mask(t_q: int, t_k: int | None = None) -> Tensor:
    """Block the future: which of t_k keys must each of t_q queries not see?

    mask[i, j] = j > t_k - t_q + i

    The queries are the last t_q of the t_k positions: with a cache, the keys of earlier tokens
    come first, so query i stands at position t_k - t_q + i.

    Args:
        t_q: T, the number of queries.
        t_k: S, the number of keys; None means as many as queries.

    Returns:
        (T, S) bool, True = blocked; a new tensor in each call.

    Raises:
        ValueError: naming `t_q`: not 1 <= t_q <= t_k.

    Example (three tokens; then two new ones after one cached):
        >>> causal_mask(3).int().tolist()
        [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
        >>> causal_mask(2, 3).int().tolist()
        [[0, 0, 1], [0, 0, 0]]

    Always true:
        * each query sees itself, and the last one sees everything;
        * causal_mask(t_q, t_k) is the last t_q rows of causal_mask(t_k).
    """
    raise NotImplementedError("ch02 causal_mask")


def padding_mask(lengths: list[int] | Tensor, max_length: int) -> Tensor:
    """Block the padding after each row's real tokens, for every head and query.

    mask[b, 0, 0, j] = j >= lengths[b]

    Args:
        lengths:    (B,) integers, a list or a tensor of any integer dtype: the number of real
                    tokens in each row, which stand first.
        max_length: S, to which the rows are padded; may be more than the longest.

    Returns:
        (B, 1, 1, S) bool, True = blocked, on the device of `lengths`, which are unchanged.

    Raises:
        ValueError: naming `lengths`: not integers (float and bool are not), not one axis, or not
            all in 0..max_length.

    Example (two real tokens, then three):
        >>> padding_mask([2, 3], 3).int().tolist()
        [[[[0, 0, 1]]], [[[0, 0, 0]]]]

    Always true:
        * row b blocks max_length - lengths[b] keys, all at the end;
        * `causal_mask(S) | padding_mask(lengths, S)` is (B, 1, S, S) and blocks what either blocks.
    """
    raise NotImplementedError("ch02 padding_mask")


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, return_weights: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Give each query the average of the values, weighted by how well their keys match it.

    scores  = q k^T / sqrt(K)
    weights = softmax of scores over the keys that are not blocked; 0 at blocked keys
    out     = weights v

    Args:
        q:    (..., T, K) float, often (B, H, T, K); any leading axes, or none.
        k:    (..., S, K) float, the same leading axes.
        v:    (..., S, Kv) float, the same leading axes; Kv is often K, but need not be.
        mask: None, or bool that broadcasts to (..., T, S), True = blocked (as in
              nn.MultiheadAttention; F.scaled_dot_product_attention means the opposite).
        return_weights: give the weights too.

    Returns:
        out (..., T, Kv), or (out, weights) with weights (..., T, S), in the inputs' dtype (float64
        stays float64 on the way); differentiable. A query whose keys are all blocked has weights
        and output 0 and hands back gradient 0; nothing becomes NaN. The inputs are unchanged.
        Non-finite k or v under the mask is unspecified.

    Raises:
        ValueError: naming `mask`; `check_mask` checks it.

    Not allowed: F.scaled_dot_product_attention, nn.MultiheadAttention, nn.TransformerEncoder*,
    and torch's softmax and log_softmax in any form. Your own `softmax` is allowed.

    Example (scores 1/sqrt(2) and 0):
        >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> out, weights = scaled_dot_product_attention(q, k, 10 * k, return_weights=True)
        >>> weights
        tensor([[0.6698, 0.3302]])
        >>> out
        tensor([[6.6976, 3.3024]])

    Always true:
        * weights sum to one over the keys, or to zero where every key is blocked;
        * what stands at a blocked key, in k or in v, changes nothing;
        * keys and values permuted together change nothing.
    """
    raise NotImplementedError("ch02 scaled_dot_product_attention")
