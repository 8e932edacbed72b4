"""Draw ch07_fixed_batch.svg: three losses on a fixed batch, one for each answer it can give.

    python -m walkthroughs.figures.ch07_fixed_batch

The model is the same each time, 4608 numbers from seed 7. The first batch can be learned by heart;
the second contradicts itself at two of its four places; the third is the first again, with a loss
that has no graph.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from solutions.ch07_decoder import Config, TransformerLM, conflict_floor, fit_fixed_batch

LEARNABLE = [[0, 1, 0, 1]], [[1, 0, 1, 0]]
CONTRADICTORY = [[0, 1], [0, 1]], [[1, 2], [1, 0]]


class WithoutGraph(TransformerLM):
    """A model whose loss is a new tensor: it may be differentiated, and leads nowhere."""

    def forward(self, *inputs):
        out = super().forward(*inputs)
        return out | {"loss": torch.tensor(out["loss"].item(), requires_grad=True)}


def losses(kind: type, batch: tuple) -> list[float]:
    """The fit's losses to four digits: more of them would depend on the machine."""
    torch.manual_seed(7)
    model = kind(Config(4, 8, d_model=16, n_heads=2, n_layers=2, d_ff=32)).double()
    return [float(f"{loss:.4g}") for loss in fit_fixed_batch(model, *map(torch.tensor, batch))]


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch07_fixed_batch", "font.size": 12})
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    floor = conflict_floor(*map(torch.tensor, CONTRADICTORY))
    for level, name in ((floor, f"floor {floor:.4f}"), (0.1, "asked for: 0.1")):
        axes.axhline(level, color="#888888", linestyle="--", linewidth=1)
        axes.annotate(name, (30, level), (0, -14), textcoords="offset points", color="#666666")
    lines = [
        (WithoutGraph, LEARNABLE, "loss without a graph", "#2b5fa8"),
        (TransformerLM, CONTRADICTORY, "contradictory batch", "#c23b22"),
        (TransformerLM, LEARNABLE, "learnable batch", "#0a7d3f"),
    ]
    for kind, batch, name, color in lines:
        values = losses(kind, batch)
        axes.plot(values, color=color, linewidth=2)
        end = (len(values) - 1, values[-1])
        axes.annotate(name, end, (-4, 7), textcoords="offset points", color=color, ha="right")
    axes.set(
        xlabel="steps of AdamW, learning rate 0.02",
        ylabel="mean loss, nats",
        yscale="log",
        xlim=(0, 122),
        ylim=(1e-5, 5),
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
