"""What pooling costs beside the encoder under it.

    python -m walkthroughs.figures.ch12_cost

Prints for each pooling its share of a classifier's forward pass: least times of many runs taken
in turn, in processor time on one thread.
"""

import time

import torch

from solutions.ch12_pooling import (
    AttentionPool,
    BertPooler,
    SequenceBinaryClassifier,
    max_pool,
    mean_pool,
)

B, T, D, LAYERS, F = 8, 256, 64, 2, 256
SECONDS = 0.6


def quickest(functions: dict) -> dict[str, float]:
    """The least processor time of each function, run in turn for SECONDS."""
    least = dict.fromkeys(functions, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, function in functions.items():
            began = time.process_time()
            function()
            least[name] = min(least[name], time.process_time() - began)
    return least


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SequenceBinaryClassifier(2, D, 4, LAYERS, "mean", d_ff=F).eval()
    x, hidden = torch.randn(B, T, 2), torch.randn(B, T, D)
    valid = torch.rand(B, T) < 0.7
    pool, pooler = AttentionPool(D), BertPooler(D)
    pools = {
        "mean": lambda: mean_pool(hidden, valid),
        "max": lambda: max_pool(hidden, valid),
        "attention": lambda: pool(hidden, valid),
        "bert": lambda: pooler(hidden),
    }
    with torch.no_grad():
        least = quickest(pools | {"whole": lambda: model(x, valid)})
    print(f"B={B} T={T} D={D}, {LAYERS} layers: percent of a forward pass")
    for name in pools:
        print(f"{name:>10}  {100 * least[name] / least['whole']:.2f}")
