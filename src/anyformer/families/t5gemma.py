"""T5Gemma: two Gemma 2 models as encoder and decoder (Zhang et al. 2025, arXiv:2504.06225)."""

from __future__ import annotations

from anyformer.families.compose import bidirectional, changed, edited, untied
from anyformer.families.gemma import gemma2
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AttentionSpec, Everything, GQASpec
from anyformer.spec import BlockSpec, ModelSpec


def _listening(layer: BlockSpec) -> BlockSpec:
    """The layer with attention to the encoder's output behind its own: as wide, without rotation, under no mask."""
    first, *rest = layer.sublayers

    def cross(attention: AttentionSpec) -> AttentionSpec:
        projection = changed(attention.projection, GQASpec, rotary=None)
        return attention.but(reads="memory", mask=Everything(), projection=projection)

    return layer.but(sublayers=(first, edited(first, AttentionSpec, cross), *rest))


def t5gemma(encoder: ModelSpec, decoder: ModelSpec) -> ModelSpec:
    """The decoder listening to an encoder, whose tokens see ahead as far as back and have a table of their own (section 2)."""
    return decoder.but(stack=edited(decoder.stack, BlockSpec, _listening), encoder=untied(bidirectional(encoder.stack)))


_2B, _9B = gemma2(26, 2304, 8, 9216, 4), gemma2(42, 3584, 16, 14_336, 8)

T5GEMMA = Origin("t5gemma", "gemma2", 2025, "arXiv:2504.06225, section 2").lineage(
    "an encoder that sees both ways, a decoder that listens to it by a third sublayer, a table of tokens each",
    Preset("t5gemma-2b-2b", t5gemma(_2B, _2B), alias="t5gemma"),
    Preset("t5gemma-9b-2b", t5gemma(_9B, _2B)),
    Preset("t5gemma-9b-9b", t5gemma(_9B, _9B)),
    family="gemma",
    sizes="Zhang et al. 2025, arXiv:2504.06225, section 3 (from memory): sizes as Gemma 2's",
    tokenizer="SentencePiece with byte fallback, 256,000",
)
