"""Reformer (enwik8): reversible, chunks and hashed buckets, axial positions. Kitaev et al. 2020, arXiv:2001.04451."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, embedding, pre_norm, repeat
from anyformer.layers import (
    AdjacentBlocks,
    AttentionSpec,
    AxialPositionsSpec,
    ByRole,
    Causal,
    FeedForwardSpec,
    LayerNormSpec,
    LSHAttentionSpec,
    ReLU,
    ReversibleSpec,
)
from anyformer.spec import (
    BlockSpec,
    Count,
    HeadSpec,
    Length,
    MixerSpec,
    ModelSpec,
    StackSpec,
    TableSpec,
    Vocab,
    Width,
    Window,
)
from tests.hard_cases.case import Case, attention_heads, of_transformers

NORM = LayerNormSpec(eps=1e-12)


def reformer() -> ModelSpec:
    """Return enwik8's; sizes: the released config."""
    feed = pre_norm(NORM, FeedForwardSpec(d_ff=Width(4096), activation=ReLU()))

    def layer(mixer: MixerSpec) -> BlockSpec:
        return block(pre_norm(NORM, mixer), feed)

    heads = attention_heads(8, head_dim=128)
    local = layer(AttentionSpec(projection=heads, mask=Causal() & AdjacentBlocks(size=Window(128))))
    hashed = layer(
        LSHAttentionSpec(n_heads=Count(8), head_dim=Width(128), n_hashes=4, n_buckets=(512,), chunk=Window(256))
    )
    axial = AxialPositionsSpec(shape=(128, 512), widths=(Width(256),))
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
CASE = Case("reformer-enwik8", reformer, "149M", theirs, surplus=258)
