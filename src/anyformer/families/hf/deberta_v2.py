"""DeBERTa v2 and v3 to and from transformers' DebertaV2Model and the classes that put heads on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deberta import convolved, deberta_v2
from anyformer.families.hf.deberta import IN_FILES, LAYER, POOLED, SCORES, TABLE, TWINS, heads, outside_layers, relative
from anyformer.families.hf.encoder import SIZES, encoder_family, eps
from anyformer.families.hf.layout import Link, link, of_layers
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.table import PROJECTION, Pair
from anyformer.layers import (
    ContentToPositionSpec,
    ConvolutionSpec,
    LayerNormSpec,
    LinearSpec,
    PositionToContentSpec,
    RelativeTableSpec,
)
from anyformer.spec import Count, ModelSpec

CONVOLUTION = "stack.blocks.0.sublayers.2"


def distances() -> Pair:
    """The buckets of distances, their norm, and whether they are projected as tokens are."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        buckets = settings.take("position_buckets", int, -1)
        kinds = {part.strip() for part in settings.take("norm_rel_ebd", str, "none").lower().split("|")}
        if kinds - {"none", "layer_norm"}:
            raise settings.refusal("norm_rel_ebd", "is not computed here; only 'none' or 'layer_norm' is")
        norm = one(spec, LayerNormSpec, "layer norm") if "layer_norm" in kinds else None
        spec = changed(spec, RelativeTableSpec, n_buckets=Count(buckets) if buckets > 0 else None, norm=norm)
        own = None if settings.take("share_att_key", bool, False) else LinearSpec(bias=True)
        spec = changed(spec, ContentToPositionSpec, projection=own)
        return changed(spec, PositionToContentSpec, projection=own)

    def write(spec: ModelSpec) -> dict[str, Any]:
        table = one(spec, RelativeTableSpec, TABLE)
        return {
            "position_buckets": table.n_buckets or -1,
            "norm_rel_ebd": "layer_norm" if table.norm else "none",
            "share_att_key": one(spec, ContentToPositionSpec, "content to position").projection is None,
        }

    return Pair(read, write)


def convolution() -> Pair:
    """The convolution beside the first layer."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        size, activation = settings.take("conv_kernel_size", int, 0), settings.activation("conv_act", "tanh")
        settings.require("conv_groups", 1)
        if size > 0 and size % 2 == 0:
            raise settings.refusal("conv_kernel_size", "must be odd: as many tokens before as after")
        if size < 1:
            return spec
        norm = one(spec, LayerNormSpec, "layer norm")
        return changed(convolved(spec, size, activation), LayerNormSpec, eps=norm.eps)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = next((part for part in spec.stack.nested() if isinstance(part, ConvolutionSpec)), None)
        if found is None:
            return {}
        return {"conv_kernel_size": found.size, "conv_act": spelling(found.activation) or "tanh", "conv_groups": 1}

    return Pair(read, write)


def links(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules."""
    names = (("q", "query"), ("k", "key"), ("v", "value"))
    layer = LAYER | {f"{PROJECTION}.{ours}": f"attention.self.{theirs}_proj" for ours, theirs in names}
    own = {f"{SCORES}.{i}.projection": f"attention.self.pos_{x}_proj" for i, x in enumerate(("key", "query"))}
    yield from outside_layers(spec)
    yield from of_layers(spec.stack, "encoder.layer", layer | own)
    yield link(f"{CONVOLUTION}.branches.0.mixer", "encoder.conv.conv")
    yield link(f"{CONVOLUTION}.norm_sum", "encoder.conv.LayerNorm")


DEBERTA_V2 = encoder_family(
    "deberta-v2",
    deberta_v2(n_layers=1, d_model=8, n_heads=1),
    (*SIZES, eps(1e-7), relative(), distances(), convolution(), POOLED),
    heads("DebertaV2"),
    links,
    twins=TWINS,
    buffers=IN_FILES,
    ignored=("legacy",),
)
