"""Falcon-H1 to and from transformers' FalconH1ForCausalLM: its multipliers as factors around branches and scales within them."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.falcon_h1 import falcon_h1
from anyformer.families.hf import table
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, D_FF, MLP_BIAS
from anyformer.families.hf.mamba import OF_A_HYBRID, mixer, modules
from anyformer.families.hf.mapping import one
from anyformer.families.hf.scales import scaled_by
from anyformer.families.hf.settings import ACTIVATIONS, Settings
from anyformer.layers import (
    AttentionSpec,
    FactorSpec,
    GatedFeedForwardSpec,
    RotarySpec,
    SSDSpec,
    Swish,
    TokensSpec,
)
from anyformer.spec import BranchSpec, HeadSpec, MapSpec, ModelSpec, ScaleSpec

# The name of each branch's factors: of what it reads, of what it writes.
AROUND = {
    SSDSpec: ("ssm_in_multiplier", "ssm_out_multiplier"),
    AttentionSpec: ("attention_in_multiplier", "attention_out_multiplier"),
}


def _map(value: float) -> FactorSpec | None:
    return None if value == 1 else FactorSpec(factor=value)


def _value(found: MapSpec | None) -> float:
    return found.factor if isinstance(found, FactorSpec) else 1.0


def _around(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Factors of branches; a key's is one of the scores; a gate's is silu(m x) = m swish_m(x), and m joins what is written."""
    of_feed = settings.numbers("mlp_multipliers") if settings.written("mlp_multipliers") else (1.0, 1.0)
    if len(of_feed) != 2:
        raise settings.refusal("mlp_multipliers", "must be two numbers, of the gate and of what is written")
    gate, down = of_feed
    names = [name for pair in AROUND.values() for name in pair]
    said = {name: settings.take(name, float, 1.0) for name in names}
    word = settings.take("hidden_act", str, "silu")
    if gate != 1 and word not in ("silu", "swish"):
        raise settings.refusal("hidden_act", "goes with a multiplier of gates, which is computed for silu alone")
    if gate != 1 and one(spec, GatedFeedForwardSpec).bias_out:
        raise settings.refusal("mlp_bias", "goes with no multiplier of gates here")
    activation = ACTIVATIONS.get(word) if gate == 1 else Swish(beta=gate)
    if activation is None:
        raise settings.refusal("hidden_act", "is no activation that is known here")
    key = settings.take("key_multiplier", float, 1.0)
    spec = changed(spec, AttentionSpec, scale=ScaleSpec(factor=key, power=-0.5))
    spec = changed(spec, GatedFeedForwardSpec, activation=activation)

    def placed(branch: BranchSpec) -> BranchSpec:
        if type(branch.mixer) not in AROUND:
            return branch.but(norm_out=_map(gate * down))
        into, out = AROUND[type(branch.mixer)]
        return branch.but(norm_in=_map(said[into]), norm_out=_map(said[out]))

    blocks = tuple(
        block.but(sublayers=tuple(sub.but(branches=tuple(map(placed, sub.branches))) for sub in block.sublayers))
        for block in spec.stack.blocks
    )
    return with_layers(spec, blocks)


def _written(spec: ModelSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"key_multiplier": one(spec, AttentionSpec).scale.factor}
    for sublayer in spec.stack.blocks[0].sublayers:
        for branch in sublayer.branches:
            names = AROUND.get(type(branch.mixer))
            if names:
                found |= dict(zip(names, map(_value, (branch.norm_in, branch.norm_out)), strict=True))
            elif isinstance(branch.mixer, GatedFeedForwardSpec):
                activation = branch.mixer.activation
                gate = activation.beta if isinstance(activation, Swish) else 1.0
                word = next((word for word, each in ACTIVATIONS.items() if each == activation), "silu")
                found |= {"mlp_multipliers": [gate, _value(branch.norm_out) / gate], "hidden_act": word}
    return found


def _ssm(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Multipliers of what the mixer's first map makes, and its norm, where it has one."""
    said = settings.numbers("ssm_multipliers") if settings.written("ssm_multipliers") else ()
    if len(said) not in (0, 5):
        raise settings.refusal("ssm_multipliers", "must be five numbers, of z, x, B, C and dt")
    first = settings.take("mamba_norm_before_gate", bool, True)
    norm = spec.stack.norm if settings.take("mamba_rms_norm", bool, False) else None
    if settings.take("projectors_bias", bool, False) != (bias := settings.take("mamba_proj_bias", bool, False)):
        raise settings.refusal(
            "projectors_bias", f"must be mamba_proj_bias = {bias}: the mixer's two maps are alike here"
        )
    return changed(
        spec,
        SSDSpec,
        multipliers=() if set(said) == {1.0} else said,
        norm=norm,
        norm_first=first and norm is not None,
        bias=bias,
    )


def _of_ssm(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, SSDSpec)
    return {
        "ssm_multipliers": [*(found.multipliers or (1.0,) * 5)],
        "mamba_rms_norm": found.norm is not None,
        "mamba_norm_before_gate": found.norm_first,
        "projectors_bias": found.bias,
        "mamba_proj_bias": found.bias,
    }


NAMES = {ours: theirs for ours, theirs in OF_A_HYBRID.items() if ours != "bias"} | {"width": "mamba_d_ssm"}
FALCON_H1 = table.family(
    "falcon_h1",
    "FalconH1ForCausalLM",
    falcon_h1(1, 32, 1, 8, ssm=(1, 64, 8), vocab_size=8),
    (
        *table.STREAM,
        D_FF,
        table.heads(n_kv_heads=8),
        table.BIASES,
        MLP_BIAS,
        scaled_by("embedding_multiplier", TokensSpec),
        scaled_by("lm_head_multiplier", HeadSpec),
        table.positions(RotarySpec(), context=8192),
        *mixer(NAMES, 256, 1, usual=1024),
        table.rms_eps(1e-5),
        table.Pair(_ssm, _of_ssm),
        table.Pair(_around, _written),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        "0.norm_in": "input_layernorm",
        "1.norm_in": "pre_ff_layernorm",
        **{ours.replace("branches.0", "branches.1"): theirs for ours, theirs in ATTENTION.items()},
        **modules("mamba"),
        **gated(table.FEED, "feed_forward"),
    },
    norm="final_layernorm",
    ignored=(
        "mamba_chunk_size",
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "mamba_use_mlp",
    ),
)
