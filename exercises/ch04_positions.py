"""Chapter 4: positions (torch).

Three ways to tell attention where a token stands: a table of sines and cosines that is added to
the embeddings, a rotation of queries and keys (RoPE), and a penalty on distance (ALiBi).

Letters: B batch, H heads, T (query) positions, S key positions, D model width, K width per head.

Sources: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (sinusoids); Su et al. 2021,
arXiv:2104.09864 (RoPE); Press et al. 2022, arXiv:2108.12409 (ALiBi).
"""

import torch
from torch import Tensor


def check_rope(x: Tensor, positions: Tensor) -> None:
    """Given: refuse what `apply_rope` must not take.

    Raises:
        ValueError: naming `x` (not four axes, or an odd K) or `positions` (neither (T,) nor
            (B, T); a shape that would only broadcast counts as wrong).
    """
    if x.ndim != 4:
        raise ValueError(f"x must have shape (B, H, T, K), got {tuple(x.shape)}")
    B, _, T, K = x.shape
    if K % 2:
        raise ValueError(f"x must have an even width per head to make pairs, got K = {K}")
    if positions.shape not in ((T,), (B, T)):
        wanted = f"(T,) = ({T},) or (B, T) = ({B}, {T})"
        raise ValueError(f"positions must have shape {wanted}, got {tuple(positions.shape)}")


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Make the table of sines and cosines that is added to the embeddings.

    table[t, c] = sin(t w_c) for even c, cos(t w_c) for odd c,   w_c = 10000**(-(c - c % 2) / D)

    Columns 2i and 2i + 1 are a pair: the sine and the cosine of one angle. The pairs stand side
    by side, not in two halves.

    Args:
        length:  T, the number of positions; they count from 0.
        d_model: D, the width; may be odd, and then the last column is a sine without its cosine.

    Returns:
        (T, D) float32; a new tensor in each call. The angles are computed in float32 or wider.

    Raises:
        ValueError: naming `length` or `d_model`: below 1.

    Example (position 1 has the angles 1 and 10000**(-2/4) = 0.01):
        >>> sinusoidal_positions(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])

    Always true:
        * each pair has sin**2 + cos**2 = 1, so for even D every row has the norm sqrt(D / 2);
        * row t of a longer table is row t of this one;
        * row t + n is row t with each pair turned by n w_c, whatever t is.
    """
    raise NotImplementedError("ch04 sinusoidal_positions")


def apply_rope(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate each pair of neighboring features by an angle that grows with the position.

    (x[2i], x[2i+1]) -> (x[2i] cos a - x[2i+1] sin a, x[2i] sin a + x[2i+1] cos a)
    a = position * 10000**(-2i / K),   i = 0 .. K/2 - 1

    The pairs are interleaved: features 0 and 1, 2 and 3, and so on. (The other convention in use
    pairs feature i with i + K/2; a model trained with one cannot be run with the other.)

    Args:
        x:         (B, H, T, K) float, queries or keys after the split into heads; K even.
        positions: (T,) or (B, T) int64 or int32, 0 or more: where each token stands, for all
                   rows alike or row by row. Gaps, repeats and any order are right.

    Returns:
        (B, H, T, K), a new tensor in x's dtype; differentiable. The angles, their sines and their
        cosines are computed in float32 or wider also where x is float16 or bfloat16. x and
        positions are unchanged, and nothing is kept for the next call.

    Raises:
        ValueError: naming `x` or `positions`; `check_rope` checks both.

    Example (position 1 rotates the pairs by 1 and by 0.01):
        >>> x = torch.tensor([[[[1.0, 0.0, 1.0, 0.0]]]])
        >>> apply_rope(x, torch.tensor([0]))
        tensor([[[[1., 0., 1., 0.]]]])
        >>> apply_rope(x, torch.tensor([1]))
        tensor([[[[0.5403, 0.8415, 0.9999, 0.0100]]]])

    Always true:
        * every pair keeps its norm, and position 0 changes nothing;
        * the score of a query at m and a key at n depends on m - n only: unit vectors of width 2
          in the same direction give cos(m - n);
        * rotating by m and then by n is rotating by m + n.
    """
    raise NotImplementedError("ch04 apply_rope")


def alibi_bias(n_heads: int, t_q: int, t_k: int) -> Tensor:
    """Make the bias that lowers a score in proportion to the distance of query and key.

    bias[h, i, j] = -slope_h * |t_k - t_q + i - j|

    The queries are the last t_q of the t_k positions, as in chapter 2's causal mask. For H a power
    of two the slopes are 2**(-8 h / H), h = 1 .. H. For another H let P be the largest power of
    two below it: first come the P slopes of P heads, then of the 2P slopes of 2P heads the first,
    third, fifth and so on, until there are H. They are not sorted.

    Args:
        n_heads: H.
        t_q:     T, the number of queries.
        t_k:     S, the number of keys.

    Returns:
        (H, T, S) float32, to be added to the scaled scores before the softmax; a new tensor in
        each call. Nothing is blocked here: keys in the future get their distance too, and the
        causal mask is the caller's.

    Raises:
        ValueError: naming `n_heads` (below 1) or `t_q` (not 1 <= t_q <= t_k).

    Example (two heads, slopes 1/16 and 1/256, queries at 1 and 2; then the slopes of three heads):
        >>> (16 * alibi_bias(2, 2, 3)[0]).tolist()
        [[-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]
        >>> (-alibi_bias(3, 1, 2)[:, 0, 0]).log2().tolist()
        [-4.0, -8.0, -2.0]

    Always true:
        * a query's own key has bias 0, every other key less;
        * alibi_bias(H, t_q, t_k) is the last t_q rows of alibi_bias(H, t_k, t_k).
    """
    raise NotImplementedError("ch04 alibi_bias")
