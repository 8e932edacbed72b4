"""Draw ch02_masks.svg: the attention weights of one padded sentence under three masks.

    python -m walkthroughs.figures.ch02_masks

The sentence is `the cat sat` with two tokens of padding. Queries 0, 1, 2 and keys 0, ln 2, ln 3
make the scores logarithms of small integers: weights 1:1:1, 1:2:3 and 1:4:9 over the real tokens.
"""

import math
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch

from solutions.ch02_attention import (
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

TOKENS = ["the", "cat", "sat", "pad", "pad"]
Q = torch.tensor([0.0, 1.0, 2.0, 1.0, 1.0])[:, None]
K = torch.tensor([1.0, 2.0, 3.0, 4.0, 4.0]).log()[:, None]
MASKS = {
    "no mask": torch.zeros(5, 5, dtype=torch.bool),
    "causal_mask(5)": causal_mask(5),
    "padding_mask([3], 5)": padding_mask([3], 5)[0, 0].expand(5, 5),
}


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch02_masks", "font.size": 11})
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="#eeeeee")
    for axes, (title, mask) in zip(panels, MASKS.items(), strict=True):
        _, weights = scaled_dot_product_attention(Q, K, K, mask, return_weights=True)
        image = axes.imshow(weights.masked_fill(mask, math.nan), cmap=colors, vmin=0, vmax=1)
        for i, row in enumerate(weights.tolist()):
            for j, weight in enumerate(row):
                text = "×" if mask[i, j] else f"{weight:.2f}"
                color = "#888888" if mask[i, j] else "white" if weight > 0.55 else "black"
                axes.text(j, i, text, ha="center", va="center", color=color, fontsize=10)
        axes.set(title=title, xlabel="key", xticks=range(5), yticks=range(5))
        axes.set_xticklabels(TOKENS)
        axes.set_yticklabels(TOKENS)
        axes.tick_params(length=0)
    panels[0].set_ylabel("query")
    figure.colorbar(image, ax=panels, label="weight (× is blocked)", shrink=0.8)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
