"""Multipliers in configurations: scales of the tokens' vectors, of scores and of logits."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import TokensSpec
from anyformer.spec import ModelSpec, ScaleSpec, Spec


def scaled_tokens(name: str, scale: ScaleSpec, default: bool = False) -> table.Pair:
    """Whether the tokens' vectors are multiplied by `scale`."""
    return table.switch(name, TokensSpec, "scale", on=lambda spec: scale, default=default)


def scaled_by(name: str, part: type[Spec], default: float = 1.0, *, inverse: bool = False) -> table.Pair:
    """The multiplier, or divisor, that is the scale of every `part`; 1 is none where the template has none."""

    def scale_of(spec: ModelSpec) -> ScaleSpec | None:
        return one(spec, part).values()["scale"]

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        value = settings.positive(name, float, default)
        none = value == 1 and scale_of(spec) is None
        return changed(spec, part, scale=None if none else ScaleSpec(factor=1 / value if inverse else value))

    def write(spec: ModelSpec) -> dict[str, Any]:
        scale = scale_of(spec)
        factor = 1.0 if scale is None else scale.factor
        return {name: 1 / factor if inverse else factor}

    return table.Pair(read, write)
