"""Phi-2, and Phi-3 and 4, to and from the classes of transformers: the later ones fuse q, k, v and gate, up."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table, windows
from anyformer.families.hf.cohere import norms_of_heads
from anyformer.families.hf.llama import NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION, ORIGINAL
from anyformer.families.hf.settings import Settings
from anyformer.families.phi import phi2, phi3
from anyformer.layers import FeedForwardSpec, GQASpec, LongRoPE, RotarySpec
from anyformer.spec import Length, ModelSpec


def _as_wide(settings: Settings, spec: ModelSpec) -> ModelSpec:
    heads = one(spec, GQASpec)
    if heads.norm_query is not None and heads.head_dim is not None:
        raise settings.refusal(
            "qk_layernorm", "is as wide as hidden_size / num_attention_heads here; leave head_dim out"
        )
    return spec


def _read_original(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of all scalings the class takes longrope only, reads yarn as longrope, and its length from outside the table."""
    scaling = one(spec, RotarySpec).scaling
    if not isinstance(scaling, LongRoPE | None):
        name = "rope_scaling" if settings.names("rope_scaling") else "rope_parameters"
        raise settings.refusal(name, "is not computed by this class; only longrope is")
    return changed(spec, LongRoPE, original_context=Length(settings.take(ORIGINAL, int, 4096)))


def _write_original(spec: ModelSpec) -> dict[str, Any]:
    scaling = one(spec, RotarySpec).scaling
    return {ORIGINAL: scaling.original_context} if isinstance(scaling, LongRoPE) else {}


PHI = table.family(
    "phi",
    "PhiForCausalLM",
    phi2(1, 8, 1, fraction=1.0),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.heads(),
        table.activation("hidden_act", "gelu_new", FeedForwardSpec),
        table.eps(1e-5),
        norms_of_heads("qk_layernorm"),
        table.Pair(_as_wide),
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        "0.norm_in": "input_layernorm",
        **{f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        f"{table.PROJECTION}.o": "self_attn.dense",
        f"{table.PROJECTION}.norm_query": "self_attn.q_layernorm",
        f"{table.PROJECTION}.norm_key": "self_attn.k_layernorm",
        "0.branches.1.mixer.up": "mlp.fc1",
        "0.branches.1.mixer.down": "mlp.fc2",
    },
    norm="final_layernorm",
)
PHI3 = table.family(
    "phi3",
    "Phi3ForCausalLM",
    phi3(1, 8, 1, 8, 1),
    (
        *WIDTHS,
        table.heads(),
        table.rms_eps(1e-5),
        table.positions(fraction=FRACTION, context=4096),
        table.Pair(_read_original, _write_original),
        windows.window(None),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        **NORMS,
        tuple(f"{table.PROJECTION}.{x}" for x in "qkv"): "self_attn.qkv_proj",
        f"{table.PROJECTION}.o": "self_attn.o_proj",
        (f"{table.FEED}.gate", f"{table.FEED}.up"): "mlp.gate_up_proj",
        f"{table.FEED}.down": "mlp.down_proj",
    },
)
