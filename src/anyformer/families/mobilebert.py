"""MobileBERT: a thin BERT whose layers are bottlenecks of several feed-forwards. Sun et al. 2020, arXiv:2004.02984."""

from __future__ import annotations

from anyformer.families.bert import WORDPIECE
from anyformer.families.compose import attend, block, feed, post_norm, repeat
from anyformer.families.heads import row_classes
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    BottleneckSpec,
    ChainSpec,
    Everything,
    GainSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    ReLU,
    SegmentsSpec,
    ShiftSpec,
    TokensSpec,
)
from anyformer.spec import (
    BlockSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    Length,
    MapSpec,
    ModelSpec,
    StackSpec,
    TableSpec,
    Vocab,
    Width,
)

NO_NORM = ChainSpec(maps=(GainSpec(over="features"), ShiftSpec(over="features")))  # section 3.3


def layer(n_heads: int, d_ff: int, width: int, n_feeds: int) -> BlockSpec:
    """A bottleneck of this width: attention, whose queries and keys have one of their own, and feed-forwards (section 3.1)."""
    attention = attend(n_heads, bias=True, mask=Everything())
    attention = attention.but(projection=attention.projection.but(values_read="outer"))
    narrowing = ChainSpec(maps=(LinearSpec(d_out=Width(width), bias=True), NO_NORM))
    sublayers = (attention, *[feed(d_ff, ReLU())] * n_feeds)
    connection = BottleneckSpec(into=narrowing, reads=narrowing, norm=NO_NORM)
    return block(*(post_norm(NO_NORM, mixer) for mixer in sublayers)).but(connection=connection)


def mobilebert(n_layers: int, d_model: int, n_heads: int, d_ff: int, *, width: int, n_feeds: int) -> ModelSpec:
    """The model without heads; its table of tokens is as wide as the bottlenecks, and three tokens are projected as one."""
    table = TableSpec(rows=Vocab(30_522), width=Width(width), shared="tokens")
    terms = (
        TokensSpec(table=table, span=3, projection=LinearSpec(bias=True)),
        LearnedPositionsSpec(n_positions=Length(512)),
        SegmentsSpec(n_segments=Count(2)),
    )
    stack = StackSpec(
        d_model=Width(d_model),
        embedding=EmbeddingSpec(terms=terms, norm=NO_NORM),
        blocks=repeat(layer(n_heads, d_ff, width, n_feeds), n_layers),
    )
    return ModelSpec(stack=stack, context=Length(512))


def masked_words(model: ModelSpec, activation: MapSpec) -> HeadSpec:
    """The head for masked words, whose rows are the table's and further features of its own."""
    (tokens,) = (term for term in model.stack.embedding.terms if isinstance(term, TokensSpec))
    transform = (LinearSpec(bias=True), activation, LayerNormSpec(eps=1e-12))
    return HeadSpec(name="mlm", transform=transform, table=tokens.table, beside=True, bias=True)


def pretraining(model: ModelSpec) -> ModelSpec:
    """The model with what it is trained on: masked words, and whether the second sentence follows."""
    return model.but(heads=(masked_words(model, ReLU()), row_classes(2, "nsp")))


MOBILEBERT = Origin("mobilebert", "bert", 2020, "arXiv:2004.02984, section 3").lineage(
    "24 thin layers, each a bottleneck of attention and four feed-forwards; gains and shifts for norms; three tokens a vector",
    Preset(
        "mobilebert-uncased",
        pretraining(mobilebert(24, 512, 4, 512, width=128, n_feeds=4)),
        "25.3M",
        "36.9M with both heads, 11.7M of them for features that the table of tokens lacks; 24.6M with the pooler alone",
        alias="mobilebert",
    ),
    sizes="Sun et al. 2020, arXiv:2004.02984, table 1; the defaults of transformers' configuration",
    tokenizer=WORDPIECE,
)
