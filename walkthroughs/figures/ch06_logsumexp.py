"""Draw ch06_logsumexp.svg: what is left of log(exp(c) + exp(c)) when c is not near 0.

    python -m walkthroughs.figures.ch06_logsumexp

The right answer is c + log 2 for every c. The bars show for which c it comes out: everywhere with
a shift; without one, as long as exp(c) is a normal number of its dtype and twice that is finite.
The curve follows float16 beyond that, down to 0 and up to inf. Every operation is computed in
float64 and then rounded to the dtype, so that the drawing does not depend on the machine's own
exp.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

GREEN, BLUE, RED, GOLD = "#0a7d3f", "#2b5fa8", "#c23b22", "#b07d12"


def exp(c: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(c).astype(dtype)


def log(s: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(s.astype(np.float64)).astype(dtype)


def without_shift(c: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore"):
        total = exp(c, dtype) + exp(c, dtype)
    return (log(total, dtype) - c).round(3)


def with_shift(c: np.ndarray, dtype: type) -> np.ndarray:
    total = exp(c - c, dtype) + exp(c - c, dtype)
    return (c + log(total, dtype) - c).round(3)


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch06_logsumexp", "font.size": 11})
    figure, (reach, half) = plt.subplots(
        1, 2, figsize=(10, 4), layout="constrained", width_ratios=[3, 2]
    )

    c = np.arange(-1000.0, 1000.5, 0.5)
    bar = reach.barh("any, shifted", 2000, left=-1000, height=0.5, color=GREEN)
    reach.bar_label(bar, [" and on"], padding=4)
    for dtype, color in ((np.float64, BLUE), (np.float32, RED), (np.float16, GOLD)):
        normal = np.isfinite(without_shift(c, dtype)) & (exp(c, dtype) >= np.finfo(dtype).tiny)
        first, last = c[normal][[0, -1]]
        bar = reach.barh(dtype.__name__, last - first, left=first, height=0.5, color=color)
        reach.bar_label(bar, [f" {first:g} to {last:g}"], padding=4)
    reach.invert_yaxis()
    reach.set_title("where log-sum-exp is right, with and without the shift")
    reach.set(xlabel="c, both logits", ylabel="dtype", xlim=(-1050, 1250))

    c = np.arange(-20.0, 14.0, 1 / 16)
    half.plot(c, with_shift(c, np.float16), color=GREEN, linewidth=8, alpha=0.3, label="shifted")
    values = without_shift(c, np.float16)
    finite = np.isfinite(values)
    half.plot(c[finite], values[finite], color=GOLD, linewidth=1.5, label="not shifted")
    half.plot(c[finite][[0, -1]], values[finite][[0, -1]], "x", color=GOLD, ms=9, mew=2.5)
    half.annotate("then inf", (10.4, 0.69), (0, 12), textcoords="offset points", ha="center")
    half.annotate("before: -inf", (-17.3, 1.3), (8, -2), textcoords="offset points")
    half.axhline(np.log(2), color="#888888", linewidth=0.8, zorder=0)
    half.set_title("float16 up to its ends")
    half.set(xlabel="c, both logits", ylabel="log-sum-exp less c", xlim=(-21, 14.5), ylim=(0, 1.5))
    half.legend(frameon=False, loc="lower right")
    for axes in (reach, half):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})
