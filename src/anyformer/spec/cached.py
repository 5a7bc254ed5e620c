"""Which calls of a model keep something for later tokens: the layout of a cache, for building one and for costing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anyformer.spec.head import HeadLayersSpec, HeadSpec
from anyformer.spec.kinds import MixerSpec
from anyformer.spec.model import ModelSpec
from anyformer.spec.part import PartSpec, Place, inside
from anyformer.spec.structure import BlockSpec, BranchSpec


def cached_calls(spec: ModelSpec) -> Iterator[tuple[MixerSpec, Mapping[str, tuple[int, ...]]]]:
    """Each mixer that keeps something of new tokens, with what it keeps of one, in the order of the calls.

    They are the main stack's, then those of the heads' own layers.
    """
    places = list(inside(spec, Place()))
    yield from (call for name, part, inner_place in places if name == "stack" for call in _calls(part, inner_place))
    for _, head, inner_place in places:
        if isinstance(head, HeadSpec):
            for _, part, place in inside(head, inner_place):
                if isinstance(part, HeadLayersSpec):
                    yield from _calls(part, place)


def _calls(part: PartSpec, inner_place: Place) -> Iterator[tuple[MixerSpec, Mapping[str, tuple[int, ...]]]]:
    for _, block, place in inside(part, inner_place):
        if isinstance(block, BlockSpec):
            for _, sublayer, here in inside(block, place):
                for _, branch, there in inside(sublayer, here):
                    shapes = branch.mixer.cache_shapes(there) if isinstance(branch, BranchSpec) else None
                    if isinstance(branch, BranchSpec) and shapes is not None:
                        yield branch.mixer, shapes
