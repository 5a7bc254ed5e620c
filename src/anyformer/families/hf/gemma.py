"""Gemma 1 to 3 (text) and VaultGemma to and from the classes of transformers: gains stored minus one, scores' scale a setting."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import bidirectional, causal, changed, edited
from anyformer.families.gemma import gemma, gemma2, gemma3, vaultgemma
from anyformer.families.hf import table, windows
from anyformer.families.hf.llama import ATTENTION, D_FF, EPS, GATED, NORMS, QK_NORMS
from anyformer.families.hf.mapping import Family, one, width_of_head
from anyformer.families.hf.settings import ACTIVATIONS, CAUSAL, Settings
from anyformer.families.hf.windows import rotary_by_type
from anyformer.layers import GELU, AttentionSpec, GatedFeedForwardSpec, RotarySpec, SlidingWindow, SymmetricWindow
from anyformer.spec import HeadSpec, ModelSpec, ScaleSpec

BOTH_WAYS = "use_bidirectional_attention"
LOCAL = "rope_local_base_freq"
TANH = "gelu_pytorch_tanh"
SANDWICH = {
    "0.norm_in": "input_layernorm",
    "0.branches.0.norm_out": "post_attention_layernorm",
    "1.norm_in": "pre_feedforward_layernorm",
    "1.branches.0.norm_out": "post_feedforward_layernorm",
}


def _read_scale(settings: Settings, spec: ModelSpec) -> ModelSpec:
    ratio = width_of_head(spec) / settings.positive("query_pre_attn_scalar", float, 256.0)
    return changed(spec, AttentionSpec, scale=ScaleSpec(factor=ratio**0.5, power=-0.5))


def _write_scale(spec: ModelSpec) -> dict[str, Any]:
    scale = one(spec, AttentionSpec).scale.value(width_of_head(spec))
    return {"query_pre_attn_scalar": round(scale**-2)}  # the classes take an integer only


SIZES = (*table.STREAM, EPS, table.BIASES, table.tables(tied=True))
SCALE = table.Pair(_read_scale, _write_scale)
WIDTH = 256  # of a head, and of what scores are scaled by
SOFTCAP = "final_logit_softcapping"
OF_FIRST_FILES = {TANH: GELU(form="tanh"), **ACTIVATIONS, "gelu": GELU(form="tanh")}  # which say gelu and mean this
GEMMA = table.family(
    "gemma",
    "GemmaForCausalLM",
    gemma(1, 8, 1, 8, 1),
    (
        *SIZES,
        D_FF,
        table.heads(n_kv_heads=16, head_dim=WIDTH),
        table.activation("hidden_act", TANH, GatedFeedForwardSpec, OF_FIRST_FILES),
        table.positions(context=8192),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **GATED},
    ignored=("hidden_activation",),
)


def _capped(hf_type: str, architecture: str, template: ModelSpec) -> Family:
    """A class of capped scores and logits, a window in every other layer."""
    pairs = (
        *SIZES,
        D_FF,
        table.heads(n_kv_heads=4, head_dim=WIDTH),
        table.EVEN,
        table.activation("hidden_activation", TANH, GatedFeedForwardSpec),
        SCALE,
        table.at("attn_logit_softcapping", float, AttentionSpec, "softcap", default=50.0, nullable=True),
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=30.0, nullable=True),
        table.positions(context=8192),
        windows.layer_types(windows.each(2), 4096),
    )
    return table.family(
        hf_type, architecture, template, pairs, {**SANDWICH, **ATTENTION, **GATED}, ignored=("hidden_act",)
    )


GEMMA2 = _capped("gemma2", "Gemma2ForCausalLM", gemma2(2, 8, 1, 8, 1))
VAULTGEMMA = _capped("vaultgemma", "VaultGemmaForCausalLM", vaultgemma(2, 8, 1, 8, 1))


def _either_way(family: Family) -> Family:
    """The class that may be told of tokens that see ahead, a window's half to each side (EmbeddingGemma, arXiv:2509.20354)."""

    def to_spec(settings: Settings) -> ModelSpec:
        if not settings.take(BOTH_WAYS, bool, default=False):
            return family.to_spec(settings)
        settings.require(CAUSAL, True)  # false, the class takes other windows
        spec = family.to_spec(settings)
        stack = edited(bidirectional(spec.stack), SymmetricWindow, lambda each: each.but(radius=each.radius // 2))
        return spec.but(stack=stack)

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        back = causal(spec.stack)
        if back == spec.stack:
            return family.to_config(spec)
        doubled = edited(back, SlidingWindow, lambda each: each.but(size=2 * each.size))
        return {**family.to_config(spec.but(stack=doubled)), BOTH_WAYS: True}

    return family._replace(to_spec=to_spec, to_config=to_config)


_GEMMA3 = table.family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    windows.two_kinds(gemma3(6, 8, 1, 8, 1)),
    (
        *SIZES,
        D_FF,
        table.heads(n_kv_heads=4, head_dim=WIDTH),
        table.EVEN,
        table.activation("hidden_activation", TANH, GatedFeedForwardSpec),
        SCALE,
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=None, nullable=True),
        rotary_by_type(RotarySpec(), RotarySpec(theta=1e6), 131_072, LOCAL),
        windows.layer_types(windows.each(6, "sliding_window_pattern"), 4096),
    ),
    {**SANDWICH, **ATTENTION, **GATED, **QK_NORMS},
    # The class reads the cap of scores and never applies it.
    ignored=("hidden_act", "attn_logit_softcapping"),
)
GEMMA3 = _either_way(_GEMMA3)
