"""Draw ch04_sinusoids.svg: the table of sines and cosines as a heat map, a row for each position.

    python -m walkthroughs.figures.ch04_sinusoids

Each cell is one entry. Two columns that stand together are the sine and the cosine of one angle.
"""

from pathlib import Path

import matplotlib.pyplot as plt

from solutions.ch04_positions import sinusoidal_positions

LENGTH, WIDTH = 32, 20


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch04_sinusoids", "font.size": 12})
    table = sinusoidal_positions(LENGTH, WIDTH).numpy().round(2)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    mesh = axes.pcolormesh(table, cmap=plt.get_cmap("RdBu_r", 21), vmin=-1, vmax=1)
    axes.set(xlabel="column", ylabel="position")
    axes.set_xticks([c + 0.5 for c in range(0, WIDTH, 2)], range(0, WIDTH, 2))
    axes.set_yticks([t + 0.5 for t in range(0, LENGTH, 5)], range(0, LENGTH, 5))
    axes.invert_yaxis()
    bar = figure.colorbar(mesh, ticks=[-1, 0, 1])
    bar.solids.set(edgecolor="face", rasterized=False)
    bar.set_label("entry")
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
