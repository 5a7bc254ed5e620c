"""The Transformer of 2017: Vaswani et al., arXiv:1706.03762, table 3; and its decoder alone as a language model."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyformer.families.compose import attend, feed, language_model, post_norm, pre_norm, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ActivationSpec, ByRole, Everything, LayerNormSpec, Normal, ReLU, SinusoidSpec, Xavier
from anyformer.recipe import TRANSFORMER_2017
from anyformer.spec import MapSpec, ModelSpec, ScaleSpec

NORM = LayerNormSpec(eps=1e-6)  # the paper's code, tensor2tensor; PyTorch's layers take 1e-5
INIT = ByRole(table=Normal(scale=1.0, fan_in_power=-0.5), matrix=Xavier())
ROOT = ScaleSpec(power=0.5)  # section 3.4: "we multiply those weights by √d_model"


def two_stacks(
    *,
    d_model: int,
    vocab_size: int,
    layers: tuple[int, int],
    n_heads: tuple[int, int],
    d_ff: tuple[int, int],
    activation: ActivationSpec,
    norm: MapSpec,
    norm_first: bool = False,
    **fields: Any,
) -> ModelSpec:
    """Encoder and decoder, each branch normed after it is added (sections 3.1 to 3.4), on one table that is the head's too.

    With `norm_first` branches are normed before, and each stack at its end. Of each pair of sizes the encoder's comes first.
    Attention and feed-forwards have biases; `fields` are `language_model`'s.
    """
    every = [attend(n, bias=True, mask=Everything()) for n in n_heads]
    past, memory = attend(n_heads[1], bias=True), every[1].but(reads="memory")
    placed = pre_norm if norm_first else post_norm
    encoder = serial(norm, every[0], feed(d_ff[0], activation), placed=placed)
    decoder = serial(norm, past, memory, feed(d_ff[1], activation), placed=placed)
    return language_model(
        vocab_size,
        d_model,
        repeat(decoder, layers[1]),
        norm if norm_first else None,
        encoder=repeat(encoder, layers[0]),
        tied=True,
        **fields,
    )


# What the decoder alone has too. Source, target and softmax share one table (section 3.4).
OF_2017: dict[str, Any] = {"positions": (SinusoidSpec(),), "token_scale": ROOT, "init": INIT, "context": 512}
transformer = partial(two_stacks, vocab_size=37_000, activation=ReLU(), norm=NORM, **OF_2017)


def transformer_lm(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """The decoder without cross-attention, as a language model."""
    layer = serial(NORM, attend(n_heads, bias=True), feed(d_ff, ReLU()), placed=post_norm)
    return language_model(37_000, d_model, repeat(layer, n_layers), None, tied=True, **OF_2017)


BASE = transformer(d_model=512, layers=(6, 6), n_heads=(8, 8), d_ff=(2048, 2048))
BIG = transformer(d_model=1024, layers=(6, 6), n_heads=(16, 16), d_ff=(4096, 4096))
ROWS = "the exact size of the vocabulary is not published; with 37,000 rows it is {}"
TOKENIZER = "byte-pair encoding, about 37,000, shared by source and target"

TRANSFORMER = Origin("transformer", "lstm", 2017, "arXiv:1706.03762").lineage(
    "attention and feed-forwards in place of recurrence, a way around each, norms; an encoder and a decoder",
    Preset("transformer-base", BASE, "65M", ROWS.format("63.1M"), recipe=TRANSFORMER_2017, alias="transformer"),
    Preset("transformer-big", BIG, "213M", ROWS.format("214.3M")),
    known="transformer-base",
    sizes="Vaswani et al. 2017, arXiv:1706.03762, table 3",
    tokenizer=TOKENIZER,
)
TRANSFORMER_LM = Origin(
    "transformer-lm", "transformer", 2018, "Liu et al. 2018, arXiv:1801.10198, section 4.2.3"
).lineage(
    "the decoder alone, as a language model",
    Preset("transformer-lm", transformer_lm(6, 512, 8, 2048)),
    family="transformer",
    sizes="the decoder of Vaswani et al. 2017, arXiv:1706.03762, without cross-attention",
    tokenizer=TOKENIZER,
)
