"""The Transformer of 2017 from torch.nn's own layers, with sinusoids and the embedding's scale written out anew."""

import math

import torch
from torch import Tensor, nn

EPS = 1e-6


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Section 3.5, number by number: sines at even features, cosines at odd ones; [batch, token, width]."""
    table = torch.zeros(*positions.shape, width)
    for i in range(0, width, 2):
        angle = positions.double() / 10000 ** (i / width)
        table[..., i], table[..., i + 1] = angle.sin().float(), angle.cos().float()
    return table


class Embedded(nn.Module):
    """Rows of a table times √width, plus sinusoids; the table gives the logits too (section 3.4)."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocab_size, width))

    def embed(self, ids: Tensor, real: Tensor) -> Tensor:
        """Positions count real tokens."""
        positions = (real.long().cumsum(-1) - 1).clamp(min=0)
        return self.table[ids] * math.sqrt(self.table.shape[1]) + sinusoids(positions, self.table.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.table.T


def _layer(kind: type[nn.Module], width: int, heads: int, d_ff: int) -> nn.Module:
    return kind(
        width, heads, d_ff, dropout=0.0, activation="relu", layer_norm_eps=EPS, batch_first=True, norm_first=False
    )


class LanguageModel(Embedded):
    """The decoder without cross-attention: an encoder layer with a causal mask."""

    def __init__(self, vocab_size: int, width: int, heads: int, d_ff: int, n_layers: int) -> None:
        super().__init__(vocab_size, width)
        self.layers = nn.ModuleList(_layer(nn.TransformerEncoderLayer, width, heads, d_ff) for _ in range(n_layers))

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        x = self.embed(ids, real)
        for layer in self.layers:
            x = layer(x, src_mask=hidden, src_key_padding_mask=~real)
        return self.logits(x)


class EncoderDecoder(Embedded):
    """Encoder and decoder share one table."""

    def __init__(self, vocab_size: int, width: int, heads: int, d_ff: int, n_layers: int) -> None:
        super().__init__(vocab_size, width)
        self.encoder = nn.ModuleList(_layer(nn.TransformerEncoderLayer, width, heads, d_ff) for _ in range(n_layers))
        self.layers = nn.ModuleList(_layer(nn.TransformerDecoderLayer, width, heads, d_ff) for _ in range(n_layers))

    def forward(self, source: Tensor, source_real: Tensor, ids: Tensor, real: Tensor) -> Tensor:
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        memory = self.embed(source, source_real)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=~source_real)
        x = self.embed(ids, real)
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=hidden,
                tgt_key_padding_mask=~real,
                memory_key_padding_mask=~source_real,
            )
        return self.logits(x)
