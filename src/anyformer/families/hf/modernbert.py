"""ModernBERT to and from transformers' ModernBertModel, ModernBertForMaskedLM and ModernBertForTokenClassification, and its
decoder to and from ModernBertDecoderForCausalLM.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.encoder import encoder_family, laid_out
from anyformer.families.hf.headings import Heading, usual_classes
from anyformer.families.hf.layout import rows_of
from anyformer.families.hf.llama import D_FF, MLP_BIAS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import THETA, scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import FULL, SLIDING, typed_rotary
from anyformer.families.modernbert import (
    CONTEXT,
    EVERY,
    LOCAL_THETA,
    first_without_norm,
    masked_without_bias,
    modernbert,
    with_causal_masks,
)
from anyformer.families.modernbert import THETA as FULL_THETA
from anyformer.layers import GatedFeedForwardSpec, GQASpec, LayerNormSpec, RotarySpec, SlidingWindow, SymmetricWindow
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec

OLDER = {SLIDING: "local_rope_theta", FULL: "global_rope_theta"}
USUAL = {SLIDING: RotarySpec(theta=LOCAL_THETA), FULL: RotarySpec(theta=FULL_THETA)}


def _kind(layer: BlockSpec) -> str:
    return SLIDING if any(layer.nested(SymmetricWindow, SlidingWindow)) else FULL


def _positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The rotary positions of each kind of layer: of a table each, or in older files of a theta each."""
    length = settings.positive("max_position_embeddings", int, CONTEXT)
    tables, blocks = settings.section("rope_parameters"), []
    for layer in spec.stack.blocks:
        kind = _kind(layer)
        plain = USUAL[kind].but(theta=settings.take(OLDER[kind], float, USUAL[kind].theta))
        inner = tables.section(kind) if tables else None
        blocks.append(changed(layer, RotarySpec, **(typed_rotary(inner, length, plain) if inner else plain).values()))
    if tables:
        tables.close()
    return with_layers(spec, blocks).but(context=length)


def _tables(spec: ModelSpec) -> dict[str, Any]:
    found = USUAL | {_kind(layer): one(layer, RotarySpec) for layer in spec.stack.blocks}
    tables = {
        kind: {"rope_type": "default", THETA: each.theta, **(scaling_settings(each.scaling) or {})}
        for kind, each in found.items()
    }
    return {"max_position_embeddings": spec.context or CONTEXT, "rope_parameters": tables}


def _layers(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The depth and each layer's kind; the first has no norm before its attention."""
    n_layers = settings.positive("num_hidden_layers", int, 22)
    every = settings.positive("global_attn_every_n_layers", int, EVERY)
    blocks = {_kind(layer): layer for layer in spec.stack.blocks}
    usual = (SLIDING if i % every else FULL for i in range(n_layers))
    types = settings.words("layer_types", n_layers, blocks, usual)
    first, *rest = (blocks[kind] for kind in types)
    return with_layers(spec, (first_without_norm(first), *rest))


def _types(spec: ModelSpec) -> dict[str, Any]:
    return {"num_hidden_layers": spec.n_layers, "layer_types": [_kind(layer) for layer in spec.stack.blocks]}


def _reach(settings: Settings) -> int:
    """The tokens of a window to one side: half of those to both, unless it is said by itself."""
    both = settings.positive("local_attention", int, 128)
    return settings.positive("sliding_window", int, both // 2)


# Written as widths to both sides together; without windows, what the class takes.
WINDOW = table.Pair(
    lambda settings, spec: changed(spec, SymmetricWindow, radius=_reach(settings)),
    lambda spec: {"local_attention": next((2 * v.radius for v in spec.nested(SymmetricWindow)), 128)},
)
# Of a decoder, to one side.
BACK = table.Pair(
    lambda settings, spec: changed(spec, SlidingWindow, size=_reach(settings)),
    lambda spec: {"local_attention": 2 * (windows.window_of(spec) or 64)},
)


def _marks(**ids: int) -> table.Pair:
    """Ids of a text's first and last token and the like: they change no number, and the class wants them among the tokens."""
    return table.Pair(write=lambda spec: {name: token if token < spec.vocab_size else 0 for name, token in ids.items()})


MARKS = {"cls_token_id": 50_281, "sep_token_id": 50_282}
MASKED = Heading(
    lambda spec, n: masked_without_bias(spec), {"transform.0": "head.dense", "transform.2": "head.norm", "": "decoder"}
)
SMALL = modernbert(4, 8, 1, 8)
TEMPLATE = with_layers(SMALL, SMALL.stack.blocks[-2:])  # one of each kind, each with its norm
SIZES = (
    *table.STREAM,
    D_FF,
    table.at("num_attention_heads", int, GQASpec, "n_heads"),
    table.EVEN,
    table.activation("hidden_activation", "gelu", GatedFeedForwardSpec),
    table.eps(1e-5, "norm_eps"),
    table.at("norm_bias", bool, LayerNormSpec, "bias", default=False),
    table.BIASES,
    MLP_BIAS,
)
LAYER = {
    "0.norm_in": "attn_norm",
    "1.norm_in": "mlp_norm",
    f"{table.PROJECTION}.o": "attn.Wo",
    (f"{table.FEED}.gate", f"{table.FEED}.up"): "mlp.Wi",
    f"{table.FEED}.down": "mlp.Wo",
}
IGNORED = (
    "initializer_cutoff_factor", "classifier_pooling", "deterministic_flash_attn", "sparse_prediction",
    "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "cls_token_id", "layer_norm_eps",
)  # fmt: skip
MODERNBERT = encoder_family(
    "modernbert",
    TEMPLATE.but(heads=()),
    (
        *SIZES,
        table.starts(),
        WINDOW,
        table.Pair(_positions, _tables),
        table.Pair(_layers, _types),
        _marks(**MARKS),
        table.only(classifier_bias=(None, False), decoder_bias=(None, True), classifier_activation=(None, "gelu")),
    ),
    usual_classes("ModernBert", "model.", {"mlm": MASKED}),
    laid_out(
        {**LAYER, table.QKV: "attn.Wqkv"},
        terms=(),
        layer="layers",
        outside={"stack.embedding.norm": "embeddings.norm", "stack.norm": "final_norm"},
    ),
    tokens="embeddings.tok_embeddings",
    ignored=IGNORED,
)

HEAD = {"heads.0.transform.0": "lm_head.dense", "heads.0.transform.2": "lm_head.norm"}
DECODER = table.family(
    "modernbert-decoder",
    "ModernBertDecoderForCausalLM",
    with_causal_masks(TEMPLATE),
    (
        *SIZES,
        table.tables(tied=True),
        BACK,
        table.Pair(_positions, _tables),
        table.Pair(_layers, _types),
        _marks(**MARKS, bos_token_id=50_281, pad_token_id=50_283),
        table.at("decoder_bias", bool, HeadSpec, "bias", default=True),
        table.only(classifier_bias=(None, False), classifier_activation="gelu"),
    ),
    {**LAYER, **{f"{table.PROJECTION}.{x}": f"attn.{x}_proj" for x in "qkv"}},
    tokens="embeddings.tok_embeddings",
    norm="final_norm",
    outside={"stack.embedding.norm": "embeddings.norm"},
    heads=("decoder",),
    further=lambda spec: rows_of(spec, HEAD),
    ignored=IGNORED,
)
