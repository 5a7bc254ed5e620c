"""Mixtures of experts in transformers' classes, and Mixtral, Qwen's mixtures and Phi-3.5-MoE to and from theirs.

Tensors are fused in memory; files hold a tensor for each expert. Some layers of Qwen2MoeForCausalLM may be dense; the LongRoPE
of PhimoeForCausalLM keeps the short factors at every length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from anyformer.families.compose import block, changed, pre_norm
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, SWIGLU, WIDTHS
from anyformer.families.hf.mapping import TensorRow, Tensors, fused, one, same, shapes
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import ExpertRows, Pair
from anyformer.families.mistral import mixtral
from anyformer.families.phi_moe import phi_moe
from anyformer.families.qwen_moe import qwen_moe
from anyformer.layers import GatedFeedForwardSpec, GQASpec, LayerNormSpec, MoESpec, RMSNormSpec, RotarySpec, RouterSpec
from anyformer.spec import BlockSpec, HeadSpec, ModelSpec, Width


def mixtures(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """(our mixture, their layer) for each mixture of the stack."""
    for name in shapes(spec):
        if name.startswith("stack.") and name.endswith(".router.weight"):
            yield name.removesuffix(".router.weight"), f"model.layers.{name.split('.')[2]}"


def gated_experts(router: str, experts: str, filed_router: str, filed: str, each: tuple[str, str, str]) -> ExpertRows:
    """The rows of gated experts: `experts`.gate_up_proj is [gate‖up] of all, down_proj likewise.

    In files each expert stands alone: `filed`.3.w1 with `each` = (gate, up, down), say w1, w3, w2.
    """

    def held(spec: ModelSpec) -> Iterator[TensorRow]:
        for ours, theirs in mixtures(spec):
            yield from router_rows(spec, f"{ours}.router", f"{theirs}.{router}")
            pair = (f"{ours}.experts.gate.weight", f"{ours}.experts.up.weight")
            yield TensorRow(pair, (f"{theirs}.{experts}.gate_up_proj",), _halves, _side_by_side)
            yield same(f"{ours}.experts.down.weight", f"{theirs}.{experts}.down_proj")

    def split(spec: ModelSpec) -> Iterator[TensorRow]:
        n_experts = one(spec, RouterSpec, "mixture of experts").n_experts
        for ours, theirs in mixtures(spec):
            yield from router_rows(spec, f"{ours}.router", f"{theirs}.{filed_router}")
            for own, name in zip(("gate", "up", "down"), each, strict=True):
                names = tuple(f"{theirs}.{filed}.{i}.{name}.weight" for i in range(n_experts))
                yield each_alone(f"{ours}.experts.{own}.weight", names)

    return ExpertRows(held, split)


def each_alone(ours: str, theirs: tuple[str, ...]) -> TensorRow:
    """The row of a tensor of all experts and their tensors, one for each expert."""
    return TensorRow((ours,), theirs, _stacked, _alone)


def router_rows(spec: ModelSpec, ours: str, theirs: str) -> Iterator[TensorRow]:
    """The rows of what a router has."""
    names = shapes(spec)
    for own, name in (("weight", "weight"), ("bias", "bias"), ("correction", "e_score_correction_bias")):
        if f"{ours}.{own}" in names:
            yield fused((f"{ours}.{own}",), f"{theirs}.{name}")


def expert_width(name: str, field: str, default: int) -> Pair:
    """The setting of the d_ff of a mixture's `field`, expert or shared_expert."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        mixture = one(spec, MoESpec, "mixture of experts")
        width = settings.take(name, int, default)
        return changed(spec, MoESpec, **{field: getattr(mixture, field).but(d_ff=width)})

    def write(spec: ModelSpec) -> dict[str, int]:
        expert = getattr(one(spec, MoESpec, "mixture of experts"), field)
        return {name: one(expert, GatedFeedForwardSpec, "gated feed-forward").d_ff} if expert else {}

    return Pair(read, write)


def _halves(one_tensor: Tensors) -> Tensors:
    (whole,) = one_tensor
    return tuple(half.contiguous() for half in whole.chunk(2, 1))


def _side_by_side(pair: Tensors) -> Tensors:
    return (torch.cat(pair, 1),)


def _stacked(each: Tensors) -> Tensors:
    return (torch.stack(each),)


def _alone(stack: Tensors) -> Tensors:
    return stack[0].unbind(0)


TEMPLATE = mixtral(n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8, top_k=1)
TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
TOP_K = table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=2)

MIXTRAL = table.family(
    "mixtral",
    "MixtralForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072),
        table.window(None),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=8),
        TOP_K,
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    experts=gated_experts(
        "mlp.gate", "mlp.experts", "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")
    ),
    ignored=TRAINING,
)

TEMPLATE_OF_QWEN = qwen_moe(
    n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, n_experts=64, top_k=1, d_expert=8, d_shared=8, context=32_768
)
SHARED = {f"{table.FEED}.shared_expert.{x}": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")}
GATE = {f"{table.FEED}.shared_gate": "mlp.shared_expert_gate"}


def sparse(spec: BlockSpec) -> bool:
    """Whether a layer is a mixture."""
    return isinstance(spec.sublayers[-1].branches[0].mixer, MoESpec)


def _read_dense(settings: Settings, spec: ModelSpec) -> ModelSpec:
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


def _write_dense(spec: ModelSpec) -> dict[str, Any]:
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
    TEMPLATE_OF_QWEN,
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
        table.Pair(_read_dense, _write_dense),
    ),
    {**NORMS, **ATTENTION, **GATED, **SHARED, **GATE},
    experts=gated_experts("mlp.gate", "mlp.experts", "mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    ignored=TRAINING,
)

TEMPLATE_OF_PHI = phi_moe(n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8, top_k=1)

PHI_MOE = table.family(
    "phimoe",
    "PhimoeForCausalLM",
    TEMPLATE_OF_PHI,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        table.BIASES,
        table.at("rms_norm_eps", float, LayerNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072, magnitudes=True),
        table.window(None),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=16),
        TOP_K,
        table.at("router_jitter_noise", float, RouterSpec, "tolerance", default=0.01),
        table.at("lm_head_bias", bool, HeadSpec, "bias", default=False),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    experts=gated_experts(
        "mlp.router", "mlp.experts", "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")
    ),
    ignored=(*TRAINING, "input_jitter_noise"),
)
