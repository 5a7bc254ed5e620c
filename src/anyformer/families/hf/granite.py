"""Granite 3 and its mixtures to and from transformers' GraniteForCausalLM and GraniteMoeForCausalLM: LLaMA's with multipliers.
GraniteSWAForCausalLM has windows and sinks too, and a theta for each layer, 0 being no positions; HyperCLOVAXForCausalLM norms
behind the branches, and multiplies logits where Granite divides.

Files of the mixtures hold their experts fused, by older names.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.granite import granite, granite_moe, hyperclova
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, mixtral_routing
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, MLP_BIAS, NORMS, WIDTHS
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.scales import scaled_by
from anyformer.families.hf.settings import Settings
from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    RMSNormSpec,
    TokensSpec,
)
from anyformer.spec import BranchSpec, HeadSpec, ModelSpec, ScaleSpec

TOKENS = scaled_by("embedding_multiplier", TokensSpec)
BRANCH = table.at("residual_multiplier", float, AddSpec, "branch", default=1.0)
MULTIPLIERS = (
    TOKENS,
    scaled_by("attention_multiplier", AttentionSpec),
    scaled_by("logits_scaling", HeadSpec, inverse=True),
    BRANCH,
)


def _pairs(*ends: table.Pair) -> tuple[table.Pair, ...]:
    """The settings of all of these classes, and those whose defaults are a class's own."""
    return (*WIDTHS, table.heads(), table.EVEN, table.BIASES, *MULTIPLIERS, *ends, table.layers())


PAIRS = _pairs(EPS, table.positions(), table.tables(tied=False))
LAYER = {**NORMS, **ATTENTION}
TEMPLATE = granite(1, 8, 1, 8, vocab_size=1, scores=1.0, branch=1.0, logits=1.0)

GRANITE = table.family(
    "granite",
    "GraniteForCausalLM",
    TEMPLATE,
    (*PAIRS, MLP_BIAS),
    {**LAYER, **GATED},
)


def _experts(gate_and_up: str, down: str, router: str) -> dict[Any, str]:
    places = {f"{table.FEED}.router": router, GATE_AND_UP: gate_and_up, f"{EXPERTS}.down.weight": down}
    return {ours: f"block_sparse_moe.{theirs}" for ours, theirs in places.items()}


GRANITE_MOE = table.family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    granite_moe(1, 8, 1, 8, n_experts=64, logits=1.0),
    (*PAIRS, mixtral_routing(8, 2)),
    LAYER,
    apart=(
        _experts("experts.gate_up_proj", "experts.down_proj", "router"),
        _experts("input_linear.weight", "output_linear.weight", "router.layer"),
    ),
)


WINDOWS = windows.by_theta(lambda settings, n: [i % 4 == 0 for i in range(n)], 128)
SINK = {f"{table.MIXER}.sink": "self_attn.sinks"}
GRANITE_SWA = table.family(
    "granite_swa",
    "GraniteSWAForCausalLM",
    changed(TEMPLATE, AttentionSpec, sink=True),
    (
        *_pairs(
            table.rms_eps(1e-5),
            table.positions(context=8192),
            table.tables(tied=True),
        ),
        MLP_BIAS,
        WINDOWS,
    ),
    {**LAYER, **GATED, **SINK},
)


def _scores(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Attention's scale: by the width of a head where nothing is said, or that number is, as the class writes it."""
    factor, usual = settings.nullable("attention_multiplier", float, None), width_of_head(spec) ** -0.5
    scale = ScaleSpec(power=-0.5) if factor in (None, usual) else ScaleSpec(factor=factor)
    return changed(spec, AttentionSpec, scale=scale)


def _multiplier(spec: ModelSpec) -> dict[str, Any]:
    scale = one(spec, AttentionSpec).scale
    return {"attention_multiplier": None if scale.power else scale.factor}


HYPERCLOVA = table.family(
    "hyperclovax",
    "HyperCLOVAXForCausalLM",
    hyperclova(1, 8, 1, 8, scores=1.0, logits=1.0),
    (
        *WIDTHS,
        table.heads(),
        table.EVEN,
        table.BIASES,
        TOKENS,
        table.Pair(_scores, _multiplier),
        scaled_by("logits_scaling", HeadSpec),
        BRANCH,
        MLP_BIAS,
        EPS,
        table.switch("use_post_norm", BranchSpec, "norm_out", on=lambda spec: one(spec, RMSNormSpec), default=True),
        table.positions(),
        table.tables(tied=False),
        table.layers(),
    ),
    {**LAYER, **GATED, "0.branches.0.norm_out": "post_norm1", "1.branches.0.norm_out": "post_norm2"},
)
