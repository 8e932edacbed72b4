"""Draw ch04_alibi.svg: what ALiBi takes off a score, and the slopes of eight and of six heads.

    python -m walkthroughs.figures.ch04_alibi

Left, the bias against the distance, a line for each of eight heads. Right, the slopes themselves;
six heads take those of four, and then the first and third of eight.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from solutions.ch04_positions import alibi_bias

FARTHEST, DEEPEST, NAMED = 64, 16, 5


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch04_alibi", "font.size": 12})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    colors = plt.get_cmap("viridis")([h / 8 for h in range(8)])
    for h, line in enumerate(alibi_bias(8, 1, FARTHEST + 1)[:, 0].flip(-1)):
        left.plot(line, color=colors[h], linewidth=2)
        if h < NAMED:
            end = min(FARTHEST, DEEPEST * 2 ** (h + 1))  # where the line leaves the picture
            name, offset = f"head {h + 1}", (5, 3 if end < FARTHEST else 0)
            at = (end, float(line[end]))
            left.annotate(name, at, offset, textcoords="offset points", color=colors[h])
    left.set(
        xlabel="distance of query and key",
        ylabel="bias",
        xlim=(0, FARTHEST),
        ylim=(-DEEPEST, DEEPEST / 40),
    )
    for heads, color, marker in ((8, "#2b5fa8", "o"), (6, "#c23b22", "s")):
        slopes = -alibi_bias(heads, 1, 2)[:, 0, 0]
        right.plot(
            range(1, heads + 1), slopes, color=color, marker=marker, lw=1, label=f"{heads} heads"
        )
    right.set_yscale("log", base=2)
    right.set(xlabel="head", ylabel="slope", xticks=range(1, 9))
    right.legend(loc="lower left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
