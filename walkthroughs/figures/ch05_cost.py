"""Where a block spends its time as the text grows, beside where it spends its multiply-adds.

    python -m walkthroughs.figures.ch05_cost

Prints, for growing T, the share of a block's forward pass that goes into attention, measured and
counted, and the share of everything that the count leaves out: norms, GELU, residuals. Times are
the least of many runs taken in turn, in processor time on one thread.
"""

import time

import torch

from solutions.ch02_attention import causal_mask
from solutions.ch05_block import TransformerBlock, add_residual, gelu

B, D, H, F = 1, 128, 4, 512
LENGTHS = (64, 128, 256, 512)
SECONDS = 0.6  # spent on each length


def quickest(functions: list) -> list[float]:
    """The least time of each function, run in turn for SECONDS."""
    end, least = time.perf_counter() + SECONDS, [float("inf")] * len(functions)
    while time.perf_counter() < end:
        for i, function in enumerate(functions):
            began = time.process_time()
            function()
            least[i] = min(least[i], time.process_time() - began)
    return least


def shares(T: int) -> tuple[float, float, float]:
    """Of a block: attention's share measured and counted, and the share of what is not counted."""
    block = TransformerBlock(D, H, F).eval()
    hidden, wide, mask = torch.randn(B, T, D), torch.randn(B, T, F), causal_mask(T)

    def elementwise():
        block.ln_attention(hidden), block.ln_feedforward(hidden), gelu(wide)
        add_residual(add_residual(hidden, hidden), hidden)

    with torch.no_grad():
        whole, attention, rest = quickest(
            [lambda: block(hidden), lambda: block.attention(hidden, mask=mask), elementwise]
        )
    counted = 4 * D * D + 2 * T * D  # for each token, of 4 D^2 + 2 T D + 2 D F
    return attention / whole, counted / (counted + 2 * D * F), rest / whole


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"B={B} D={D} F={F}, shares of a block's forward pass")
    print(f"{'T':>5}  {'attention':>9}  {'counted':>7}  {'norms, GELU, sums':>17}")
    for T in LENGTHS:
        measured, counted, rest = shares(T)
        print(f"{T:>5}  {measured:>9.2f}  {counted:>7.2f}  {rest:>17.2f}")
