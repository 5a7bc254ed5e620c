"""T5Gemma: two Gemma 2 models as encoder and decoder (Zhang et al. 2025, arXiv:2504.06225); T5Gemma 2: two Gemma 3 models
(Zhang et al. 2025, arXiv:2512.14856)."""

from __future__ import annotations

from anyformer.families.compose import bidirectional, changed, edited, untied
from anyformer.families.gemma import gemma2, gemma3, gemma3_small
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AttentionSpec, Everything, GQASpec, LookAhead, Mask, SlidingWindow
from anyformer.spec import BlockSpec, ModelSpec, Window


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


def halves(size: int) -> Mask:
    """A window of `size` keys around a token, its own among them, one more of them ahead than back where it is even."""
    back, ahead = Window((size + 1) // 2), Window(size // 2)
    return SlidingWindow(size=back) & LookAhead(size=ahead)


def t5gemma2(encoder: ModelSpec, decoder: ModelSpec) -> ModelSpec:
    """The decoder attending to the encoder's tokens and its own at once; the table is one for both and the logits (section 2)."""

    def around(attention: AttentionSpec) -> AttentionSpec:
        reach = attention.mask.reach()
        return attention.but(mask=Everything() if reach is None else halves(reach))

    merged = changed(decoder.stack, AttentionSpec, memory=True)
    return decoder.but(stack=merged, encoder=edited(encoder.stack, AttentionSpec, around))


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

_270M, _1B = gemma3_small(18, 640, 4, 2048, 1), gemma3_small(26, 1152, 4, 6912, 1)
_4B = gemma3(34, 2560, 8, 10_240, 4)
ROUNDED = "the release speaks of about 370M, the tower that sees left out"
T5GEMMA2 = Origin("t5gemma2", "t5gemma", 2025, "arXiv:2512.14856, section 2").lineage(
    "Gemma 3's layers, one softmax over the encoder's tokens and the decoder's own, one table",
    Preset("t5gemma2-270m-270m", t5gemma2(_270M, _270M), "370M", ROUNDED, alias="t5gemma2"),
    Preset("t5gemma2-1b-1b", t5gemma2(_1B, _1B), "1.7B"),
    Preset("t5gemma2-4b-4b", t5gemma2(_4B, _4B), "7B"),
    family="gemma",
    sizes="Zhang et al. 2025, arXiv:2512.14856 (from memory): sizes as Gemma 3's, the text model",
    tokenizer="SentencePiece with byte fallback, 262,144",
)
