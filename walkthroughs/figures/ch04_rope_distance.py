"""Draw ch04_rope_distance.svg: how a RoPE score falls with the distance of query and key.

    python -m walkthroughs.figures.ch04_rope_distance

The key is equal to the query, a random unit vector; only the place of the query moves. The line is
the mean of many such pairs, the band holds nine of ten. Another line leaves out all pairs but the
quickest, and repeats itself.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from solutions.ch04_positions import apply_rope

VECTORS, FARTHEST, WIDTH = 1000, 128, 64
DISTANCES = torch.arange(FARTHEST + 1)


def scores() -> torch.Tensor:
    """(VECTORS, FARTHEST + 1), the score of each vector with itself at every distance."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(VECTORS, 1, 1, WIDTH, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    queries = apply_rope(x.expand(-1, -1, FARTHEST + 1, -1), DISTANCES)  # keys stay at 0
    return (queries @ x.mT).squeeze(-1).squeeze(1)


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch04_rope_distance", "font.size": 12})
    all_scores = scores()
    low, high = (all_scores.quantile(q, dim=0).numpy().round(4) for q in (0.05, 0.95))
    mean = all_scores.mean(dim=0).numpy().round(4)
    quickest = DISTANCES.cos().numpy().round(4)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(DISTANCES, quickest, color="#bbbbbb", linewidth=1, label="the first pair alone")
    axes.fill_between(DISTANCES, low, high, color="#2b5fa8", alpha=0.2, linewidth=0)
    axes.plot(DISTANCES, mean, color="#2b5fa8", linewidth=2, label=f"all {WIDTH // 2} pairs, mean")
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set(
        xlabel="distance of query and key",
        ylabel="score of equal unit vectors",
        xlim=(0, FARTHEST),
        ylim=(-1.05, 1.05),
    )
    axes.legend(loc="lower right", framealpha=1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
