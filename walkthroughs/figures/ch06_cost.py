"""What a gradient costs, beside the pass it belongs to and beside central differences.

    python -m walkthroughs.figures.ch06_cost

For growing widths, prints time(forward) and time(backward) of a linear layer with its loss, as a
ratio, and how often that backward fits into a numerical gradient of the same weight. Times are
the quickest of many runs, on one thread.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import time  # noqa: E402

import numpy as np  # noqa: E402

from solutions.ch06_loss import (  # noqa: E402
    cross_entropy,
    cross_entropy_backward,
    linear,
    linear_backward,
)

N, V = 64, 50
WIDTHS = (4, 16, 64)
SECONDS = 0.6  # spent on each width


def quickest(functions: list) -> list[float]:
    """The least time of each function, run in turn for SECONDS."""
    ends, runs = time.perf_counter() + SECONDS, []
    while time.perf_counter() < ends:
        times = []
        for function in functions:
            began = time.perf_counter()
            function()
            times.append(time.perf_counter() - began)
        runs.append(times)
    return list(map(float, np.min(runs, axis=0)))


def measured(D: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(N, D)), rng.normal(size=(D, V)), np.zeros(V)
    targets = rng.integers(0, V, N)
    logits = linear(x, weight, bias)

    def forward():
        return cross_entropy(linear(x, weight, bias), targets)

    def backward():
        return linear_backward(x, weight, cross_entropy_backward(logits, targets))

    one_way, back = quickest([forward, backward])
    return back / one_way, 2 * weight.size * one_way / back


if __name__ == "__main__":
    print(f"N={N} V={V}, a linear layer and its loss")
    print(f"{'D':>4}  {'weights':>7}  {'backward / forward':>18}  {'differences / backward':>22}")
    for D in WIDTHS:
        backward, differences = measured(D)
        print(f"{D:>4}  {D * V:>7}  {backward:>18.1f}  {differences:>22.0f}")
