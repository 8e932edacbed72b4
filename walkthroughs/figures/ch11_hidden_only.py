"""How much of a forward pass is left when the projection to the vocabulary is skipped.

    PYTHONPATH=. python walkthroughs/figures/ch11_hidden_only.py

Prints time(hidden_only) / time(full) for growing vocabularies: the quickest of several runs each,
taken in turn, so that a busy moment of the machine touches both. Beside it the same ratio counted
in multiply-adds: a token costs 12 D^2 in the six matrices, 2 T D in attention, D V in the logits.
"""

import time

import numpy as np

from solutions.ch11_causal_classifier import forward, initialize

B, T, D, H = 8, 64, 64, 4
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
RUNS = 15


def seconds(tokens: np.ndarray, p: dict, hidden_only: bool) -> float:
    began = time.perf_counter()
    forward(tokens, p, hidden_only=hidden_only)
    return time.perf_counter() - began


def measured(V: int) -> float:
    p = initialize(vocab=V, width=D, heads=H, max_length=T)
    tokens = np.random.default_rng(0).integers(0, V, size=(B, T))
    runs = [[seconds(tokens, p, hidden_only) for hidden_only in (True, False)] for _ in range(RUNS)]
    without, full = np.min(runs[1:], axis=0)  # the first run warms up
    return float(without / full)


def counted(V: int) -> float:
    without = 12 * D * D + 2 * T * D
    return without / (without + D * V)


if __name__ == "__main__":
    print(f"B={B} T={T} D={D} H={H}   time(hidden_only) / time(full)")
    print(f"{'V':>7}  {'measured':>8}  {'multiply-adds':>13}")
    for V in VOCABULARIES:
        print(f"{V:>7}  {measured(V):>8.3f}  {counted(V):>13.3f}")
