"""Weights that hide nothing: all random, logits spread, attention far from uniform, some vectors as small as an eps."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from anyformer.layers import (
    AddSpec,
    AttentionSpec,
    BottleneckSpec,
    GQASpec,
    MoESpec,
    NormSpec,
    TokensSpec,
    UnitLengthSpec,
)
from anyformer.layers.init import distinct
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec, Place, Spec, tensors

UNIT = "projection.norm_key.maps.1.weight"  # of keys whose lengths are 1 (ZAYA1)


def telling(
    spec: ModelSpec, seed: int = 0, least_row: float | None = None, longest_row: float | None = None
) -> dict[str, Tensor]:
    """Return a tensor for each name of the state dict: gains 1 ± 0.3 (of queries 1.5), biases ± 0.3, matrices that multiply a
    vector's length by about 1.5, and rows of tables of deviations from `least_row` to `longest_row`.

    Small rows show a norm's eps; where none reads the embedding, they would only leave the first attention uniform.
    """
    if least_row is None:
        first = spec.stack.blocks[0].sublayers[0]
        norms = (spec.stack.embedding.norm, first.norm_in, *(branch.norm_in for branch in first.branches))
        least_row = 0.003 if any(norms) else longest_row or min(1.0, 2 / token_scale(spec))
        longest_row = longest_row or (1.0 if any(norms) else least_row)
    longest_row = longest_row or 1.0
    generator = torch.Generator().manual_seed(seed)
    longer, query = drawn_lengths(spec)
    found: dict[str, Tensor] = {}
    for name, weight in tensors(spec, Place()):
        if weight.below is not None:
            found[name] = distinct(weight, generator)
            continue
        uniform = 2 * torch.rand(weight.shape, generator=generator) - 1
        normal = torch.randn(weight.shape, generator=generator)
        if weight.role == "gain":
            found[name] = torch.tensor(weight.fill or 0.0) + 0.3 * uniform  # what is stored may be the gain minus one
            if name.endswith(UNIT):
                found[name] += 2.0  # products of lengths of 1 are small
            if name.endswith("projection.norm_query.weight"):  # normed queries' scores would be nearly alike
                # less of those that are not scaled (Gemma 3n), more of those divided by their width (Inkling)
                found[name] = (found[name] + 0.5) * (query if divided_by_width(spec) else min(1.0, query))
        elif weight.role == "bias":
            found[name] = 0.3 * uniform
        elif weight.role == "table":
            share = torch.rand(weight.shape[0], *[1] * (len(weight.shape) - 1), generator=generator)
            few = name.startswith("heads.") and weight.shape[0] < spec.vocab_size  # no words: each row is an answer
            lengths = 1.0 if few else longest_row * (least_row / longest_row) ** share
            found[name] = lengths * normal
        else:
            found[name] = longer * weight.shape[-1] ** -0.5 * normal
        if weight.role == "query":
            found[name] *= query
    return found


def token_scale(spec: ModelSpec) -> float:
    """Return what rows of the table are multiplied by beside what branches write: where no norm follows, all the weight would
    fall on one key, and where branches are made small (Granite), nothing else be heard."""
    scales = (term.scale for term in spec.stack.embedding.terms if isinstance(term, TokensSpec) and term.scale)
    return next((scale.value(spec.stack.d_model) for scale in scales), 1.0) / branches(spec)


def branches(spec: ModelSpec) -> float:
    """Return what branches are multiplied by."""
    return spec.stack.residual.branch if isinstance(spec.stack.residual, AddSpec) else 1.0


def divided_by_width(spec: ModelSpec) -> bool:
    """Return whether scores of normed queries are divided by the width of a head, and not by its root."""
    return any(
        attention.scale.power == -1 and getattr(attention.projection, "norm_query", None) is not None
        for attention in spec.stack.nested(AttentionSpec)
    )


def query_scale(spec: ModelSpec) -> float:
    """Return what queries' weights are multiplied by where scores are not scaled (T5): else all weight falls on one key."""
    for attention in spec.stack.nested():
        if isinstance(attention, AttentionSpec) and isinstance(attention.projection, GQASpec):
            if isinstance(attention.projection.norm_query, UnitLengthSpec):
                return 1.0
            width = attention.projection.head_dim or spec.stack.d_model // attention.projection.n_heads
            sharpness = width**-0.5 / attention.scale.value(width)
            return (
                sharpness if attention.scale.power == 0 or divided_by_width(spec) else min(1.0, sharpness)
            )  # Granite's is a number for larger heads
    return 1.0


def drawn_lengths(spec: ModelSpec) -> tuple[float, float]:
    """Return what matrices multiply a vector's length by, and queries' by how much more.

    Where there is no norm the stream would grow, and what a bottleneck lets through be nearly nothing (MobileBERT).
    """
    unnormed = any(spec.stack.nested(BottleneckSpec)) and not any(spec.stack.nested(NormSpec))
    return (0.7, 40.0) if unnormed else (1.5, query_scale(spec))


def filled(spec: ModelSpec, weights: dict[str, Tensor]) -> Transformer:
    """Return the model with these weights."""
    model = build(spec, seed=None)
    model.load_state_dict(weights)
    return model


def edited(value: Any, kind: type[Spec], edit: Any) -> Any:
    """Return a specification with every value of a kind replaced by what `edit` makes of it."""
    if isinstance(value, tuple):
        return tuple(edited(item, kind, edit) for item in value)
    if not isinstance(value, Spec):
        return value
    inner = {name: edited(field, kind, edit) for name, field in value.values().items()}
    value = dataclasses.replace(value, **inner)  # type: ignore[type-var]
    return edit(value) if isinstance(value, kind) else value


def all_served(spec: ModelSpec) -> ModelSpec:
    """Return the model whose every choice goes through an expert: how many do not is foreseen for an even load alone."""

    def served(mixture: MoESpec) -> MoESpec:
        router = mixture.router
        n = min(router.top_k, router.n_experts)
        return mixture.but(
            capacity=None, router=router.but(n_identity=0, empty=False, top_k=n) if router.n_identity else router
        )

    return edited(spec, MoESpec, served)
