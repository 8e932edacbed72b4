"""What padding and heat maps cost: times in units of the same texts without padding.

    python -m walkthroughs.figures.ch13_cost

Padding is blocked, not skipped: every column goes through every block. Prints the time of forward
for texts of 16 tokens, padded to growing lengths, and of get_attention_weights for the last layer.
Each is the least of many runs taken in turn, in processor time on one thread.
"""

import time

import torch

from solutions.ch13_encoder_classifier import EncoderClassifier

B, REAL = 16, 16
LENGTHS = (16, 32, 64, 128)
SECONDS = 0.6


def quickest(functions: list) -> list[float]:
    """The least time of each function, run in turn for SECONDS."""
    end, least = time.perf_counter() + SECONDS, [float("inf")] * len(functions)
    while time.perf_counter() < end:
        for i, function in enumerate(functions):
            began = time.process_time()
            function()
            least[i] = min(least[i], time.process_time() - began)
    return least


@torch.inference_mode()
def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = EncoderClassifier(21128, max_len=max(LENGTHS)).eval()
    text = torch.randint(1, 21128, (B, REAL))
    batches = [torch.nn.functional.pad(text, (0, T - REAL)) for T in LENGTHS]
    runs = [lambda tokens=tokens: model(tokens) for tokens in batches]
    runs += [lambda: model.get_attention_weights(batches[0], 1)]
    *times, picture = quickest(runs)
    print(f"{B} texts of {REAL} tokens, D=64, two layers")
    print(f"{'columns':>7}  {'padding':>7}  {'time':>5}")
    for T, spent in zip(LENGTHS, times, strict=True):
        print(f"{T:>7}  {1 - REAL / T:>7.2f}  {spent / times[0]:>5.2f}")
    print(f"weights of the last layer, no padding: {picture / times[0]:.2f}")


if __name__ == "__main__":
    main()
