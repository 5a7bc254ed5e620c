"""Gemma 4 (text): Gemma 3n without its streams; full layers of wider heads, keys that are values, p-RoPE; a factor a layer."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import changed, edited, gated, repeat, windowed, with_layers
from anyformer.families.gemma import gemma
from anyformer.families.gemma3n import FULL, LOCAL, NORM, borrowing, injected, with_values_normed
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    GainSpec,
    GatedFeedForwardSpec,
    GQASpec,
    MoESpec,
    ProportionalRoPE,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SlidingWindow,
)
from anyformer.spec import BlockSpec, BranchSpec, Count, HeadSpec, ModelSpec, ScaleSpec, SublayerSpec, Width

FULL_ROTARY = RotarySpec(theta=1e6, scaling=ProportionalRoPE(share=0.25))
VOCABULARY, CONTEXT = 262_144, 131_072
EVERY = 6  # the sixth layer sees all
Mixture = tuple[int, int, int]  # experts, of a token, width of each


def beside(feed: SublayerSpec, mixture: Mixture) -> SublayerSpec:
    """The feed-forward with a mixture of experts beside it: both are normed before and after, so is their sum.

    The router reads the stream itself, by a norm of its own.
    """
    n_experts, top_k, width = mixture
    scale = ScaleSpec(power=-0.5)
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, norm=NORM, scale=scale, renormalise=True, gains=True)
    experts = BranchSpec(mixer=MoESpec(router=router, expert=gated(width, GELU(form="tanh")), norm=NORM), norm_out=NORM)
    (dense,) = feed.branches
    return SublayerSpec(branches=(dense.but(norm_in=feed.norm_in), experts), norm_out=NORM)


def completed(layer: BlockSpec, injection: BranchSpec | None, mixture: Mixture | None) -> BlockSpec:
    """The layer of attention and feed-forward, with its embeddings read behind them and a factor of the stream at its end."""
    attention, feed = layer.sublayers
    feed = feed if mixture is None else beside(feed, mixture)
    sublayers = (attention, feed) if injection is None else (attention, feed, SublayerSpec(branches=(injection,)))
    return layer.but(sublayers=(*sublayers[:-1], sublayers[-1].but(norm_sum=GainSpec(frozen=True))))


def sharing(layers: Sequence[BlockSpec], n_shared: int, widened: bool) -> tuple[BlockSpec, ...]:
    """The layers, of which the last `n_shared` read the keys of the last before them that sees as they do.

    `widened`: their feed-forwards are twice as wide.
    """
    if not n_shared:
        return tuple(layers)
    own, named = len(layers) - n_shared, [_named(layer) for layer in layers]
    return (*named[:own], *(_wide(borrowing(layer), 1 + widened) for layer in named[own:]))


def _named(layer: BlockSpec) -> BlockSpec:
    """The layer with a name of its keys, by what it sees."""
    near = any(layer.nested(SlidingWindow))
    return changed(layer, AttentionSpec, keys=LOCAL if near else FULL)


def _wide(layer: BlockSpec, times: int) -> BlockSpec:
    return edited(layer, GatedFeedForwardSpec, lambda feed: feed.but(d_ff=Width(times * feed.d_ff)))


def gemma4(
    *sizes: int,
    n_shared: int = 0,
    widened: bool = False,
    width: int | None = 256,
    mixture: Mixture | None = None,
    full_kv_heads: int | None = None,
    window: int = 512,
    every: int = EVERY,
    context: int = CONTEXT,
) -> ModelSpec:
    """Windows, and a full layer `every` few; `full_kv_heads`: so many in full layers, each a key and a value at once.

    `width`: of the embeddings that each layer reads, None for none.
    """
    model = gemma(*sizes, vocab_size=VOCABULARY, context=context)
    model = edited(model, RMSNormSpec, lambda _: NORM)
    model = changed(with_values_normed(changed(model, BranchSpec, norm_out=NORM)), HeadSpec, softcap=30.0)
    heads = {"head_dim": Width(512), "rotary": FULL_ROTARY}
    if full_kv_heads is not None:
        heads |= {"n_kv_heads": Count(full_kv_heads), "values_are_keys": True}
    injection = None if width is None else injected(VOCABULARY, width)
    local, full = windowed(model, window), changed(model, GQASpec, **heads)
    near, all_ = (completed(kind.stack.blocks[0], injection, mixture) for kind in (local, full))
    layers = repeat((*[near] * (every - 1), all_), model.n_layers)
    return with_layers(model, sharing(layers, n_shared, widened))


SEEING = "the model card counts what sees and hears too, about 0.45B"
_LONG = {"width": None, "window": 1024, "context": 262_144}
GEMMA4 = Origin("gemma4", "gemma3n", 2026, "Google DeepMind, April 2026; transformers' Gemma4ForCausalLM").lineage(
    "one stream, full layers with heads of 512 of which a quarter turns (p-RoPE), a learned factor of each layer",
    Preset("gemma4-e2b", gemma4(35, 1536, 8, 6144, 1, n_shared=20, widened=True, every=5), "5.1B", SEEING),
    Preset("gemma4-e4b", gemma4(42, 2560, 8, 10_240, 2, n_shared=18), "8B", SEEING, alias="gemma4"),
    Preset("gemma4-26b-a4b", gemma4(30, 2816, 16, 2112, 8, mixture=(128, 8, 704), full_kv_heads=2, **_LONG), "25.2B"),
    Preset("gemma4-31b", gemma4(60, 5376, 32, 21_504, 16, full_kv_heads=4, **_LONG), "30.7B"),
    family="gemma",
    sizes="Google DeepMind 2026, the text models of the released configurations and the totals of the model card (from memory)",
    tokenizer="SentencePiece with byte fallback, 262,144",
)
