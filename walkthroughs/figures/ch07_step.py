"""Where the time of a training step goes, and how it grows with the width.

    python -m walkthroughs.figures.ch07_step

One step of `fit_fixed_batch` in float32 on one thread: forward with the loss, backward, clipping
and AdamW. Each time is the quickest of many steps.
"""

import time

import torch
from torch import nn

from solutions.ch07_decoder import Config, TransformerLM

B, T, V, LAYERS = 4, 64, 512, 2
WIDTHS = (32, 64, 128, 256)
SECONDS = 0.6  # spent on each width


def times_of_a_step(D: int) -> tuple[int, list[float]]:
    """The number of parameters, and the seconds of forward, backward and update."""
    torch.manual_seed(0)
    model = TransformerLM(Config(V, T, D, D // 16, LAYERS, 4 * D))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(V, (B, T))
    end, steps = time.perf_counter() + SECONDS, []
    while time.perf_counter() < end or len(steps) < 3:
        times = [time.perf_counter()]
        loss = model(tokens, tokens)["loss"]
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        times.append(time.perf_counter())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter())
        steps.append([after - before for before, after in zip(times, times[1:], strict=False)])
    size = sum(p.numel() for p in model.parameters())
    return size, [min(column) for column in zip(*steps, strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"B={B} T={T} V={V}, {LAYERS} layers, float32, milliseconds")
    print(
        f"{'D':>4}{'numbers':>10}{'forward':>10}{'backward':>10}{'update':>8}{'step / forward':>16}"
    )
    for D in WIDTHS:
        size, (forward, backward, update) = times_of_a_step(D)
        milliseconds = "".join(
            f"{1e3 * s:>{w}.1f}" for s, w in ((forward, 10), (backward, 10), (update, 8))
        )
        print(f"{D:>4}{size:>10}{milliseconds}{(forward + backward + update) / forward:>16.1f}")
