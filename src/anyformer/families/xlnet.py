"""XLNet: every order of the text, by two streams of content and queries. Yang et al. 2019, arXiv:1906.08237."""

from __future__ import annotations

from anyformer.families.compose import block, post_norm, repeat
from anyformer.families.preset import Preset
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


def _preset(size: str, published: str, n_layers: int, d_model: int, n_heads: int) -> Preset:
    model = xlnet(n_layers=n_layers, d_model=d_model, n_heads=n_heads)
    return Preset(
        f"xlnet-{size}",
        "xlnet",
        model.but(heads=(permuted_words(model),)),
        "Yang et al. 2019, arXiv:1906.08237, appendix A.4; totals of the released checkpoints",
        published,
        None,
        "SentencePiece unigram, 32,000",
    )


PRESETS = (_preset("base", "117M", 12, 768, 12), _preset("large", "360M", 24, 1024, 16))
