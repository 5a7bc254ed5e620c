"""Qwen's mixtures to and from transformers' Qwen2MoeForCausalLM, in which some layers may be dense."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, changed, pre_norm
from anyformer.families.hf import table
from anyformer.families.hf.experts import expert_width, gated_experts
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, SWIGLU
from anyformer.families.hf.mixtral import TRAINING
from anyformer.families.hf.settings import Settings
from anyformer.families.qwen_moe import qwen_moe
from anyformer.layers import GatedFeedForwardSpec, GQASpec, MoESpec, RouterSpec
from anyformer.spec import BlockSpec, ModelSpec, Width

TEMPLATE = qwen_moe(
    n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, n_experts=64, top_k=1, d_expert=8, d_shared=8, context=32_768
)
SHARED = {f"{table.FEED}.shared_expert.{x}": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")}
GATE = {f"{table.FEED}.shared_gate": "mlp.shared_expert_gate"}


def sparse(spec: BlockSpec) -> bool:
    """Whether a layer is a mixture."""
    return isinstance(spec.sublayers[-1].branches[0].mixer, MoESpec)


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Place dense layers between the sparse ones of which the template has one."""
    n_layers = settings.take("num_hidden_layers", int)
    step, width = settings.take("decoder_sparse_step", int, 1), settings.optional("intermediate_size", int)
    dense_ones = settings.written("mlp_only_layers") or []
    if step < 1 or not isinstance(dense_ones, list):
        name = "decoder_sparse_step" if step < 1 else "mlp_only_layers"
        raise settings.refusal(name, "must be at least 1" if step < 1 else "must be a list of layers")
    attend, feed = spec.stack.blocks[0].sublayers
    mixer = feed.branches[0].mixer
    assert isinstance(mixer, MoESpec)
    assert feed.norm_in is not None
    dense = block(
        attend, pre_norm(feed.norm_in, changed(mixer.expert, GatedFeedForwardSpec, d_ff=Width(width or 5632)))
    )
    kinds = ((i + 1) % step == 0 and i not in dense_ones for i in range(n_layers))
    return spec.but(stack=spec.stack.but(blocks=tuple(spec.stack.blocks[0] if kind else dense for kind in kinds)))


def _write(spec: ModelSpec) -> dict[str, Any]:
    blocks = spec.stack.blocks
    dense = [i for i, layer in enumerate(blocks) if not sparse(layer)]
    found: dict[str, Any] = {"num_hidden_layers": len(blocks), "decoder_sparse_step": 1, "mlp_only_layers": dense}
    if dense:
        mixer = blocks[dense[0]].sublayers[-1].branches[0].mixer
        found["intermediate_size"] = mixer.d_ff if isinstance(mixer, GatedFeedForwardSpec) else None
    return found


def _unwindowed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    settings.require("use_sliding_window", False)
    settings.ignore("sliding_window", "max_window_layers")
    if set(settings.strings("layer_types") or ()) - {table.FULL}:
        raise settings.refusal("layer_types", f"has windows, which are not computed here; only {table.FULL} is")
    return spec


QWEN_MOE = table.family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    TEMPLATE,
    (
        table.VOCABULARY,
        table.D_MODEL,
        table.heads(n_kv_heads=16),
        table.at("qkv_bias", bool, GQASpec, "bias_query", "bias_key", "bias_value", default=True),
        SWIGLU,
        EPS,
        table.positions(context=32_768),
        table.Pair(_unwindowed, lambda spec: {}),
        table.at("num_experts", int, RouterSpec, "n_experts", default=60),
        table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=4),
        table.at("norm_topk_prob", bool, RouterSpec, "renormalise", default=False),
        expert_width("moe_intermediate_size", "expert", 1408),
        expert_width("shared_expert_intermediate_size", "shared_expert", 5632),
        table.tables(tied=False),
        table.Pair(_read, _write),
    ),
    {**NORMS, **ATTENTION, **GATED, **SHARED, **GATE},
    experts=gated_experts("mlp.gate", "mlp.experts", "mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    ignored=TRAINING,
)
