"""What more heads cost when the width stays: time, and memory for the weights.

    python -m walkthroughs.figures.ch03_heads

Multiply-adds do not depend on H: a token costs 4 D^2 in the projections and 2 S D in scores and
mixing, H heads of K = D / H each. The weights do: B H T S numbers, each through a softmax. Every
time is the quickest of many runs, taken in turn with one head, forward only, on one thread. The
last line compares one product with the stacked weights of q, k and v to three products.
"""

import time

import torch
from torch import nn

from solutions.ch03_multihead import MultiHeadAttention

B, T, D = 2, 256, 512
HEADS = (2, 4, 8, 16, 32)
SECONDS = 0.6  # spent on each ratio


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def ratio(first, second) -> float:
    """Quickest run of the first call over quickest run of the second."""
    end, runs = time.perf_counter() + SECONDS, []
    while time.perf_counter() < end:
        runs.append((seconds(first), seconds(second)))
    quickest, other = (min(column) for column in zip(*runs, strict=True))
    return quickest / other


@torch.inference_mode()
def main():
    torch.set_num_threads(1)
    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))
    one = MultiHeadAttention(D, 1).eval()
    print(f"B={B} T={T} D={D}, against one head")
    print(f"{'H':>4}  {'K':>4}  {'time':>5}  {'weights':>7}")
    for H in HEADS:
        many = MultiHeadAttention(D, H).eval()
        times = ratio(lambda many=many: many(x), lambda: one(x))
        print(f"{H:>4}  {D // H:>4}  {times:>5.2f}  {H:>7}")
    stacked = nn.Linear(D, 3 * D, bias=False)
    three = [nn.Linear(D, D, bias=False) for _ in range(3)]
    fused = ratio(lambda: stacked(x).chunk(3, dim=-1), lambda: [proj(x) for proj in three])
    print(f"one stacked product against three: {fused:.2f}")


if __name__ == "__main__":
    main()
