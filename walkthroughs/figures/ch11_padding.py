"""Draw ch11_padding.svg: what right padding does to one pooled feature, for three ways to pool.

    python -m walkthroughs.figures.ch11_padding

The row is always the tokens 3, 1; only the number of padding columns (token 0) grows. The hidden
states are the decoder's own, with random parameters.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from solutions.ch11_causal_classifier import forward, initialize, mean_pool

FEATURE, MOST = 3, 14
P = initialize(vocab=6, width=8, heads=2, max_length=2 + MOST, seed=4)


def pooled(padding: int) -> list[float]:
    """The feature pooled by the row's own length, by the padded length, and with the padding."""
    tokens = np.array([[3, 1] + [0] * padding])
    mask = np.array([[1, 1] + [0] * padding])
    _, hidden, _ = forward(tokens, P, hidden_only=True)
    own = mean_pool(hidden, mask)[0]
    by_padded_length = (hidden * mask[..., None]).sum(axis=1)[0] / (2 + padding)
    unmasked = hidden.mean(axis=1)[0]
    return [float(vector[FEATURE]) for vector in (own, by_padded_length, unmasked)]


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch11_padding", "font.size": 12})
    paddings = range(MOST + 1)
    lines = list(zip(*map(pooled, paddings), strict=True))
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    looks = [
        ("own length", "#0a7d3f", "o"),
        ("padded length", "#c23b22", "s"),
        ("unmasked mean", "#2b5fa8", "^"),
    ]
    for values, (name, color, marker) in zip(lines, looks, strict=True):
        axes.plot(paddings, values, color=color, marker=marker, linewidth=2, markersize=6)
        end = (MOST, values[-1])
        axes.annotate(name, end, (10, 0), textcoords="offset points", va="center", color=color)
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set(
        xlabel="columns of right padding behind the same two tokens",
        ylabel=f"feature {FEATURE} of the pooled vector",
        xlim=(-0.4, MOST + 0.4),
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
