"""MiniCPM3 to and from transformers' MiniCPM3ForCausalLM: latent attention, and multipliers by width and depth."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import latent_heads, latent_scale, layer_eps, modules
from anyformer.families.hf.granite import MLP_BIAS
from anyformer.families.hf.llama import GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.scales import scaled_by
from anyformer.families.hf.settings import Settings
from anyformer.families.minicpm import by_depth, minicpm3
from anyformer.layers import AddSpec, MLASpec, RotarySpec, TokensSpec
from anyformer.spec import HeadSpec, ModelSpec, ScaleSpec


def _values(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """A value is as wide as a head's share of the stream where nothing is said."""
    if settings.optional("v_head_dim", int) is not None:
        return spec
    return changed(spec, MLASpec, value_dim=spec.stack.d_model // one(spec, MLASpec).n_heads)


def _depth(settings: Settings, spec: ModelSpec) -> ModelSpec:
    share = settings.nullable("scale_depth", float, 1.4)
    return spec.but(stack=spec.stack.but(residual=by_depth(math.sqrt(spec.n_layers) if share is None else share)))


def _share(spec: ModelSpec) -> dict[str, Any]:
    added = one(spec.stack.residual.within(spec.stack.n_branches), AddSpec)
    return {"scale_depth": round(added.branch * math.sqrt(spec.n_layers), 12)}


def _width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    base = settings.nullable("dim_model_base", int, 256) or spec.stack.d_model
    return changed(spec, HeadSpec, scale=ScaleSpec(factor=float(base), power=-1.0))


def _base(spec: ModelSpec) -> dict[str, Any]:
    d_model, scale = spec.stack.d_model, spec.heads[0].scale
    return {"dim_model_base": d_model if scale is None else round(scale.value(d_model) * d_model)}


MINICPM3 = table.family(
    "minicpm3",
    "MiniCPM3ForCausalLM",
    changed(minicpm3(1, 8, 1, 8), RotarySpec, scaling=None),
    (
        *WIDTHS,
        MLP_BIAS,
        *latent_heads(256, 768, 64, 64, rotary_dim=32),
        table.Pair(_values),
        layer_eps(1e-5),
        table.positions(context=32_768),
        latent_scale(),
        scaled_by("scale_emb", TokensSpec, 12.0),
        table.Pair(_width, _base),
        table.tables(tied=True, start=0.1),
        table.layers(),
        table.Pair(_depth, _share),
    ),
    lambda spec: {**modules(spec), **NORMS, **GATED},
)
