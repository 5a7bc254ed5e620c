"""Tiny architectures and texts for tests of training."""

from anyformer import layers
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    Length,
    ModelSpec,
    ScaleSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
)

VOCAB = 61


def sublayer(mixer: object, norm: object) -> SublayerSpec:
    return SublayerSpec(norm_in=norm, branches=(BranchSpec(mixer=mixer),))  # type: ignore[arg-type]


def attention(mask: layers.Mask, reads: str = "self") -> layers.AttentionSpec:
    rotary = layers.RotarySpec() if reads == "self" else None
    projection = layers.GQASpec(n_heads=Count(2), n_kv_heads=Count(1), head_dim=Width(8), rotary=rotary)
    return layers.AttentionSpec(projection=projection, mask=mask, reads=reads)  # type: ignore[arg-type]


def decoder(
    mask: layers.Mask | None = None,
    *,
    vocab: int = VOCAB,
    tied: bool = True,
    learned_positions: int | None = None,
    head: HeadSpec | None = None,
) -> ModelSpec:
    """One layer of width 16."""
    norm = layers.RMSNormSpec(eps=1e-5)
    table = TableSpec(rows=Vocab(vocab), shared="tokens" if tied else None)
    feed_forward = layers.GatedFeedForwardSpec(d_ff=Width(24), activation=layers.SiLU())
    block = BlockSpec(sublayers=(sublayer(attention(mask or layers.Causal()), norm), sublayer(feed_forward, norm)))
    terms = (layers.TokensSpec(table=table),)
    if learned_positions:
        terms = (*terms, layers.LearnedPositionsSpec(n_positions=Length(learned_positions)))
    stack = StackSpec(
        d_model=Width(16), embedding=EmbeddingSpec(terms=terms), blocks=(block,), residual=layers.AddSpec(), norm=norm
    )
    return ModelSpec(stack=stack, heads=(head or HeadSpec(table=table),), init=layers.ByRole())


def encoder_decoder(mask: layers.Mask | None = None, *, cross: bool = True) -> ModelSpec:
    """One layer each, widths 16, biases and LayerNorm, as in 2017."""
    norm = layers.LayerNormSpec()
    table = TableSpec(rows=Vocab(VOCAB), shared="tokens")
    embedding = EmbeddingSpec(terms=(layers.TokensSpec(table=table, scale=ScaleSpec(power=0.5)), layers.SinusoidSpec()))

    def of(*mixers: object) -> StackSpec:
        block = BlockSpec(sublayers=tuple(sublayer(mixer, norm) for mixer in mixers))
        return StackSpec(d_model=Width(16), embedding=embedding, blocks=(block,), residual=layers.AddSpec(), norm=norm)

    feed_forward = layers.FeedForwardSpec(d_ff=Width(24), activation=layers.ReLU())
    own = attention(mask or layers.Causal())
    reading = (attention(layers.Everything(), "memory"),) if cross else ()
    return ModelSpec(
        encoder=of(attention(layers.Everything()), feed_forward),
        stack=of(own, *reading, feed_forward),
        heads=(HeadSpec(table=table),),
        init=layers.ByRole(),
    )
