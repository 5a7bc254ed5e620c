"""Command R and A to and from transformers' CohereForCausalLM and Cohere2ForCausalLM: rotary pairs stay interleaved."""

from __future__ import annotations

from typing import Any

from anyformer.families.cohere import cohere, cohere2
from anyformer.families.compose import changed
from anyformer.families.hf.llama import ATTENTION, D_FF, PROJECTION, SWIGLU
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.template import (
    BIASES,
    D_MODEL,
    VOCABULARY,
    Pair,
    at,
    family,
    heads,
    layer_types,
    layers,
    positions,
    tables,
    two_kinds,
)
from anyformer.layers import GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import HeadSpec, ModelSpec, ScaleSpec


def _read_norms(settings: Settings, spec: ModelSpec) -> ModelSpec:
    norm = one(spec, LayerNormSpec, "layer norm") if settings.take("use_qk_norm", bool, False) else None
    return changed(spec, GQASpec, norm_query=norm, norm_key=norm)


def _write_norms(spec: ModelSpec) -> dict[str, Any]:
    return {"use_qk_norm": one(spec, GQASpec, "attention").norm_query is not None}


def _factor(scale: ScaleSpec | None) -> float:
    return 1.0 if scale is None else scale.factor


LOGITS = at(
    "logit_scale", float, HeadSpec, "scale", default=0.0625, into=lambda factor: ScaleSpec(factor=factor), out=_factor
)
EPS = at("layer_norm_eps", float, LayerNormSpec, "eps", default=1e-5)
SIZES = (VOCABULARY, D_MODEL, D_FF, heads(), BIASES, SWIGLU, EPS, LOGITS, tables(tied=True))
MODULES = {
    "0.norm_in": "input_layernorm",
    **ATTENTION,
    **{f"0.branches.1.mixer.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}
QK_NORMS = {f"{PROJECTION}.norm_query": "self_attn.q_norm", f"{PROJECTION}.norm_key": "self_attn.k_norm"}
ROTARY = RotarySpec(theta=500_000.0, layout="interleaved")  # the class's own theta

COHERE = family(
    "cohere",
    "CohereForCausalLM",
    cohere(1, 8, 1, 8, 1, theta=1.0, logit_scale=1.0),
    (*SIZES, Pair(_read_norms, _write_norms), positions(ROTARY, context=8192), layers()),
    {**MODULES, **QK_NORMS},
)
COHERE2 = family(
    "cohere2",
    "Cohere2ForCausalLM",
    two_kinds(cohere2(4, 8, 1, 8, 1)),
    (
        *SIZES,
        positions(ROTARY.but(theta=10_000.0), context=8192),
        layer_types(full_every=4, size=4096, setting="sliding_window_pattern"),
    ),
    MODULES,
    ignored=("cache_implementation", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct"),
)
