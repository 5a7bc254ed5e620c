"""Zamba 2: Mamba-2, and one or two blocks of attention and a feed-forward that several layers share (arXiv:2411.15242)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from anyformer.families.compose import attend, block, changed, edited, gated, language_model, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AsideSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LinearSpec,
    RMSNormSpec,
    RotarySpec,
    SSDSpec,
)
from anyformer.spec import BlockSpec, BranchSpec, Count, ModelSpec, ScaleSpec, SublayerSpec, Width

EPS = 1e-5


def hybrid(mamba: BlockSpec, d_model: int, n_heads: int, d_ff: int, rank: int, *, low: bool) -> BlockSpec:
    """A layer whose Mamba reads what a shared block makes of the stream and the embedding's output beside it.

    Of its own are the map of what the block gives and, of that rank, what is added to the maps of the feed-forward and, where
    `low` says so, of attention (section 2).
    """
    attention = attend(n_heads, head_dim=2 * d_model // n_heads, scale=ScaleSpec(factor=2**0.5, power=-0.5))
    heads = attention.projection.but(
        with_input=True,
        norm_read=RMSNormSpec(eps=EPS, shared="block_norm"),
        adapter=Width(rank) if low else None,
    )
    feed = gated(d_ff, GELU()).but(adapter=Width(rank))
    norm = RMSNormSpec(eps=EPS, shared="block_norm_feed")
    return BlockSpec(
        sublayers=(
            SublayerSpec(branches=(BranchSpec(mixer=attention.but(projection=heads)),)),
            SublayerSpec(branches=(BranchSpec(mixer=feed, norm_in=norm, norm_out=LinearSpec()),)),
            *mamba.sublayers,
        ),
        connection=AsideSpec(),
    )


def turns(layer: BlockSpec, n: int) -> list[BlockSpec]:
    """The layer with each of `n` shared blocks, by their names."""

    def called(name: str) -> BlockSpec:
        named = changed(changed(layer, GQASpec, common=name), GatedFeedForwardSpec, common=name)
        return edited(
            named, RMSNormSpec, lambda norm: norm.but(shared=norm.shared and f"{name}_{norm.shared.partition('_')[2]}")
        )

    return [called(f"block{i}") for i in range(n)]


def zamba2(
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    ssm_heads: int,
    *,
    attending: Collection[int],
    n_blocks: int = 1,
    rank: int = 128,
    state_dim: int = 64,
    low: bool = False,
    rotary: RotarySpec | None = None,
) -> ModelSpec:
    """Mamba-2 in every layer, on twice the width; those that attend take the blocks in turn (table 1)."""
    head_dim = Width(2 * d_model // ssm_heads)
    ssd = SSDSpec(n_heads=Count(ssm_heads), head_dim=head_dim, state_dim=Width(state_dim), least_step=0.001)
    mamba, uses = block(pre_norm(RMSNormSpec(eps=EPS), ssd)), count()
    each = turns(hybrid(mamba, d_model, n_heads, d_ff, rank, low=low), n_blocks)
    blocks = tuple(each[next(uses) % n_blocks] if i in attending else mamba for i in range(n_layers))
    model = language_model(32_000, d_model, blocks, RMSNormSpec(eps=EPS), tied=True, context=4096)
    return changed(model, GQASpec, rotary=rotary)


RELEASED = "Zyphra 2024, the released configuration"
OF_1_2B, OF_2_7B = range(5, 36, 6), (*range(6, 43, 6), 47, 51)
ONE_BLOCK = {"attending": OF_1_2B, "state_dim": 128, "low": True, "rotary": RotarySpec()}
ZAMBA2 = Origin("zamba2", "mamba2", 2024, "arXiv:2411.15242, section 2").lineage(
    "shared blocks of attention and a feed-forward, with adapters for each use, that Mamba reads beside the stream",
    Preset("zamba2-1.2b", zamba2(38, 2048, 32, 8192, 64, **ONE_BLOCK), "1.2B", source=f"{RELEASED} (from memory)"),
    Preset("zamba2-2.7b", zamba2(54, 2560, 32, 10_240, 80, attending=OF_2_7B, n_blocks=2), "2.7B", alias="zamba2"),
    family="mamba2",
    sizes=f"{RELEASED} (from memory; which layers attend: transformers' class)",
    tokenizer="SentencePiece BPE with byte fallback (Mistral's), 32,000",
)
