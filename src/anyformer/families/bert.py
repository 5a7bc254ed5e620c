"""BERT, RoBERTa, DistilBERT, MiniLM: arXiv:1810.04805, arXiv:1907.11692, arXiv:1910.01108, arXiv:2002.10957."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import block, post_norm, repeat, with_biases
from anyformer.families.heads import masked_words, row_classes
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AddSpec,
    AttentionSpec,
    ByRole,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    Normal,
    SegmentsSpec,
    TokensSpec,
)
from anyformer.spec import (
    BlockSpec,
    Count,
    EmbeddingSpec,
    Length,
    MapSpec,
    ModelSpec,
    StackSpec,
    TableSpec,
    TermSpec,
    Vocab,
    Width,
)


def encoder(
    *,
    vocab_size: int,
    d_model: int,
    blocks: tuple[BlockSpec, ...],
    norm: MapSpec,
    terms: Sequence[TermSpec] = (),
    width: int | None = None,
    masked: bool = False,
    context: int = 512,
) -> ModelSpec:
    """An encoder without heads: tokens and other terms summed, normed, and projected where `width` is their own."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")
    narrow = width not in (None, d_model)
    embedding = EmbeddingSpec(
        terms=(TokensSpec(table=table), *terms),
        width=Width(width) if narrow and width else None,
        norm=norm,
        projection=LinearSpec(bias=True) if narrow else None,
        masked=masked,
    )
    stack = StackSpec(d_model=Width(d_model), embedding=embedding, blocks=blocks, residual=AddSpec())
    start = Normal(scale=0.02)
    return ModelSpec(stack=stack, init=ByRole(table=start, matrix=start), context=Length(context))


def layer(n_heads: int, d_ff: int, norm: MapSpec, activation: ActivationSpec | None = None) -> BlockSpec:
    """Attention to all tokens and a feed-forward, biases everywhere, each normed after it is added."""
    heads = with_biases(GQASpec(n_heads=Count(n_heads)), qkv=True, output=True)
    feed = FeedForwardSpec(d_ff=Width(d_ff), activation=activation or GELU())
    return block(post_norm(norm, AttentionSpec(projection=heads)), post_norm(norm, feed))


def bert(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int | None = None,
    vocab_size: int = 30_522,
    n_segments: int = 2,
    offset: int = 0,
    width: int | None = None,
    context: int = 512,
    eps: float = 1e-12,
) -> ModelSpec:
    """BERT without heads (section 3); without segments the embedding has two terms."""
    norm = LayerNormSpec(eps=eps)
    positions = LearnedPositionsSpec(n_positions=Length(context), offset=offset)
    return encoder(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer(n_heads, d_ff or 4 * d_model, norm), n_layers),
        norm=norm,
        terms=(positions, SegmentsSpec(n_segments=Count(n_segments))) if n_segments else (positions,),
        width=width,
        context=context,
    )


def pretraining(model: ModelSpec) -> ModelSpec:
    """The model with what BERT is trained on: masked words, and whether the second sentence follows (section 3.1)."""
    return model.but(heads=(masked_words(model), row_classes(2, "nsp")))


def roberta(*, n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """BERT with a larger vocabulary, one segment, positions from row 2 on, without the second sentence (section 4)."""
    model = bert(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, vocab_size=50_265, n_segments=1, offset=2, eps=1e-5
    )
    return model.but(heads=(masked_words(model),))


def distilled(model: ModelSpec) -> ModelSpec:
    """The student with the head that it is compared with its teacher by."""
    return model.but(heads=(masked_words(model),))


BERT = "Devlin et al. 2018, arXiv:1810.04805, section 3"
ROBERTA = "Liu et al. 2019, arXiv:1907.11692, section 5; sizes as released"
DISTILBERT = "Sanh et al. 2019, arXiv:1910.01108, section 2 and table 3"
MINILM = "Wang et al. 2020, arXiv:2002.10957, table 3 (sizes from memory)"
WORDPIECE, BYTES = "WordPiece, 30,522", "byte-level BPE, 50,265"

_BASE, _LARGE = (
    bert(n_layers=12, d_model=768, n_heads=12),
    bert(n_layers=24, d_model=1024, n_heads=16),
)
_DISTIL = bert(n_layers=6, d_model=768, n_heads=12, n_segments=0)
_L12 = bert(n_layers=12, d_model=384, n_heads=12)
_L6 = bert(n_layers=6, d_model=384, n_heads=12)
_LARGE_NOTE = "336.2M with both heads, 335.1M with the pooler alone; the paper rounds up"
_DISTIL_NOTE = "67.0M with the head; the 66M are the encoder's 66,362,880"
_L6_NOTE = "22.7M with the head; the encoder's 22,565,376 are cut"

PRESETS = (
    Preset("bert-base", "bert", pretraining(_BASE), BERT, "110M", None, WORDPIECE),
    Preset("bert-large", "bert", pretraining(_LARGE), BERT, "340M", _LARGE_NOTE, WORDPIECE),
    Preset("roberta-base", "bert", roberta(n_layers=12, d_model=768, n_heads=12), ROBERTA, "125M", None, BYTES),
    Preset("roberta-large", "bert", roberta(n_layers=24, d_model=1024, n_heads=16), ROBERTA, "355M", None, BYTES),
    Preset("distilbert-base", "bert", distilled(_DISTIL), DISTILBERT, "66M", _DISTIL_NOTE, WORDPIECE),
    Preset("minilm-l12-h384", "bert", distilled(_L12), MINILM, "33M", None, WORDPIECE),
    Preset("minilm-l6-h384", "bert", distilled(_L6), MINILM, "22M", _L6_NOTE, WORDPIECE),
)
