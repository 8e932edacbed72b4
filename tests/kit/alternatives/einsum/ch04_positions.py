"""Chapter 4: positions (torch)."""

import math

import torch
from torch import Tensor


def check_rope(x: Tensor, positions: Tensor) -> None:
    """Given: refuse what has no pairs, or positions that would only broadcast."""
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ValueError(f"x must be (B, H, T, K) with an even K, got {tuple(x.shape)}")
    if tuple(positions.shape) not in [(x.shape[2],), (x.shape[0], x.shape[2])]:
        raise ValueError(f"positions do not fit x: {tuple(positions.shape)}")


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Right, in float32, as the exponential of a logarithm and with slices."""
    if min(length, d_model) < 1:
        raise ValueError(f"length and d_model must be positive, got {length} and {d_model}")
    even = torch.arange(0, d_model, 2)
    frequency = torch.exp(even * (-math.log(10000.0) / d_model))
    angle = torch.einsum("t,i->ti", torch.arange(length).float(), frequency)
    table = torch.zeros(length, d_model)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : d_model // 2])
    return table


def apply_rope(x: Tensor, positions: Tensor) -> Tensor:
    """Right, as complex numbers in float32 that are looked up in a table."""
    check_rope(x, positions)
    K = x.shape[-1]
    frequency = 1.0 / torch.pow(10000.0, torch.arange(0, K, 2).float() / K)
    longest = int(positions.max()) + 1
    angle = torch.outer(torch.arange(longest).float(), frequency)
    table = torch.polar(torch.ones_like(angle), angle)  # (longest, K/2)
    turn = table[positions.long()].unsqueeze(-3)  # (1, T, K/2) or (B, 1, T, K/2)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)


def alibi_bias(n_heads: int, t_q: int, t_k: int) -> Tensor:
    """Right, with the slopes of the next power of two, reordered and cut."""
    if n_heads < 1:
        raise ValueError(f"n_heads must be positive, got {n_heads}")
    if t_q < 1 or t_k < t_q:
        raise ValueError(f"t_q must be at least 1 and at most t_k, got {t_q} and {t_k}")
    power = 1 << math.ceil(math.log2(n_heads))
    slopes = torch.tensor([0.5 ** (8 * h / power) for h in range(1, power + 1)])
    if power != n_heads:
        slopes = torch.cat([slopes[1::2], slopes[0::2]])[:n_heads]
    place = torch.arange(t_k)
    gap = (place[None, :] - place[:, None])[t_k - t_q :]  # (T, S)
    return torch.einsum("h,ts->hts", slopes, torch.minimum(gap, -gap).float())
