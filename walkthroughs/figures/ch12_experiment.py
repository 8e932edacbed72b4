"""Train each pooling on four synthetic tasks; print a table and write ch12_experiment.json.

    python -m walkthroughs.figures.ch12_experiment

A sequence is T vectors of two standard normal features, and the tasks read the first feature.
Six classifiers share one design of encoder and see the same batches: the five poolings of
chapter 12, and "last", a head on the last position, as one takes the last step of an RNN. Each is
trained twice: whole, and with the encoder and its input frozen as they were drawn, so that only
what comes after them (and CLS) learns. The encoder has one layer; a last line tells what CLS counts
with two. Three seeds each, judged on fresh sequences; some two minutes of one thread's time.
"""

import json
import statistics
from pathlib import Path

import torch
from torch import Tensor

from solutions.ch04_positions import sinusoidal_positions
from solutions.ch12_pooling import POOLINGS, SequenceBinaryClassifier, pooled_loss

T, D, HEADS = 12, 16, 2
STEPS, BATCH, FRESH, RATE = 300, 64, 2000, 5e-3
SEEDS = (0, 1, 2)


def first(x: Tensor) -> Tensor:
    """Is feature 0 of the first position positive?"""
    return x[:, 0, 0] > 0


def anywhere(x: Tensor) -> Tensor:
    """Is feature 0 of any position above the value that half of all sequences pass?"""
    return x[:, :, 0].amax(dim=1) > torch.special.ndtri(torch.tensor(0.5 ** (1 / T)))


def count(x: Tensor) -> Tensor:
    """Is feature 0 positive at more than half of the positions?"""
    return (x[:, :, 0] > 0).sum(dim=1) > T // 2


def order(x: Tensor) -> Tensor:
    """Does the largest feature 0 come before the smallest?"""
    return x[:, :, 0].argmax(dim=1) < x[:, :, 0].argmin(dim=1)


TASKS = {"first": first, "any": anywhere, "count": count, "order": order}


class LastStep(SequenceBinaryClassifier):
    """The same encoder with the head on the last position; no padding here."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.project(x) + sinusoidal_positions(T, D)  # (B, T, D)
        return self.head(self.encoder(hidden)[:, -1])


def build(pooling: str, frozen: bool, layers: int) -> SequenceBinaryClassifier:
    kind, word = (LastStep, "mean") if pooling == "last" else (SequenceBinaryClassifier, pooling)
    model = kind(2, D, HEADS, layers, word, d_ff=2 * D)
    for part in (model.project, model.encoder):
        part.requires_grad_(not frozen)
    return model


def accuracy(task: str, pooling: str, frozen: bool, seed: int, layers: int = 1) -> float:
    """The share of fresh sequences that a model, newly trained, gets right."""
    torch.manual_seed(seed)
    model = build(pooling, frozen, layers)
    data = torch.Generator().manual_seed(100 + seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    for _ in range(STEPS):
        x = torch.randn(BATCH, T, 2, generator=data)
        optimizer.zero_grad()
        pooled_loss(model(x), TASKS[task](x)).backward()
        optimizer.step()
    fresh = torch.randn(FRESH, T, 2, generator=data)
    with torch.no_grad():
        right = (model(fresh)[:, 0] > 0) == TASKS[task](fresh)
    return round(right.float().mean().item(), 3)


def cell(scores: list[float]) -> str:
    """Mean over the seeds, and half of the distance between best and worst, in percent."""
    return f"{100 * statistics.mean(scores):.1f} ± {50 * (max(scores) - min(scores)):.1f}"


def table(tasks: dict, kind: str) -> str:
    lines = [f"| {kind} | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for pooling in (*POOLINGS, "last"):
        cells = [cell(tasks[task][pooling]) for task in tasks]
        lines.append(f"| {pooling} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {
        kind: {
            task: {
                pooling: [accuracy(task, pooling, kind == "frozen", seed) for seed in SEEDS]
                for pooling in (*POOLINGS, "last")
            }
            for task in TASKS
        }
        for kind in ("frozen", "trained")
    }
    deeper = [accuracy("count", "cls", False, seed, layers=2) for seed in SEEDS]
    for kind, tasks in results.items():
        print(table(tasks, kind), end="\n\n")
    print("cls on count, trained, two layers:", cell(deeper))
    results["two layers"] = {"count": {"cls": deeper}}
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
