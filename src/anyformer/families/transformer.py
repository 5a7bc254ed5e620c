"""The Transformer of 2017: Vaswani et al., arXiv:1706.03762, table 3; and its decoder alone as a language model."""

from __future__ import annotations

from anyformer.families.compose import block, embedding, language_model, post_norm, repeat
from anyformer.families.lineage import Lineage, Preset
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


BASE = {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048}
BIG = {"n_layers": 6, "d_model": 1024, "n_heads": 16, "d_ff": 4096}
ROWS = "the exact size of the vocabulary is not published; with 37,000 rows it is {}"
TOKENIZER = "byte-pair encoding, about 37,000, shared by source and target"

LINEAGES = (
    Lineage(
        "transformer",
        parent=None,
        year=2017,
        source="arXiv:1706.03762",
        changed="the first",
        known="transformer-base",
        sizes="Vaswani et al. 2017, arXiv:1706.03762, table 3",
        tokenizer=TOKENIZER,
        presets=(
            Preset(
                "transformer-base",
                transformer(**BASE),
                "65M",
                ROWS.format("63.1M"),
                recipe=TRANSFORMER_2017,
                alias="transformer",
            ),
            Preset("transformer-big", transformer(**BIG), "213M", ROWS.format("214.3M")),
        ),
    ),
    Lineage(
        "transformer-lm",
        parent="transformer",
        year=2018,
        source="Liu et al. 2018, arXiv:1801.10198, section 4.2.3",
        changed="the decoder alone, as a language model",
        family="transformer",
        sizes="the decoder of Vaswani et al. 2017, arXiv:1706.03762, without cross-attention",
        tokenizer=TOKENIZER,
        presets=(Preset("transformer-lm", transformer_lm(**BASE)),),
    ),
)
