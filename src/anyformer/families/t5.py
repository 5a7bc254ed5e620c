"""T5, its version 1.1 and mT5: arXiv:1910.10683, arXiv:2002.05202, arXiv:2010.11934, each derived from the one before."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import block, encoder_decoder, pre_norm
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    Mask,
    Normal,
    RelativeBucketsSpec,
    ReLU,
    RMSNormSpec,
)
from anyformer.spec import Count, MixerSpec, ModelSpec, ScaleSpec, SublayerSpec, Width, Window

UNSCALED = ScaleSpec()  # of q·k; the start of the queries' matrices makes up for it


def dense(d_ff: int) -> FeedForwardSpec:
    """The feed-forward of arXiv:1910.10683: ReLU, no biases."""
    return FeedForwardSpec(d_ff=Width(d_ff), activation=ReLU(), bias_in=False, bias_out=False)


def gated(d_ff: int) -> GatedFeedForwardSpec:
    """That of version 1.1: GEGLU (arXiv:2002.05202), with GELU's tanh form."""
    return GatedFeedForwardSpec(d_ff=Width(d_ff), activation=GELU(form="tanh"))


def t5(
    *,
    d_model: int,
    n_heads: int,
    encoder: Sequence[MixerSpec],
    decoder: Sequence[MixerSpec],
    head_dim: int = 64,
    vocab_size: int = 32_128,
    tied: bool = True,
    scaled: bool = True,
    n_buckets: int = 32,
    max_distance: int = 128,
    eps: float = 1e-6,
    context: int | None = 512,
) -> ModelSpec:
    """Pre-norm stacks without biases, a layer for each feed-forward given (arXiv:1910.10683, section 2.1).

    The layers of a stack share one table of buckets of distance. A head that is `scaled` multiplies by d_model^-0.5.
    """
    norm = RMSNormSpec(eps=eps)
    heads = GQASpec(n_heads=Count(n_heads), head_dim=Width(head_dim))

    def itself(mask: Mask, stack: str) -> SublayerSpec:
        buckets = RelativeBucketsSpec(
            n_buckets=Count(n_buckets),
            max_distance=Window(max_distance),
            bidirectional=stack == "encoder",
            shared=f"{stack}_buckets",
        )
        return pre_norm(norm, AttentionSpec(projection=heads, mask=mask, scores=(buckets,), scale=UNSCALED))

    memory = pre_norm(norm, AttentionSpec(projection=heads, mask=Everything(), scale=UNSCALED, reads="memory"))
    past, every = itself(Causal(), "decoder"), itself(Everything(), "encoder")
    fan_in = Normal(scale=1.0, fan_in_power=-0.5)
    return encoder_decoder(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder=tuple(block(every, pre_norm(norm, feed)) for feed in encoder),
        decoder=tuple(block(past, memory, pre_norm(norm, feed)) for feed in decoder),
        norm=norm,
        tied=tied,
        logit_scale=ScaleSpec(power=-0.5) if scaled else None,
        init=ByRole(table=Normal(scale=1.0), matrix=fan_in, query=fan_in.but(scale=head_dim**-0.5)),
        context=context,
    )


def original(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, head_dim: int = 64) -> ModelSpec:
    """Return T5: as many layers in each stack."""
    feeds = (dense(d_ff),) * n_layers
    return t5(d_model=d_model, n_heads=n_heads, encoder=feeds, decoder=feeds, head_dim=head_dim)


def v1_1(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 32_128) -> ModelSpec:
    """Version 1.1: GEGLU, and a table of the head's own, not scaled."""
    feeds = (gated(d_ff),) * n_layers
    sizes = {"d_model": d_model, "n_heads": n_heads, "vocab_size": vocab_size}
    return t5(**sizes, encoder=feeds, decoder=feeds, tied=False, scaled=False)


T5 = "Raffel et al. 2019, arXiv:1910.10683, section 3.7"
V1_1 = "Shazeer 2020, arXiv:2002.05202, and the released configurations of T5.1.1, from memory"
MT5 = "Xue et al. 2020, arXiv:2010.11934, table 1; sizes as T5.1.1's"
TOKENIZER = "SentencePiece, 32,000 pieces and 100 sentinels; the table has 32,128 rows"
MULTILINGUAL = "SentencePiece with byte fallback, 250,000 pieces; the table has 250,112 rows"
ROUNDED = "the paper rounds: {:,}"

ORIGINAL = (
    ("small", "60M", ROUNDED.format(60_506_624), {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048}),
    ("base", "220M", ROUNDED.format(222_903_552), {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 3072}),
    (
        "large",
        "770M",
        "its sizes give 737,668,096, 4 % less than the paper prints",
        {"n_layers": 24, "d_model": 1024, "n_heads": 16, "d_ff": 4096},
    ),
    (
        "3b",
        "2.8B",
        "the paper cuts off: 2,851,598,336",
        {"n_layers": 24, "d_model": 1024, "n_heads": 32, "d_ff": 16_384, "head_dim": 128},
    ),
    ("11b", "11B", None, {"n_layers": 24, "d_model": 1024, "n_heads": 128, "d_ff": 65_536, "head_dim": 128}),
)
LATER = (
    ("small", "77M", "300M", None, {"n_layers": 8, "d_model": 512, "n_heads": 6, "d_ff": 1024}),
    ("base", "248M", "580M", 582_401_280, {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 2048}),
    ("large", "783M", "1.2B", None, {"n_layers": 24, "d_model": 1024, "n_heads": 16, "d_ff": 2816}),
    ("xl", "2.85B", "3.7B", None, {"n_layers": 24, "d_model": 2048, "n_heads": 32, "d_ff": 5120}),
    ("xxl", "11.1B", "13B", None, {"n_layers": 24, "d_model": 4096, "n_heads": 64, "d_ff": 10_240}),
)

PRESETS = (
    *(
        Preset(f"t5-{size}", "t5", original(**sizes), T5, published, erratum, TOKENIZER)
        for size, published, erratum, sizes in ORIGINAL
    ),
    *(
        Preset(f"t5-v1.1-{size}", "t5", v1_1(**sizes), V1_1, published, None, TOKENIZER)
        for size, published, _, _, sizes in LATER
    ),
    *(
        Preset(
            f"mt5-{size}",
            "t5",
            v1_1(**sizes, vocab_size=250_112),
            MT5,
            published,
            None if count is None else ROUNDED.format(count),
            MULTILINGUAL,
        )
        for size, _, published, count, sizes in LATER
    ),
)
