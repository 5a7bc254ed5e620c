"""Granite 3 and its mixtures to and from transformers' GraniteForCausalLM and GraniteMoeForCausalLM: LLaMA's with multipliers.

Files of the mixtures hold their experts fused, by older names.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.granite import granite, granite_moe
from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, TOP_K, TRAINING
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, WIDTHS
from anyformer.layers import AddSpec, AttentionSpec, GatedFeedForwardSpec, RouterSpec, TokensSpec
from anyformer.spec import HeadSpec, ScaleSpec, Spec


def _factor(name: str, part: type[Spec], *, inverse: bool = False) -> table.Pair:
    """The multiplier, or divisor, that is the scale of every `part`."""

    def into(value: float) -> ScaleSpec:
        return ScaleSpec(factor=1 / value if inverse else value)

    def out(scale: ScaleSpec | None) -> Any:
        factor = 1.0 if scale is None else scale.factor
        return 1 / factor if inverse else factor

    return table.at(name, float, part, "scale", default=1.0, into=into, out=out)


MULTIPLIERS = (
    _factor("embedding_multiplier", TokensSpec),
    _factor("attention_multiplier", AttentionSpec),
    _factor("logits_scaling", HeadSpec, inverse=True),
    table.at("residual_multiplier", float, AddSpec, "branch", default=1.0),
)
PAIRS = (
    *WIDTHS,
    table.heads(),
    table.EVEN,
    table.BIASES,
    EPS,
    *MULTIPLIERS,
    table.positions(),
    table.tables(tied=False),
    table.layers(),
)
LAYER = {**NORMS, **ATTENTION}

GRANITE = table.family(
    "granite",
    "GraniteForCausalLM",
    granite(1, 8, 1, 8, vocab_size=1, scores=1.0, branch=1.0, logits=1.0),
    (*PAIRS, table.at("mlp_bias", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False)),
    {**LAYER, **GATED},
)


def _experts(gate_and_up: str, down: str, router: str) -> dict[Any, str]:
    places = {f"{table.FEED}.router": router, GATE_AND_UP: gate_and_up, f"{EXPERTS}.down.weight": down}
    return {ours: f"block_sparse_moe.{theirs}" for ours, theirs in places.items()}


GRANITE_MOE = table.family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    granite_moe(1, 8, 1, 8, n_experts=64, logits=1.0, top_k=1),
    (*PAIRS, table.at("num_local_experts", int, RouterSpec, "n_experts", default=8), TOP_K),
    {**LAYER, **_experts("experts.gate_up_proj", "experts.down_proj", "router")},
    filed={**LAYER, **_experts("input_linear.weight", "output_linear.weight", "router.layer")},
    ignored=TRAINING,
)
