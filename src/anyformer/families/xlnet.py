"""XLNet: every order of the text, by two streams of content and queries. Yang et al. 2019, arXiv:1906.08237."""

from __future__ import annotations

from anyformer.families.compose import block, post_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    BlanksSpec,
    ByRole,
    BySegmentSpec,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    Normal,
    RelativeSinusoidSpec,
    TwoStreams,
)
from anyformer.spec import Count, EmbeddingSpec, HeadSpec, Length, ModelSpec, StackSpec, TableSpec, Vocab, Width

TOKENS = "tokens"


def xlnet(*, n_layers: int, d_model: int, n_heads: int, d_ff: int | None = None, vocab_size: int = 32_000) -> ModelSpec:
    """The model without heads (section 2): Transformer-XL's distances, either way, and segments in the scores."""
    norm, table = LayerNormSpec(eps=1e-12), TableSpec(rows=Vocab(vocab_size), shared=TOKENS)
    attend = AttentionSpec(
        projection=GQASpec(n_heads=Count(n_heads)),
        mask=TwoStreams(),
        scores=(RelativeSinusoidSpec(bidirectional=True), BySegmentSpec()),
    )
    feed = FeedForwardSpec(d_ff=Width(d_ff or 4 * d_model), activation=GELU())
    layer = block(post_norm(norm, attend), post_norm(norm, feed))
    terms = EmbeddingSpec(terms=(BlanksSpec(table=table),))
    stack = StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())
    start = Normal(scale=0.02)
    return ModelSpec(stack=stack, init=ByRole(table=start, matrix=start), context=Length(512))


def permuted_words(model: ModelSpec) -> HeadSpec:
    """The head that predicts words: the embedding's table, and a bias."""
    table = next(value for value in model.stack.embedding.nested() if isinstance(value, TableSpec))
    return HeadSpec(name="plm", table=table, bias=True)


def trained(model: ModelSpec) -> ModelSpec:
    """The model with the head that it is trained with."""
    return model.but(heads=(permuted_words(model),))


TRAINING = {
    "source": "Yang et al. 2019, arXiv:1906.08237, section 3.1 and appendix A.4 (from memory)",
    "objective": "words in a random order, the last sixth of it (K = 6)",
    "optimiser": "Adam, eps 1e-6, decay 0.01, dropout 0.1",
}

XLNET = Origin("xlnet", "bert", 2019, "arXiv:1906.08237, section 2").lineage(
    "words predicted in any order by a second stream, Transformer-XL's distances, segments in the scores",
    Preset(
        "xlnet-base",
        trained(xlnet(n_layers=12, d_model=768, n_heads=12)),
        "117M",
        training={**TRAINING, "corpus": "BookCorpus and Wikipedia"},
        alias="xlnet",
    ),
    Preset(
        "xlnet-large",
        trained(xlnet(n_layers=24, d_model=1024, n_heads=16)),
        "360M",
        training={
            **TRAINING,
            "schedule": "linear over 40,000 steps to 4e-4, then linear to 0",
            "batch": "8,192 sequences of 512 tokens, 500,000 steps",
            "corpus": "32.9B pieces of words",
        },
    ),
    sizes="Yang et al. 2019, arXiv:1906.08237, appendix A.4; totals of the released checkpoints",
    tokenizer="SentencePiece unigram, 32,000",
)
