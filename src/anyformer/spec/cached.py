"""Which calls of a model keep something for later tokens: the layout of a cache, for building one and for costing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anyformer.spec.part import Site, inside
from anyformer.spec.structure import BlockSpec, BranchSpec, MixerSpec, ModelSpec


def cached_calls(spec: ModelSpec) -> Iterator[tuple[MixerSpec, Mapping[str, tuple[int, ...]]]]:
    """Yield each mixer of the main stack that keeps something, with what it keeps of a token, in the order of the calls."""
    stack, place = next((stack, place) for name, stack, place in inside(spec, Site()) if name == "stack")
    for _, block, site in inside(stack, place):
        if isinstance(block, BlockSpec):
            for _, sublayer, here in inside(block, site):
                for _, branch, there in inside(sublayer, here):
                    shapes = branch.mixer.cache_shapes(there) if isinstance(branch, BranchSpec) else None
                    if isinstance(branch, BranchSpec) and shapes is not None:
                        yield branch.mixer, shapes
