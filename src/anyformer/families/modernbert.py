"""ModernBERT: BERT with rotary positions, GeGLU and windows in two of three layers (Warner et al. 2024, arXiv:2412.13663)."""

from __future__ import annotations

from anyformer.families.compose import attend, causal, gated, language_model, repeat, serial
from anyformer.families.heads import masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    Everything,
    LayerNormSpec,
    LinearSpec,
    Mask,
    RotarySpec,
    SymmetricWindow,
)
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec, Window

EVERY, LOCAL, THETA, LOCAL_THETA = 3, 128, 160_000.0, 10_000.0
VOCABULARY, CONTEXT = 50_368, 8192


def masked_without_bias(model: ModelSpec) -> HeadSpec:
    """BERT's head for masked words, whose layer has no bias and its table one."""
    head = masked_words(model)
    return head.but(transform=(LinearSpec(), *head.transform[1:]))


def first_without_norm(layer: BlockSpec) -> BlockSpec:
    """The layer as the first: the embedding's norm stands before it."""
    first, *rest = layer.sublayers
    return layer.but(sublayers=(first.but(norm_in=None), *rest))


def modernbert(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """Pre-norm LayerNorm without biases; every third layer sees all, the others 64 tokens to each side (section 2.1)."""
    norm = LayerNormSpec(eps=1e-5, bias=False)

    def layer(mask: Mask, theta: float) -> BlockSpec:
        return serial(norm, attend(n_heads, rotary=RotarySpec(theta=theta), mask=mask), gated(d_ff, GELU()))

    full, near = layer(Everything(), THETA), layer(SymmetricWindow(radius=Window(LOCAL // 2)), LOCAL_THETA)
    first, *rest = repeat((full, *[near] * (EVERY - 1)), n_layers)
    blocks = (first_without_norm(first), *rest)
    model = language_model(VOCABULARY, d_model, blocks, norm, tied=True, embedding_norm=norm, context=CONTEXT)
    return model.but(heads=(masked_without_bias(model),))


def with_causal_masks(model: ModelSpec) -> ModelSpec:
    """The model as a decoder: nobody sees ahead, the head is of the next word."""
    (head,) = model.heads
    return model.but(stack=causal(model.stack), heads=(head.but(name="lm"),))


MODERNBERT = Origin("modernbert", "bert", 2024, "arXiv:2412.13663, section 2").lineage(
    "pre-norm, rotary positions, GeGLU, windows of 129 in two of three layers, no biases, 8,192 tokens",
    Preset("modernbert-base", modernbert(22, 768, 12, 1152), "149M", "149.7M, which the paper cuts off"),
    Preset("modernbert-large", modernbert(28, 1024, 16, 2624), "395M", "395.9M, which the paper cuts off"),
    sizes="Warner et al. 2024, arXiv:2412.13663, table 4",
    tokenizer="byte-level BPE (OLMo's), 50,280 padded to 50,368",
)


def ettin(*sizes: int) -> ModelSpec:
    """ModernBERT as a decoder."""
    return with_causal_masks(modernbert(*sizes))


ETTIN = Origin("ettin", "modernbert", 2025, "arXiv:2507.11412, section 3").lineage(
    "sees nothing ahead: windows of 64 in two of three layers, the head for masked words as one for the next",
    Preset("ettin-decoder-17m", ettin(7, 256, 4, 384), "17M"),
    Preset("ettin-decoder-32m", ettin(10, 384, 6, 576), "32M"),
    Preset("ettin-decoder-68m", ettin(19, 512, 8, 768), "68M"),
    Preset("ettin-decoder-150m", ettin(22, 768, 12, 1152), "150M", alias="ettin"),
    Preset("ettin-decoder-400m", ettin(28, 1024, 16, 2624), "400M", "395.9M, which the name rounds"),
    Preset("ettin-decoder-1b", ettin(28, 1792, 28, 3840), "1B"),
    family="modernbert",
    sizes="Weller et al. 2025, arXiv:2507.11412, table 1 (from memory); windows and thetas are the class's",
    tokenizer="byte-level BPE (OLMo's), 50,280 padded to 50,368",
)
