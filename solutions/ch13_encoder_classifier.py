"""Chapter 13: an encoder as a classifier (torch).

Every token reads every real token, to its left and to its right; the mean over the real tokens
goes to a linear head. Padding must be left out twice: as a key in attention, and in the mean.

Letters: B batch, T positions, D width, H heads, F width of the feed-forward, V vocabulary, C
classes. An attention mask is bool, and True means *blocked*.

Sources: Devlin et al. 2018, arXiv:1810.04805 (BERT: an encoder that reads both ways); Vaswani et
al. 2017, arXiv:1706.03762, section 3 (encoder, sinusoids); Xiong et al. 2020, arXiv:2002.04745
(pre-LN).
"""

import torch
from torch import Tensor, nn

from solutions.ch03_multihead import MultiHeadAttention  # given
from solutions.ch04_positions import sinusoidal_positions  # given
from solutions.ch05_block import FeedForward  # given


def check_tokens(tokens: Tensor, max_len: int) -> None:
    """Given: refuse what is no batch of ids, or longer than the table of positions.

    Raises:
        ValueError: naming `tokens`: not int64 of shape (B, T), no column, or T above max_len.
    """
    if tokens.dtype != torch.int64 or tokens.ndim != 2:
        raise ValueError(
            f"tokens must be int64 of shape (B, T), got {tokens.dtype} {tuple(tokens.shape)}"
        )
    T = tokens.shape[1]
    if not 1 <= T <= max_len:
        raise ValueError(f"tokens must have 1 to max_len = {max_len} columns, got {T}")


