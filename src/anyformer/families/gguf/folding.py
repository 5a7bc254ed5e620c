"""Factors that files have no key for, multiplied into the weights around them: the same numbers come out."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from anyformer.families.gguf.dialect import Adapted
from anyformer.layers import (
    AttentionSpec,
    FactorSpec,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    SiLU,
    SSDSpec,
    Swish,
    TokensSpec,
)
from anyformer.spec import BranchSpec, EmbeddingSpec, MapSpec, ModelSpec, ScaleSpec

# The maps of a mixer that read what it reads, and the one that writes.
READING = {
    AttentionSpec: tuple(f"projection.{x}" for x in "qkv"),
    SSDSpec: ("inner",),
    FeedForwardSpec: ("up",),
    GatedFeedForwardSpec: ("gate", "up"),
}
WRITING = {AttentionSpec: "projection.o", SSDSpec: "out", FeedForwardSpec: "down", GatedFeedForwardSpec: "down"}
ENDS = ("weight", "bias")
Factors = dict[str, float | Tensor]  # by our tensor's name; of a number each, or of one for each row


def folded(spec: ModelSpec) -> Adapted:
    """The model with the factors of branches, keys, gates, embedding and logits in its weights."""
    factors: Factors = {}
    blocks = []
    for i, block in enumerate(spec.stack.blocks):
        sublayers = []
        for j, sublayer in enumerate(block.sublayers):
            places = (f"stack.blocks.{i}.sublayers.{j}.branches.{k}.mixer" for k in range(len(sublayer.branches)))
            branches = (_branch(each, place, factors) for each, place in zip(sublayer.branches, places, strict=True))
            sublayers.append(sublayer.but(branches=tuple(branches)))
        blocks.append(block.but(sublayers=tuple(sublayers)))
    plain = _tables(spec.but(stack=spec.stack.but(blocks=tuple(blocks))), factors)
    changes = {name: partial(_times, factor=factor) for name, factor in factors.items()}
    note = "its multipliers, for which there is no key, are in its weights" if changes else ""
    return Adapted(plain, changes, note)


def _branch(branch: BranchSpec, place: str, factors: Factors) -> BranchSpec:
    mixer = branch.mixer
    if type(mixer) not in READING:
        return branch
    before, after = _factor(branch.norm_in), _factor(branch.norm_out)
    _multiply(factors, before, *(f"{place}.{name}.weight" for name in READING[type(mixer)]))
    if isinstance(mixer, SSDSpec) and mixer.multipliers:
        rows = torch.cat([torch.full((n,), m) for n, m in zip(mixer.made, mixer.multipliers, strict=True)])
        _multiply(factors, rows, *(f"{place}.inner.{end}" for end in ENDS))
        mixer = mixer.but(multipliers=())
    if isinstance(mixer, AttentionSpec) and mixer.scale.factor != 1:
        _multiply(factors, mixer.scale.factor, *(f"{place}.projection.k.{end}" for end in ENDS))
        mixer = mixer.but(scale=mixer.scale.but(factor=1.0))
    if isinstance(mixer, GatedFeedForwardSpec) and isinstance(mixer.activation, Swish):
        # x σ(m x) is silu(m x) / m.
        gate = mixer.activation.beta
        _multiply(factors, gate, *(f"{place}.gate.{end}" for end in ENDS))
        _multiply(factors, 1 / gate, f"{place}.down.weight")
        mixer = mixer.but(activation=SiLU())
    _multiply(factors, after, *(f"{place}.{WRITING[type(mixer)]}.{end}" for end in ENDS))
    kept = {name: None for name in ("norm_in", "norm_out") if isinstance(getattr(branch, name), FactorSpec)}
    return branch.but(mixer=mixer, **kept)


def _tables(spec: ModelSpec, factors: Factors) -> ModelSpec:
    """Without what tokens and logits are multiplied by; a table that both have takes one factor."""
    if not spec.heads:
        return spec
    (tokens, *others), (head, *more) = spec.stack.embedding.terms, spec.heads
    if not isinstance(tokens, TokensSpec) or tokens.projection is not None:
        return spec
    entering, leaving = (_number(scale) for scale in (tokens.scale, head.scale))
    if entering is None or leaving is None or (head.tied and entering != leaving):
        return spec
    if head.tied:
        _multiply(factors, entering, f"shared.{head.tied}.weight")
    else:
        _multiply(factors, entering, "stack.embedding.terms.0.table.weight")
        _multiply(factors, leaving, "heads.0.table.weight")
    _multiply(factors, leaving, "heads.0.bias")
    embedding: EmbeddingSpec = spec.stack.embedding.but(terms=(tokens.but(scale=None), *others))
    return spec.but(stack=spec.stack.but(embedding=embedding), heads=(head.but(scale=None), *more))


def _factor(found: MapSpec | None) -> float:
    return found.factor if isinstance(found, FactorSpec) else 1.0


def _number(scale: ScaleSpec | None) -> float | None:
    """A scale that hangs on no width; None for another."""
    return 1.0 if scale is None else None if scale.power else scale.factor


def _multiply(factors: Factors, by: float | Tensor, *names: str) -> None:
    if isinstance(by, Tensor) or by != 1:
        factors.update({name: factors.get(name, 1.0) * by for name in names})


def _times(tensor: Tensor, factor: float | Tensor) -> Tensor:
    if isinstance(factor, Tensor):
        factor = factor.to(tensor.device)
        return tensor * (factor[:, None] if tensor.dim() > 1 else factor)
    return tensor * factor
