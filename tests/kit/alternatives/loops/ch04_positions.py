"""Chapter 4: positions (torch)."""

import math

import torch
from torch import Tensor


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Right, in plain loops."""
    for name, size in (("length", length), ("d_model", d_model)):
        if size <= 0:
            raise ValueError(f"{name}: {size} leaves nothing to fill")
    table = torch.empty(length, d_model)
    for t in range(length):
        for i in range(0, d_model, 2):
            angle = t / 10000 ** (i / d_model)
            table[t, i] = math.sin(angle)
            if i + 1 < d_model:
                table[t, i + 1] = math.cos(angle)
    return table


def apply_rope(x: Tensor, positions: Tensor) -> Tensor:
    """Right, pair by pair, with the angles as Python floats."""
    if len(x.shape) != 4 or x.shape[3] % 2 == 1:
        raise ValueError("x: wanted four axes, the last of even length")
    B, H, T, K = x.shape
    rows = positions.tolist()
    if positions.dim() == 1:
        rows = [rows] * B
    if positions.dim() not in (1, 2) or len(rows) != B or any(len(row) != T for row in rows):
        raise ValueError(f"positions: wanted {T} for each of {B} rows")
    out = []
    for b in range(B):
        for h in range(H):
            for t in range(T):
                for i in range(K // 2):
                    angle = rows[b][t] * 10000 ** (-2 * i / K)
                    first, second = x[b, h, t, 2 * i], x[b, h, t, 2 * i + 1]
                    out.append(first * math.cos(angle) - second * math.sin(angle))
                    out.append(first * math.sin(angle) + second * math.cos(angle))
    return torch.stack(out).reshape(B, H, T, K)


def alibi_bias(n_heads: int, t_q: int, t_k: int) -> Tensor:
    """Right, in plain loops and with the recursion of the paper's code."""
    if n_heads <= 0:
        raise ValueError(f"n_heads: {n_heads} are no heads")
    if t_q <= 0 or t_q > t_k:
        raise ValueError(f"t_q: wanted 1 to {t_k} queries, not {t_q}")

    def slopes(heads):
        if math.log2(heads).is_integer():
            return [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
        power = 2 ** math.floor(math.log2(heads))
        return slopes(power) + slopes(2 * power)[::2][: heads - power]

    bias = torch.zeros(n_heads, t_q, t_k)
    for h, slope in enumerate(slopes(n_heads)):
        for i in range(t_q):
            for j in range(t_k):
                bias[h, i, j] = -slope * abs(t_k - t_q + i - j)
    return bias
