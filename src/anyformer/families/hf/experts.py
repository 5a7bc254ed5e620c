"""Mixtures of experts in Hugging Face's classes: fused tensors in memory, in files a tensor for each expert."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anyformer.families.compose import changed
from anyformer.families.hf.mapping import TensorRow, Tensors, fused, one, same, shapes
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import ExpertRows, Pair
from anyformer.layers import GatedFeedForwardSpec, MoESpec, RouterSpec
from anyformer.spec import ModelSpec


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
