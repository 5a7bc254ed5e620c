"""The Transformer of 2017: Vaswani et al., arXiv:1706.03762, table 3; and its decoder alone as a language model."""

from __future__ import annotations

from anyformer.families.compose import attend, block, encoder_decoder, feed, language_model, post_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ActivationSpec, ByRole, Everything, LayerNormSpec, Normal, ReLU, SinusoidSpec, Xavier
from anyformer.recipe import TRANSFORMER_2017
from anyformer.spec import InitSpec, MapSpec, ModelSpec, ScaleSpec, TermSpec

NORM = LayerNormSpec(eps=1e-6)  # the paper's code, tensor2tensor; PyTorch's layers take 1e-5
INIT = ByRole(table=Normal(scale=1.0, fan_in_power=-0.5), matrix=Xavier())
ROOT = ScaleSpec(power=0.5)  # section 3.4: "we multiply those weights by √d_model"


def post_norm_stacks(
    *,
    d_model: int,
    vocab_size: int,
    layers: tuple[int, int],
    n_heads: tuple[int, int],
    d_ff: tuple[int, int],
    positions: TermSpec,
    activation: ActivationSpec,
    norm: MapSpec,
    embedding_norm: MapSpec | None = None,
    token_scale: ScaleSpec | None = None,
    head_bias: bool = False,
    init: InitSpec | None = None,
    context: int | None = None,
) -> ModelSpec:
    """Encoder and decoder, each branch normed after it is added (sections 3.1 to 3.4), on one table that is the head's too.

    Of each pair of sizes the encoder's comes first. Attention and feed-forwards have biases.
    """
    every = [attend(n, bias=True, mask=Everything()) for n in n_heads]
    past, memory = attend(n_heads[1], bias=True), every[1].but(reads="memory")
    encoder = (every[0], feed(d_ff[0], activation))
    decoder = (past, memory, feed(d_ff[1], activation))
    return encoder_decoder(
        vocab_size,
        d_model,
        repeat(block(*(post_norm(norm, mixer) for mixer in encoder)), layers[0]),
        repeat(block(*(post_norm(norm, mixer) for mixer in decoder)), layers[1]),
        positions=(positions,),
        token_scale=token_scale,
        embedding_norm=embedding_norm,
        head_bias=head_bias,
        init=init,
        context=context,
    )


def transformer(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 37_000) -> ModelSpec:
    """The encoder-decoder; source, target and softmax share one table (section 3.4)."""
    return post_norm_stacks(
        d_model=d_model,
        vocab_size=vocab_size,
        layers=(n_layers, n_layers),
        n_heads=(n_heads, n_heads),
        d_ff=(d_ff, d_ff),
        positions=SinusoidSpec(),
        activation=ReLU(),
        norm=NORM,
        token_scale=ROOT,
        init=INIT,
        context=512,
    )


def transformer_lm(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 37_000) -> ModelSpec:
    """The decoder without cross-attention, as a language model."""
    layer = block(post_norm(NORM, attend(n_heads, bias=True)), post_norm(NORM, feed(d_ff, ReLU())))
    return language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        None,
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

TRANSFORMER = Origin("transformer", None, 2017, "arXiv:1706.03762").lineage(
    "the first",
    Preset(
        "transformer-base",
        transformer(**BASE),
        "65M",
        ROWS.format("63.1M"),
        recipe=TRANSFORMER_2017,
        alias="transformer",
    ),
    Preset("transformer-big", transformer(**BIG), "213M", ROWS.format("214.3M")),
    known="transformer-base",
    sizes="Vaswani et al. 2017, arXiv:1706.03762, table 3",
    tokenizer=TOKENIZER,
)
TRANSFORMER_LM = Origin(
    "transformer-lm", "transformer", 2018, "Liu et al. 2018, arXiv:1801.10198, section 4.2.3"
).lineage(
    "the decoder alone, as a language model",
    Preset("transformer-lm", transformer_lm(**BASE)),
    family="transformer",
    sizes="the decoder of Vaswani et al. 2017, arXiv:1706.03762, without cross-attention",
    tokenizer=TOKENIZER,
)
