"""Which models read several tokens of a text in one pass as they would read them one by one."""

from __future__ import annotations

import torch

from anyformer.layers.lsh import LSHAttentionSpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.rope_scaling import ScalingByLength
from anyformer.spec import ModelSpec


def competing(spec: ModelSpec) -> str | None:
    """What of a model makes another thing of tokens that it reads together, in words; None: nothing does."""
    for value in spec.nested():
        if isinstance(value, MoESpec) and value.capacity is not None:
            return "experts of a capacity, for which tokens read together compete"
        if isinstance(value, LSHAttentionSpec):
            return "hashed attention, which sorts tokens read together into chunks"
    return None


def rotating_by_length(spec: ModelSpec, first: int, last: int) -> ScalingByLength | None:
    """What rotates texts from `first` to `last` tokens by their length, so that it matters where a pass ends."""
    lengths = torch.tensor([[[first], [last]]])
    scalings = (value for part in (spec.stack, *spec.heads) for value in part.nested())
    return next((each for each in scalings if isinstance(each, ScalingByLength) and not each.alike(lengths)), None)
