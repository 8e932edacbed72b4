"""Time and memory of attention against the number of tokens, and PyTorch's fused one beside it.

    python -m walkthroughs.figures.ch02_cost

Both forward only, without a mask, in float32 on one thread. The time is the quickest of many runs
taken in turn; the memory is the most that was allocated at once during a call, its output included
and its inputs not. The last column is one (B, H, T, T) matrix, for comparison.
"""

import time

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from solutions.ch02_attention import scaled_dot_product_attention

B, H, K = 1, 8, 64
LENGTHS = (128, 256, 512, 1024)
SECONDS = 0.6  # spent on each length


def quickest(*calls) -> list[float]:
    """The shortest time of each call, in seconds."""
    end, runs = time.perf_counter() + SECONDS, []
    while time.perf_counter() < end or len(runs) < 3:
        times = [time.perf_counter()]
        for call in calls:
            call()
            times.append(time.perf_counter())
        runs.append([after - before for before, after in zip(times, times[1:], strict=False)])
    return [min(column) for column in zip(*runs, strict=True)]


def peak(call) -> int:
    """The most bytes that the call had allocated at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()  # noqa: F841  its memory counts
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def measure(T: int) -> list[float]:
    q, k, v = torch.randn(3, B, H, T, K, generator=torch.Generator().manual_seed(0))
    calls = [lambda: scaled_dot_product_attention(q, k, v)]
    calls += [lambda: F.scaled_dot_product_attention(q, k, v)]
    matrix = B * H * T * T * 4
    return [1e3 * s for s in quickest(*calls)] + [b / 1e6 for b in (*map(peak, calls), matrix)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"B={B} H={H} K={K}, float32")
    print(f"{'':5}{'ms':>9}{'':8}{'MB':>10}")
    print(f"{'T':>5}{'chapter':>9}{'fused':>8}{'chapter':>10}{'fused':>7}{'T x T':>7}")
    for T in LENGTHS:
        ours, fused, *memory = measure(T)
        print(
            f"{T:>5}{ours:>9.2f}{fused:>8.2f}{memory[0]:>10.1f}{memory[1]:>7.1f}{memory[2]:>7.1f}"
        )
