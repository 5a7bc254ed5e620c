"""The Transformer of 2017: Vaswani et al., arXiv:1706.03762, table 3; and its decoder alone as a language model."""

from __future__ import annotations

from anyformer.families.compose import block, embedding, language_model, post_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    Mask,
    Normal,
    ReLU,
    SinusoidSpec,
    Xavier,
)
from anyformer.recipe import TRANSFORMER_2017
from anyformer.spec import (
    Count,
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

NORM = LayerNormSpec(eps=1e-6)  # the paper's code, tensor2tensor; PyTorch's layers take 1e-5
INIT = ByRole(table=Normal(scale=1.0, fan_in_power=-0.5), matrix=Xavier())
ROOT = ScaleSpec(power=0.5)  # section 3.4: "we multiply those weights by √d_model"


def attend(n_heads: int, mask: Mask, reads: str = "self") -> SublayerSpec:
    """Return LayerNorm(x + MultiHead(x)); section 3.2."""
    heads = GQASpec(n_heads=Count(n_heads), bias_query=True, bias_key=True, bias_value=True, bias_output=True)
    return post_norm(NORM, AttentionSpec(projection=heads, mask=mask, reads="memory" if reads == "memory" else "self"))


def feed(d_ff: int) -> SublayerSpec:
    """Return LayerNorm(x + FFN(x)); section 3.3."""
    return post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=ReLU()))


def transformer(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 37_000) -> ModelSpec:
    """The encoder-decoder; source, target and softmax share one table (section 3.4)."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens")
    encoder = block(attend(n_heads, Everything()), feed(d_ff))
    decoder = block(attend(n_heads, Causal()), attend(n_heads, Everything(), reads="memory"), feed(d_ff))

    def stack(layer: object) -> StackSpec:
        blocks = repeat(encoder if layer is encoder else decoder, n_layers)
        terms = embedding(table, SinusoidSpec(), scale=ROOT)
        return StackSpec(d_model=Width(d_model), embedding=terms, blocks=blocks, residual=AddSpec())

    return ModelSpec(
        stack=stack(decoder), encoder=stack(encoder), heads=(HeadSpec(table=table),), init=INIT, context=Length(512)
    )


def transformer_lm(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 37_000) -> ModelSpec:
    """The decoder without cross-attention, as a language model."""
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(block(attend(n_heads, Causal()), feed(d_ff)), n_layers),
        norm=None,
        tied=True,
        positions=(SinusoidSpec(),),
        token_scale=ROOT,
        init=INIT,
        context=512,
    )


SOURCE = "Vaswani et al. 2017, arXiv:1706.03762, table 3"
TOKENIZER = "byte-pair encoding, about 37,000, shared by source and target"
BASE = {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048}
BIG = {"n_layers": 6, "d_model": 1024, "n_heads": 16, "d_ff": 4096}

PRESETS = (
    Preset(
        "transformer-base",
        "transformer",
        transformer(**BASE),
        SOURCE,
        "65M",
        "the exact size of the vocabulary is not published; with 37,000 rows it is 63.1M",
        TOKENIZER,
        TRANSFORMER_2017,
    ),
    Preset(
        "transformer-big",
        "transformer",
        transformer(**BIG),
        SOURCE,
        "213M",
        "the exact size of the vocabulary is not published; with 37,000 rows it is 214.3M",
        TOKENIZER,
    ),
    Preset(
        "transformer-lm",
        "transformer",
        transformer_lm(**BASE),
        "the decoder of Vaswani et al. 2017, arXiv:1706.03762, without cross-attention",
        None,
        None,
        TOKENIZER,
    ),
)
