"""What depth does to the stream and to the gradients, with the norms before or behind the sums.

    python -m walkthroughs.figures.ch05_depth

One stack of fresh blocks is run twice: as it is (pre-LN), and with the same modules in post-LN
order. Prints, for some of its blocks, the standard deviation of the stream behind the block and
the norm of the gradient of the block's down_proj.
"""

import torch

from solutions.ch02_attention import causal_mask
from solutions.ch05_block import TransformerBlock

B, T, D, H, F, N = 4, 32, 64, 4, 256, 24
SHOWN = (1, 6, 12, 18, 24)


def pre_ln(block: TransformerBlock, x: torch.Tensor) -> torch.Tensor:
    return block(x)[0]


def post_ln(block: TransformerBlock, x: torch.Tensor) -> torch.Tensor:
    x = block.ln_attention(x + block.attention(x, mask=causal_mask(T)))
    return block.ln_feedforward(x + block.feedforward(x))


def stack() -> torch.nn.ModuleList:
    """N blocks whose matrices keep the variance of what goes through (Glorot)."""
    blocks = torch.nn.ModuleList(TransformerBlock(D, H, F) for _ in range(N))
    for parameter in blocks.parameters():
        if parameter.ndim == 2:
            torch.nn.init.xavier_normal_(parameter)
    return blocks


def measured(step, blocks: torch.nn.ModuleList) -> list[tuple[float, float]]:
    """(standard deviation of the stream, norm of the gradient) for each block."""
    blocks.zero_grad()
    rng = torch.Generator().manual_seed(1)
    x, head = torch.randn(B, T, D, generator=rng), torch.randn(D, 10, generator=rng) / D**0.5
    spreads = []
    for block in blocks:
        x = step(block, x)
        spreads.append(x.std().item())
    # a loss as behind a final norm and a random head
    logits = torch.nn.functional.layer_norm(x, (D,)) @ head
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(B * T) % 10).backward()
    norms = [block.feedforward.down_proj.weight.grad.norm().item() for block in blocks]
    return list(zip(spreads, norms, strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = stack()
    pre, post = measured(pre_ln, blocks), measured(post_ln, blocks)
    print(f"{N} fresh blocks, D={D} F={F}: deviation of the stream, gradient of down_proj")
    print(f"{'block':>5}  {'pre-LN':>16}  {'post-LN':>16}")
    for n in SHOWN:
        (spread, norm), (post_spread, post_norm) = pre[n - 1], post[n - 1]
        print(f"{n:>5}  {spread:>8.2f}{norm:>8.3f}  {post_spread:>8.2f}{post_norm:>8.3f}")
