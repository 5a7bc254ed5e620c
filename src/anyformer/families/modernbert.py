"""ModernBERT: BERT with rotary positions, GeGLU and windows in two of three layers (Warner et al. 2024, arXiv:2412.13663)."""

from __future__ import annotations

from anyformer.families.compose import attend, gated, language_model, repeat, serial
from anyformer.families.heads import masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, Everything, LayerNormSpec, LinearSpec, Mask, RotarySpec, SymmetricWindow
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


MODERNBERT = Origin("modernbert", "bert", 2024, "arXiv:2412.13663, section 2").lineage(
    "pre-norm, rotary positions, GeGLU, windows of 129 in two of three layers, no biases, 8,192 tokens",
    Preset("modernbert-base", modernbert(22, 768, 12, 1152), "149M", "149.7M, which the paper cuts off"),
    Preset("modernbert-large", modernbert(28, 1024, 16, 2624), "395M", "395.9M, which the paper cuts off"),
    sizes="Warner et al. 2024, arXiv:2412.13663, table 4",
    tokenizer="byte-level BPE (OLMo's), 50,280 padded to 50,368",
)
