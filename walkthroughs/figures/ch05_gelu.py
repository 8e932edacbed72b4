"""Draw ch05_gelu.svg: GELU beside its relatives, and what its approximations miss.

python -m walkthroughs.figures.ch05_gelu
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from solutions.ch05_block import gelu

X = torch.linspace(-5, 5, 401, dtype=torch.float64)
EXACT = gelu(X)
COLORS = {"gelu": "#0a7d3f", "relu": "#777777", "silu": "#c23b22"}


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch05_gelu", "font.size": 11})
    figure, (shapes, misses) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")

    near = (X >= -4) & (X <= 2)
    for name, values, label in (
        ("relu", X.clamp(min=0), "relu: x if x > 0"),
        ("silu", X * torch.sigmoid(X), "silu: x sigmoid(x)"),
        ("gelu", EXACT, "gelu: x P(x)"),
    ):
        width = 2.5 if name == "gelu" else 1.5
        shapes.plot(X[near], values[near], color=COLORS[name], linewidth=width, label=label)
    shapes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    shapes.set(xlabel="x", ylabel="y", title="three ways to bend")
    shapes.legend(frameon=False)

    misses.plot(X, 1e4 * (gelu(X, "tanh") - EXACT), color=COLORS["gelu"], linewidth=2)
    misses.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    misses.set(xlabel="x", ylabel="difference, in units of 1e-4", title='"tanh" less "none"')
    for axes in (shapes, misses):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
