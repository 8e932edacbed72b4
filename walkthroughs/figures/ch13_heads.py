"""Draw ch13_heads.svg: what two heads of one layer look at, and what their average shows.

    python -m walkthroughs.figures.ch13_heads

The model is set by hand. Words are marked in columns 4 to 7, where the sinusoids hardly move; head
0 compares these. Columns 0 and 1 hold sin t and cos t; head 1 turns its query by one position, so
that it asks for the token behind. Column 3 is made 0 and subtracted, which takes back the mean that
the norm has subtracted. The sentence has two columns of padding.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from solutions.ch13_encoder_classifier import EncoderClassifier

WORDS = ["[pad]", "the", "cat", "saw", "dog"]
TOKENS = torch.tensor([[1, 2, 3, 1, 4, 0, 0]])  # the cat saw the dog


@torch.no_grad()
def two_heads() -> EncoderClassifier:
    """A model of width 8 whose only layer has a head for words and a head for the next token."""
    model = EncoderClassifier(len(WORDS), d_model=8, n_heads=2, n_layers=1, ff_dim=8, max_len=7)
    model.token_embedding.weight.zero_()
    model.token_embedding.weight[:, 3] = -1.0  # against cos(t / 10), which is near 1
    model.token_embedding.weight[1:, 4:] = 4 * torch.eye(4) - 1
    attention = model.blocks[0].attention
    for parameter in attention.parameters():
        parameter.zero_()
    words = torch.eye(4) - 1 / 4  # what the columns have in common says nothing
    attention.q_proj.weight[:4, 4:], attention.k_proj.weight[:4, 4:] = words, words
    sin, cos = math.sin(1), math.cos(1)
    one_on = torch.tensor([[cos, sin], [-sin, cos]])  # (sin t, cos t) to those of t + 1
    position = torch.tensor([[1.0, 0, 0, -1], [0, 1, 0, -1]])
    attention.q_proj.weight[4:6, :4] = 16 * one_on @ position
    attention.k_proj.weight[4:6, :4] = position
    return model.eval()


def draw(path: Path, **options) -> None:
    plt.rcParams.update({"svg.hashsalt": "ch13_heads", "font.size": 11})
    weights = two_heads().get_attention_weights(TOKENS, layer=0)[0].detach()  # (H, T, T)
    panels = {"head 0: the same word": weights[0], "head 1: the next token": weights[1]}
    panels["average of both heads"] = weights.mean(dim=0)
    names = [WORDS[token] for token in TOKENS[0]]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained")
    for panel, (title, rows) in zip(axes, panels.items(), strict=True):
        image = panel.imshow(rows, cmap="Blues", vmin=0, vmax=1)
        for i, row in enumerate(rows.tolist()):
            for j, weight in enumerate(row):
                text = "×" if names[j] == "[pad]" else f"{weight:.2f}"
                color = "#888888" if text == "×" else "white" if weight > 0.55 else "black"
                panel.text(j, i, text, ha="center", va="center", color=color, fontsize=9)
        panel.set(title=title, xlabel="key", xticks=range(7), yticks=range(7))
        panel.set_xticklabels(names, rotation=45)
        panel.set_yticklabels(names)
        panel.tick_params(length=0)
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes, label="attention weight (× is blocked)", shrink=0.8)
    figure.savefig(path, **options)
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
