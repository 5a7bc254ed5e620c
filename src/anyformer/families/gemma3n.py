"""Gemma 3n (text): Gemma 3 with four streams (AltUp), LAuReL, embeddings of each layer, sparse activations, shared keys."""

from __future__ import annotations

from anyformer.families.compose import changed, edited, windowed
from anyformer.families.gemma import gemma
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AltUpSpec,
    AttentionSpec,
    FactorSpec,
    GainSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LaurelSpec,
    PerLayerEmbeddingSpec,
    RMSNormSpec,
    RotarySpec,
    StreamsSpec,
)
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    HeadSpec,
    ModelSpec,
    ScaleSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
)

NORM = RMSNormSpec(eps=1e-6, cast="after")
LOCAL, FULL = "local", "full"  # the names of keys that are shared
EVERY = 5  # the fifth layer sees all


def with_values_normed(model: ModelSpec) -> ModelSpec:
    """The model with queries and keys normed, values too but without a gain, and scores that are not scaled."""
    model = changed(model, GQASpec, norm_query=NORM, norm_key=NORM, norm_value=NORM.but(weight=False))
    return changed(model, AttentionSpec, scale=ScaleSpec())


def injected(vocab_size: int, width: int) -> BranchSpec:
    """The branch that reads the layer's own embeddings, `width` numbers a token; its norm is one for all layers."""
    mixer = PerLayerEmbeddingSpec(
        table=TableSpec(rows=Vocab(vocab_size), width=Width(width)),
        activation=GELU(form="tanh"),
        norm=NORM.but(shared="per_layer"),
    )
    return BranchSpec(mixer=mixer, norm_out=NORM)


def borrowing(layer: BlockSpec) -> BlockSpec:
    """The layer that reads the keys and values of the last before it that lends such."""
    return changed(layer, AttentionSpec, reads="layer")


def _streamed(layer: BlockSpec, injection: BranchSpec) -> BlockSpec:
    """A layer on the first of the streams, LAuReL beside its attention; then its embeddings are added to the other streams."""
    attention, feed = layer.sublayers
    around = BranchSpec(mixer=LaurelSpec(rank=Width(64), norm=NORM))
    attention = attention.but(
        branches=(attention.branches[0].but(norm_out=NORM), around), norm_sum=FactorSpec(factor=2**-0.5)
    )
    feed = feed.but(branches=(feed.branches[0].but(norm_out=NORM),))
    last = SublayerSpec(norm_in=GainSpec(over="features"), branches=(injection,))
    return BlockSpec(sublayers=(attention, feed, last), connection=AltUpSpec(inside=2, norm=NORM))


def gemma3n(*sizes: int, n_shared: int = 0) -> ModelSpec:
    """Four windows to a full layer; the first ten have sparse activations, the last `n_shared` read others' keys."""
    model = gemma(*sizes, vocab_size=262_400, context=32_768)
    model = changed(with_values_normed(edited(model, RMSNormSpec, lambda _: NORM)), HeadSpec, softcap=30.0)
    injection = injected(262_144, 256)
    local = changed(windowed(model, 512), AttentionSpec, keys=LOCAL)
    full = changed(changed(model, RotarySpec, theta=1e6), AttentionSpec, keys=FULL)
    each = [_streamed(kind.stack.blocks[0], injection) for kind in (local, full)]
    blocks = []
    for i in range(model.n_layers):
        layer = each[(i + 1) % EVERY == 0]
        layer = changed(layer, GatedFeedForwardSpec, sparsity=0.95) if i < 10 else layer
        blocks.append(borrowing(layer) if i >= model.n_layers - n_shared else layer)
    stack = model.stack.but(blocks=tuple(blocks), residual=StreamsSpec(n=Count(4)))
    return model.but(stack=stack)


GEMMA3N = Origin("gemma3n", "gemma3", 2025, "Google DeepMind, June 2025; transformers' Gemma3nForCausalLM").lineage(
    "four streams of which a layer computes one, embeddings for each layer, the last layers read others' keys and values",
    Preset("gemma3n-e4b", gemma3n(35, 2048, 8, 16_384, 2, n_shared=15), alias="gemma3n"),
    family="gemma",
    sizes="Google 2025, the text model of the released configuration",
    tokenizer="SentencePiece with byte fallback, 262,144",
)
