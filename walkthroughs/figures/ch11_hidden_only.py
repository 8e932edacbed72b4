"""How much of a forward pass is left when the projection to the vocabulary is skipped.

    python -m walkthroughs.figures.ch11_hidden_only

Prints time(hidden_only) / time(full) for growing vocabularies. Both are the quickest of many runs
taken in turn, on one thread. Beside it stands the same ratio counted in multiply-adds: a token
costs 12 D^2 in the six matrices, 2 T D in attention and D V in the logits. The last line says how
much of a hidden_only pass is GELU, an elementwise function that the count leaves out.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import time  # noqa: E402

import numpy as np  # noqa: E402

from solutions.ch11_causal_classifier import forward, gelu, initialize  # noqa: E402

B, T, D, H = 8, 64, 64, 4
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
SECONDS = 0.6  # spent on each ratio


def seconds(call, *arguments) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def ratio(first: tuple, second: tuple) -> float:
    """Quickest run of the first call over quickest run of the second."""
    end, runs = time.perf_counter() + SECONDS, []
    while time.perf_counter() < end:
        runs.append([seconds(*first), seconds(*second)])
    return float(np.divide(*np.min(runs, axis=0)))


def passes(V: int) -> tuple[tuple, tuple]:
    """The calls forward(hidden_only=True) and forward(hidden_only=False)."""
    p = initialize(vocab=V, width=D, heads=H, max_length=T)
    tokens = np.random.default_rng(0).integers(0, V, size=(B, T))
    return (forward, tokens, p, None, True), (forward, tokens, p, None, False)


def counted(V: int) -> float:
    without = 12 * D * D + 2 * T * D
    return without / (without + D * V)


if __name__ == "__main__":
    print(f"B={B} T={T} D={D} H={H}, time(hidden_only) / time(full)")
    print(f"{'V':>6}  {'measured':>8}  {'multiply-adds':>13}")
    for V in VOCABULARIES:
        print(f"{V:>6}  {ratio(*passes(V)):>8.2f}  {counted(V):>13.2f}")
    inner = np.random.default_rng(0).normal(size=(B, T, 4 * D))
    share = ratio((gelu, inner), passes(VOCABULARIES[0])[0])
    print(f"GELU's share of a hidden_only pass: {share:.2f}")
