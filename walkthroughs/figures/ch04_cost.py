"""What the three ways cost beside the attention they serve.

    python -m walkthroughs.figures.ch04_cost

Prints, for growing T, the time to rotate queries and keys and the time to add a ready bias, each
over the time of attention's two products; beside them the size of the numbers that each way keeps.
The times are the quickest of many runs taken in turn, on one thread.
"""

import time

import torch

from solutions.ch04_positions import alibi_bias, apply_rope

H, K = 8, 64
LENGTHS = (64, 128, 256, 512, 1024)
SECONDS = 0.6  # spent on each length


def quickest(functions: list) -> list[float]:
    """The least time of each function, run in turn for SECONDS."""
    ends, best = time.perf_counter() + SECONDS, [float("inf")] * len(functions)
    while time.perf_counter() < ends:
        for index, function in enumerate(functions):
            began = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - began)
    return best


def measured(T: int) -> tuple[float, float]:
    q, k, v = torch.randn(3, 1, H, T, K).unbind()
    positions, bias, scores = torch.arange(T), alibi_bias(H, T, T), torch.randn(1, H, T, T)
    products, rotation, addition = quickest(
        [
            lambda: (q @ k.mT) @ v,
            lambda: (apply_rope(q, positions), apply_rope(k, positions)),
            lambda: scores + bias,
        ]
    )
    return rotation / products, addition / products


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"H={H} K={K}, time beside that of attention's two products; MB in float32")
    print(f"{'T':>6}  {'RoPE':>6}  {'ALiBi':>6}  {'table':>6}  {'cos, sin':>8}  {'bias':>6}")
    for T in LENGTHS:
        rope, alibi = measured(T)
        table, waves, bias = (4e-6 * T * size for size in (H * K, K, H * T))
        print(f"{T:>6}  {rope:>6.2f}  {alibi:>6.2f}  {table:>6.2f}  {waves:>8.2f}  {bias:>6.2f}")
