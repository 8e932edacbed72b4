"""Draw ch12_pooling.svg from ch12_experiment.json: each pooling's accuracy on four tasks.

    python -m walkthroughs.figures.ch12_pooling

A mark is the mean of three seeds, the line through it reaches from the worst to the best.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

NAMES = {
    "first": "first position decides",
    "any": "any position decides",
    "count": "counting",
    "order": "order",
}
LOOKS = {"frozen": ("#c23b22", "s", 0.13), "trained": ("#0a7d3f", "o", -0.13)}


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch12_pooling", "font.size": 11})
    results = json.loads(Path(__file__).with_name("ch12_experiment.json").read_text("utf-8"))
    figure, panels = plt.subplots(1, 4, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axes, (task, name) in zip(panels, NAMES.items(), strict=True):
        for kind, (color, marker, shift) in LOOKS.items():
            for row, scores in enumerate(results[kind][task].values()):
                percent = sorted(100 * score for score in scores)
                axes.plot(percent, [row + shift] * 3, color=color, linewidth=2)
                middle = sum(percent) / 3
                axes.plot(middle, row + shift, color=color, marker=marker, markersize=6)
        axes.axvline(50, color="#888888", linestyle="--", linewidth=0.8)
        axes.set(xlim=(42, 102), xticks=(50, 75, 100))
        axes.set_title(name, fontsize=11)
        axes.set_yticks(range(6), results["trained"][task])
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].set_ylabel("pooling")
    figure.supxlabel("accuracy on fresh sequences, percent", fontsize=11)
    lines = [panels[0].plot([], [], color=c, marker=m)[0] for c, m, _ in LOOKS.values()]
    names = [f"encoder {kind}" for kind in LOOKS]
    figure.legend(lines, names, loc="outside upper right", ncols=2, frameon=False, fontsize=10)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
