"""What a lookup and its gradient cost, beside the product with one-hot vectors they equal.

    python -m walkthroughs.figures.ch01_lookup

Prints time(product) / time(lookup) for growing vocabularies, forward and backward. The times are
the quickest of many runs taken in turn, on one thread.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import time  # noqa: E402

import numpy as np  # noqa: E402

from solutions.ch01_embeddings import embed, embedding_backward, one_hot  # noqa: E402

B, T, D = 8, 64, 64
VOCABULARIES = (250, 1_000, 4_000, 16_000)
SECONDS = 0.6  # spent on each vocabulary


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


def measured(V: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    tokens, table = rng.integers(0, V, size=(B, T)), rng.normal(size=(V, D))
    grad = rng.normal(size=(B, T, D))
    lookup, product, scatter, transposed = quickest(
        [
            lambda: embed(tokens, table),
            lambda: one_hot(tokens, V) @ table,
            lambda: embedding_backward(tokens, grad, V),
            lambda: one_hot(tokens, V).reshape(B * T, V).T @ grad.reshape(B * T, D),
        ]
    )
    return product / lookup, transposed / scatter


if __name__ == "__main__":
    print(f"B={B} T={T} D={D}, time(product with one-hot) / time(lookup)")
    print(f"{'V':>6}  {'forward':>7}  {'backward':>8}  {'one-hot, MB':>11}")
    for V in VOCABULARIES:
        forward, backward = measured(V)
        print(f"{V:>6}  {forward:>7.0f}  {backward:>8.0f}  {B * T * V * 8 / 1e6:>11.0f}")
