"""The Transformer of `examples/multi30k` made of `torch.nn.Transformer`, with our weights put in and taken out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

WIDTH, HEADS, D_FF, LAYERS, EPS = 256, 4, 1024, 3, 1e-6

Row = tuple[str, str, Callable[[Tensor], Tensor]]  # our name, theirs, and which part of theirs is ours


class TorchTransformer(nn.Module):
    """One table for source, target and logits, sinusoids, three layers a side, norms after each sum and none at the end.

    Dropout acts where the recipe has it: on what is embedded and on what each sublayer adds.
    """

    def __init__(self, rows: int, dropout: float) -> None:
        super().__init__()
        shape = {"activation": "relu", "layer_norm_eps": EPS, "batch_first": True, "norm_first": False}
        encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, D_FF, dropout, **shape)
        decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, D_FF, dropout, **shape)
        self.transformer = nn.Transformer(
            WIDTH,
            HEADS,
            batch_first=True,
            custom_encoder=nn.TransformerEncoder(encoder, LAYERS, norm=None, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(decoder, LAYERS, norm=None),
        )
        for part in self.transformer.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0  # of attention's weights
            elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                part.dropout = nn.Dropout(0.0)  # within the feed-forward layer
        self.table = nn.Parameter(torch.zeros(rows, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def embedded(self, ids: Tensor) -> Tensor:
        """Return [batch, token, width]: padding stands at the right, so that a token's place is its position."""
        place = torch.arange(ids.shape[1], dtype=torch.float32)[:, None]
        angle = place * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        sinusoids = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
        return self.dropout(self.table[ids] * math.sqrt(WIDTH) + sinusoids)

    def forward(self, source: Tensor, source_real: Tensor, target: Tensor, target_real: Tensor) -> Tensor:
        """Return logits [batch, token, row]; `…_real` are True at tokens."""
        hidden = self.transformer(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=~source_real,
            tgt_key_padding_mask=~target_real,
            memory_key_padding_mask=~source_real,
        )
        return hidden @ self.table.T


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor."""
    return tensor


def third(k: int) -> Callable[[Tensor], Tensor]:
    """Return what cuts the queries' (0), keys' (1) or values' (2) rows out of torch.nn's one projection."""
    return lambda tensor: tensor[k * WIDTH : (k + 1) * WIDTH]


def layout() -> Iterator[Row]:
    """Yield where each of our tensors is in theirs."""
    yield "shared.tokens.weight", "table", whole
    for side, ours, attentions in (("encoder", "encoder", ("self_attn",)), ("decoder", "stack", ATTENTIONS)):
        for n in range(LAYERS):
            block, layer = f"{ours}.blocks.{n}.sublayers", f"transformer.{side}.layers.{n}"
            for i, attention in enumerate(attentions):
                yield from _attention(f"{block}.{i}.branches.0.mixer.projection", f"{layer}.{attention}")
            last = len(attentions)
            for kind in ("weight", "bias"):
                yield f"{block}.{last}.branches.0.mixer.up.{kind}", f"{layer}.linear1.{kind}", whole
                yield f"{block}.{last}.branches.0.mixer.down.{kind}", f"{layer}.linear2.{kind}", whole
                for i in range(last + 1):
                    yield f"{block}.{i}.norm_sum.{kind}", f"{layer}.norm{i + 1}.{kind}", whole


ATTENTIONS = ("self_attn", "multihead_attn")


def _attention(ours: str, theirs: str) -> Iterator[Row]:
    for kind in ("weight", "bias"):
        for k, letter in enumerate("qkv"):
            yield f"{ours}.{letter}.{kind}", f"{theirs}.in_proj_{kind}", third(k)
        yield f"{ours}.o.{kind}", f"{theirs}.out_proj.{kind}", whole


def put(ours: Mapping[str, Tensor], theirs: nn.Module) -> None:
    """Give torch.nn's modules our weights, every one of which must have its place."""
    held, rows = theirs.state_dict(), list(layout())
    assert {name for name, _, _ in rows} == set(ours)
    assert {name for _, name, _ in rows} == set(held)
    for name, place, part in rows:
        part(held[place]).copy_(ours[name].detach())


def taken(theirs: nn.Module) -> dict[str, Tensor]:
    """Return our weights from torch.nn's modules."""
    held = theirs.state_dict()
    return {name: part(held[place]).clone() for name, place, part in layout()}
