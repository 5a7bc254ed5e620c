"""Ministral 3 and Mistral Small 4 to and from transformers' Ministral3ForCausalLM and Mistral4ForCausalLM.

One table of settings holds the rotation, its scaling and how queries grow; a class has a whole one where none is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import (
    LAYOUT,
    latent_heads,
    latent_scale,
    layer,
    layer_eps,
    n_shared,
    turning,
    v3_routing,
)
from anyformer.families.hf.experts import HELD, dense_first, expert_width
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION, ORIGINAL, THETA, rotary_of, scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.mistral4 import ministral3, mistral4
from anyformer.layers import AttentionSpec, LogSteps, MLASpec, RotarySpec
from anyformer.spec import Length, ModelSpec

GROWTH = "llama_4_scaling_beta"
YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, GROWTH: 0.1}
OF_MINISTRAL = {**YARN, THETA: 1e6, "factor": 16.0, ORIGINAL: 16_384}
OF_SMALL = {**YARN, THETA: 1e4, "factor": 128.0, ORIGINAL: 8192}


def rotation(
    usual: Mapping[str, Any], context: int, fraction: Callable[[ModelSpec], float], *, grows: bool = True
) -> table.Pair:
    """The context, the rotation and, of a class that `grows` them so, the growth of queries; `fraction` is what a class takes to
    rotate of each head."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        length = settings.positive("max_position_embeddings", int, context)
        theta = settings.positive(THETA, float, 10_000.0)
        given = settings.section("rope_parameters") or settings.section("rope_scaling")
        inner = given or Settings(usual, "rope_parameters")
        inner.ignore("max_position_embeddings")
        inner.require(FRACTION, fraction(spec))
        growth = inner.take(GROWTH, float, 0.0) if grows else 0.0
        original = inner.positive(ORIGINAL, int, length)
        plain = one(spec, RotarySpec).but(theta=theta, scaling=None)
        spec = changed(spec, RotarySpec, **rotary_of(inner, length, plain).but(fraction=1.0).values()).but(
            context=length
        )
        steps = LogSteps(length=Length(original), growth=growth) if growth else None
        return changed(spec, AttentionSpec, query_scale=steps) if grows else spec

    def write(spec: ModelSpec) -> dict[str, Any]:
        rotary, steps = one(spec, RotarySpec), one(spec, AttentionSpec).query_scale
        length = spec.context or context
        said = {
            THETA: rotary.theta,
            "rope_type": "default",
            ORIGINAL: length,
            **(scaling_settings(rotary.scaling) or {}),
        }
        found: dict[str, Any] = {GROWTH: 0.0} if grows else {}
        found = {GROWTH: steps.growth, ORIGINAL: steps.length} if isinstance(steps, LogSteps) else found
        return {"max_position_embeddings": length, "rope_parameters": {**said, **found}}

    return table.Pair(read, write)


def _width(spec: ModelSpec) -> int:
    return one(spec, MLASpec).head_dim + turning(spec)


def _share(spec: ModelSpec) -> float:
    return turning(spec) / _width(spec)


def sharpened_rotation(usual: Mapping[str, Any], turns: table.Pair) -> table.Pair:
    """A rotation with attention's scale, which the same table says."""
    scale = latent_scale(usual)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found, sharp = turns.write(spec), scale.write(spec).get("rope_scaling", {})
        return {**found, "rope_parameters": {**sharp, **found["rope_parameters"]}}

    return table.Pair(lambda settings, spec: scale.read(settings, turns.read(settings, spec)), write)


MINISTRAL3 = table.family(
    "ministral3",
    "Ministral3ForCausalLM",
    ministral3(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8, head_dim=128),
        table.rms_eps(1e-5),
        rotation(OF_MINISTRAL, 262_144, lambda _: 1.0),
        windows.window(None),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **GATED},
)
MISTRAL4 = table.family(
    "mistral4",
    "Mistral4ForCausalLM",
    mistral4(1, 8, 1, 8, d_expert=8, n_experts=2, top_k=1, n_dense=0),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 2048),
        n_shared(1),
        *latent_heads(kv_rank=256, query_rank=1024, head_dim=64),
        layer_eps(),
        LAYOUT,
        table.only(head_dim=_width),
        sharpened_rotation(OF_SMALL, rotation(OF_SMALL, 1_048_576, _share)),
        v3_routing(128, 4, 1.0, 1, 1),
        table.tables(tied=False),
        table.layers(),
        dense_first(0),
    ),
    lambda spec: {**layer(spec), **HELD},
)
