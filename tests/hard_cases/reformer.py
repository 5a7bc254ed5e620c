"""Reformer (enwik8): reversible, chunks and hashed buckets, axial positions. Kitaev et al. 2020, arXiv:2001.04451."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anyformer.families.compose import block, embedding, pre_norm, repeat
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    FeedForwardSpec,
    LayerNormSpec,
    LinearSpec,
    Mask,
    ReLU,
    ReversibleSpec,
    Tokens,
)
from anyformer.spec import (
    BlockSpec,
    Caveat,
    Count,
    HeadSpec,
    Length,
    MixerSpec,
    ModelSpec,
    Place,
    Placed,
    Sizes,
    StackSpec,
    TableSpec,
    TermSpec,
    Vocab,
    Weight,
    Width,
    Window,
)
from tests.hard_cases.case import Case, attention_heads, of_transformers

NORM = LayerNormSpec(eps=1e-12)


class AxialSpec(TermSpec):
    """A position is a row and a column, with a vector each, side by side."""

    n_rows: Length
    n_columns: Length
    row_width: Width  # the column has the rest

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        rest = place.shape[-1] - self.row_width
        return {
            "row": Weight((self.n_rows, self.row_width), ("position", "d_model"), "table"),
            "column": Weight((self.n_columns, rest), ("position", "d_model"), "table"),
        }


class Chunks(Mask):
    """A token sees its own chunk and the one before."""

    size: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position // self.size - key.position // self.size).abs() <= 1


class HashedSpec(MixerSpec):
    """Attention among tokens whose queries, which are the keys too, fall into one bucket."""

    n_heads: Count
    head_dim: Width
    n_hashes: Count
    chunk: Window

    def parts(self, place: Place) -> Mapping[str, Placed]:
        width = Width(self.n_heads * self.head_dim)
        into = (LinearSpec(d_out=width), place)
        return {"qk": into, "v": into, "o": (LinearSpec(role="output"), place.at(width))}

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"input": (place.d_model,)}

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("cache", "the buckets of a sequence depend on its length"),)

    def resized(self, to: Sizes) -> HashedSpec:
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        return self.but(n_heads=Count(n_heads), head_dim=head_dim, chunk=to.field(Window, self.chunk))


def reformer() -> ModelSpec:
    """Return enwik8's; sizes: the released config."""
    feed = pre_norm(NORM, FeedForwardSpec(d_ff=Width(4096), activation=ReLU()))

    def layer(mixer: MixerSpec) -> BlockSpec:
        return block(pre_norm(NORM, mixer), feed)

    heads = attention_heads(8, head_dim=128)
    local = layer(AttentionSpec(projection=heads, mask=Causal() & Chunks(size=Window(128))))
    hashed = layer(HashedSpec(n_heads=Count(8), head_dim=Width(128), n_hashes=Count(4), chunk=Window(256)))
    axial = AxialSpec(n_rows=Length(128), n_columns=Length(512), row_width=Width(256))
    stack = StackSpec(
        d_model=Width(1024),
        embedding=embedding(TableSpec(rows=Vocab(258)), axial),
        blocks=repeat([local, local, hashed, local], 12),
        residual=ReversibleSpec(output="both"),
        norm=NORM,
    )
    return ModelSpec(
        stack=stack, heads=(HeadSpec(table=TableSpec(rows=Vocab(258))),), init=ByRole(), context=Length(65_536)
    )


def theirs() -> Any:
    """Return the model of transformers."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "attention_head_size": 128, "feed_forward_size": 4096}
    axial = {"axial_pos_shape": [128, 512], "axial_pos_embds_dim": [256, 768], "max_position_embeddings": 65_536}
    layers = ["local", "local", "lsh", "local"] * 3
    every = {"attn_layers": layers, "vocab_size": 258, "is_decoder": True, **sizes, **axial}
    return of_transformers("ReformerModelWithLMHead", "ReformerConfig", **every)


# Their head has a bias that nothing reads.
CASE = Case("reformer-enwik8", reformer, "149M", theirs, surplus=258, missing="Axial")