class EncoderBlock(nn.Module):
    """Attention both ways, then feed-forward, each added to the stream (pre-LN); the constructor
    is given.

    Args:
        d_model: D, the width of the stream.
        n_heads: H, divides d_model.
        ff_dim:  F, the width inside the feed-forward.
        dropout: probability for both sub-layers' outputs and for the attention weights.

    Attributes:
        ln_attention, ln_feedforward: nn.LayerNorm over D, each with a weight and a bias of its own.
        attention:   MultiHeadAttention of chapter 3, biases in all four projections; drops
                     attention weights itself.
        feedforward: FeedForward of chapter 5: up, exact GELU, down; drops its output itself.
        dropout:     nn.Dropout, for the attention's output.

    Raises:
        ValueError: naming `n_heads`: below 1, or does not divide d_model.
    """

    def __init__(self, d_model: int, n_heads: int, ff_dim: int, dropout: float = 0.0):
        super().__init__()
        self.ln_attention = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, n_heads, dropout, bias=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_feedforward = nn.LayerNorm(d_model)
        self.feedforward = FeedForward(d_model, ff_dim, dropout)

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Let each token gather from all tokens that are not blocked, then think alone; pre-LN.

        middle = hidden + dropout(attention(ln_attention(hidden), mask))
        out    = middle + feedforward(ln_feedforward(middle))

        Args:
            hidden: (B, T, D) float, the stream.
            mask:   None (each token sees all, itself and later ones too), or bool, True = blocked:
                    (T, T), or four axes that broadcast to (B, H, T, T), such as (B, 1, 1, T) for
                    padding.
            return_weights: give the attention weights too.

        Returns:
            out (B, T, D) in hidden's dtype, or (out, weights) with weights (B, H, T, T): every
            head's own, as they were *before* dropout. Dropout acts in training only, once on each
            sub-layer's output. A query whose keys are all blocked gathers nothing but the bias of
            o_proj. Nothing that came in is changed.

        Raises:
            ValueError: naming `mask`: three axes, not bool, or no fit; `MultiHeadAttention`
                checks it.

        Not allowed: nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention,
        F.scaled_dot_product_attention and the functions below them.

        Example (q and k are 0, so a token adds the mean of the normed tokens that it sees; the
        normed tokens are (-1, 1), (1, -1), (-1, 1), the last is blocked; the feed-forward adds 0):
            >>> block = EncoderBlock(d_model=2, n_heads=1, ff_dim=4).requires_grad_(False)
            >>> for parameter in (*block.attention.parameters(), *block.feedforward.parameters()):
            ...     _ = parameter.zero_()
            >>> _ = block.attention.v_proj.weight.copy_(torch.eye(2))
            >>> _ = block.attention.o_proj.weight.copy_(torch.eye(2))
            >>> hidden = torch.tensor([[[0.0, 2.0], [2.0, 0.0], [0.0, 2.0]]])
            >>> block(hidden)
            tensor([[[-0.3333,  2.3333],
                     [ 1.6667,  0.3333],
                     [-0.3333,  2.3333]]])
            >>> padding = torch.tensor([[[[False, False, True]]]])  # (B, 1, 1, T)
            >>> out, weights = block(hidden, padding, return_weights=True)
            >>> out  # -1 and 1 cancel
            tensor([[[0., 2.],
                     [2., 0.],
                     [0., 2.]]])
            >>> weights[0, 0]
            tensor([[0.5000, 0.5000, 0.0000],
                    [0.5000, 0.5000, 0.0000],
                    [0.5000, 0.5000, 0.0000]])

        Always true:
            * where both sub-layers give 0, out is hidden;
            * without a mask, tokens permuted give their results permuted: order is unknown here;
            * what stands at a blocked key changes no other token;
            * equals one layer of nn.TransformerEncoder (norm_first, "gelu") with the same weights.
        """
        # --- solution ---
        normed = self.ln_attention(hidden)
        attended, weights = self.attention(normed, mask=mask, return_weights=True)
        hidden = hidden + self.dropout(attended)
        hidden = hidden + self.feedforward(self.ln_feedforward(hidden))
        return (hidden, weights) if return_weights else hidden


class EncoderClassifier(nn.Module):
    """An encoder with a padding-aware mean and a linear head; the constructor is given.

    Args:
        vocab_size:  V.
        d_model:     D.
        n_heads:     H, divides d_model.
        n_layers:    the number of blocks.
        ff_dim:      F.
        dropout:     probability for the sum of embedding and position, the attention weights and
                     the sub-layers' outputs.
        max_len:     the most columns that tokens may have.
        num_classes: C.
        pad_id:      the id that stands where a row has no token; any of 0..V-1.

    Attributes:
        pad_id, max_len:   as given.
        token_embedding:   nn.Embedding, V rows of D. The row of pad_id is a row like the others.
        positions:         buffer (max_len, D), `sinusoidal_positions`; not learned, not saved.
        embedding_dropout: nn.Dropout.
        blocks:            nn.ModuleList of n_layers EncoderBlock, each with parameters of its own.
        final_norm:        nn.LayerNorm over D.
        head:              nn.Linear, D to C, with bias.

    Raises:
        ValueError: naming `n_heads`: below 1, or does not divide d_model.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        ff_dim: int = 128,
        dropout: float = 0.1,
        max_len: int = 64,
        num_classes: int = 2,
        pad_id: int = 0,
    ):
        super().__init__()
        self.pad_id = pad_id
        self.max_len = max_len
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.register_buffer("positions", sinusoidal_positions(max_len, d_model), persistent=False)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(d_model, n_heads, ff_dim, dropout) for _ in range(n_layers)
        )
        self.final_norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class logits of each row, from the mean of its real tokens' final states.

        hidden = dropout(token_embedding[tokens] + positions[0 .. T-1])
        hidden = block(hidden, keys blocked where tokens is pad_id)    for each block in turn
        pooled = mean of final_norm(hidden) over the tokens that are not pad_id
        logits = head(pooled)

        Args:
            tokens: (B, T) int64 in 0..V-1, T at most max_len. pad_id is padding wherever it
                    stands; the position of a token is its column, whatever stands before it.

        Returns:
            (B, C) float, logits and not probabilities. A row of nothing but pad_id has a mean of
            0, so its logits are the head's bias, and no gradient becomes NaN. Embeddings are not
            scaled by sqrt(D). Dropout acts in training only. tokens are unchanged.

        Raises:
            ValueError: naming `tokens`; `check_tokens` checks them.
            any exception, for an id outside 0..V-1.

        Not allowed: nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention,
        F.scaled_dot_product_attention and the functions below them.

        Example (blocks and positions add 0; ids 1 and 2 are (0, 2) and (2, 0), which the final norm
        makes (-1, 1) and (1, -1); two real tokens of the first and one of the second: -1/3, 1/3):
            >>> model = EncoderClassifier(vocab_size=3, d_model=2, n_heads=1).requires_grad_(False)
            >>> model = model.eval()
            >>> for parameter in (*model.blocks.parameters(), model.positions):
            ...     _ = parameter.zero_()
            >>> _ = model.token_embedding.weight.copy_(torch.tensor([[9.0, 0], [0, 2], [2, 0]]))
            >>> _ = model.head.weight.copy_(torch.tensor([[1.0, 0], [0, 10]]))
            >>> _ = model.head.bias.copy_(torch.tensor([0.0, 5.0]))
            >>> model(torch.tensor([[1, 2, 1, 0, 0], [0, 0, 0, 0, 0]]))
            tensor([[-0.3333,  8.3333],
                    [ 0.0000,  5.0000]])

        Always true:
            * more padding behind a row changes nothing, and so does the embedding of pad_id;
            * the rows of a batch do not see each other;
            * equals nn.TransformerEncoder (norm_first, "gelu") with the same weights, under
              src_key_padding_mask, between this embedding and this mean and head.
        """
        # --- solution ---
        check_tokens(tokens, self.max_len)
        valid = tokens != self.pad_id  # (B, T)
        blocked = ~valid[:, None, None]  # (B, 1, 1, T)
        hidden = self.token_embedding(tokens) + self.positions[: tokens.shape[1]]  # (B, T, D)
        hidden = self.embedding_dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden, blocked)
        hidden = self.final_norm(hidden)
        count = valid.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        pooled = (hidden * valid[..., None]).sum(dim=1) / count  # (B, D)
        return self.head(pooled)  # (B, C)

    def get_attention_weights(self, tokens: Tensor, layer: int) -> Tensor:
        """The attention weights of one layer, as forward uses them: what a heat map shows.

        weights = softmax(q k^T / sqrt(K)) per head of blocks[layer], 0 where tokens is pad_id;
        q and k from ln_attention of that block's own input

        Args:
            tokens: (B, T) int64 in 0..V-1, as for forward.
            layer:  which block, 0 .. n_layers - 1.

        Returns:
            (B, H, T, T) float, [b, h, i, j] the weight that query i gives to key j: every head's
            own, as they are *before* dropout. They are those of a call of forward in the mode the
            model is in: in training, dropout acts on what the layer reads, as it does there; for a
            picture call eval() first. The mode of no submodule changes, and no requires_grad. Only
            keys are blocked: a padded query has weights too. In a row of nothing but pad_id all
            weights are 0.

        Raises:
            ValueError: naming `layer`: below 0 (no counting from the end) or n_layers and more;
                naming `tokens`; `check_tokens` checks them.
            any exception, for an id outside 0..V-1.

        Not allowed: nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention,
        F.scaled_dot_product_attention and the functions below them.

        Example (the normed tokens are (-1, 1) and (1, -1); q and k read the second feature, q
        log 3 / 2 times as loud: a score is log 3 / 2 or its negative, so weights are 3 to 1):
            >>> model = EncoderClassifier(vocab_size=3, d_model=2, n_heads=1).requires_grad_(False)
            >>> model = model.eval()
            >>> for parameter in (*model.blocks[0].attention.parameters(), model.positions):
            ...     _ = parameter.zero_()
            >>> _ = model.token_embedding.weight.copy_(torch.tensor([[9.0, 0], [0, 2], [2, 0]]))
            >>> scale = torch.tensor(3.0).log() / 2**0.5
            >>> for name, loud in {"q": scale, "k": 1.0}.items():
            ...     projection = model.blocks[0].attention.get_submodule(f"{name}_proj")
            ...     _ = projection.weight.copy_(torch.tensor([[0.0, loud], [0, 0]]))
            >>> model.get_attention_weights(torch.tensor([[1, 2, 0]]), layer=0)
            tensor([[[[0.7500, 0.2500, 0.0000],
                      [0.2500, 0.7500, 0.0000],
                      [0.2500, 0.7500, 0.0000]]]])

        Always true:
            * every query's weights sum to one, in training too;
            * the weights of a layer depend on the blocks before it and not on those behind it.
        """
        # --- solution ---
        check_tokens(tokens, self.max_len)
        if not 0 <= layer < len(self.blocks):
            raise ValueError(f"layer must be in 0..{len(self.blocks) - 1}, got {layer}")
        blocked = (tokens == self.pad_id)[:, None, None]  # (B, 1, 1, T)
        hidden = self.token_embedding(tokens) + self.positions[: tokens.shape[1]]  # (B, T, D)
        hidden = self.embedding_dropout(hidden)
        for block in self.blocks[:layer]:
            hidden = block(hidden, blocked)
        _, weights = self.blocks[layer](hidden, blocked, return_weights=True)
        return weights
