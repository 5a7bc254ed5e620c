"""Where a model's tensors stand, said by what they do, so that those of two architectures can be told to be the same.

A layer's parts are called by their job and not by their number: the feed-forward network is the second sublayer of a decoder, the
third beside an encoder, and a second branch of the only one where both stand side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from anyformer.layers.projection import ProjectionSpec
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    EmbeddingSpec,
    HeadMap,
    MixerSpec,
    ModelSpec,
    PartSpec,
    Place,
    SublayerSpec,
    Weight,
    inside,
)


class Standing(NamedTuple):
    """A tensor that stands somewhere, or one of several places of one that is shared."""

    name: str  # in the state dict
    weight: Weight


class Anatomy:
    """A model's layers, branches, tensors and maps of heads, such as `stack.blocks.3.mixing.0.mixer.projection.q.weight`."""

    def __init__(self, spec: ModelSpec) -> None:
        self.tensors: dict[str, Standing] = {}
        self.maps: list[tuple[str, HeadMap]] = []  # with what their tensors begin with, `….projection.q.`
        # Of stacks and heads, in the order of a pass; what is inside a branch is its own.
        self.layers: list[str] = []
        self.branches: list[tuple[str, BranchSpec]] = []
        self._walk(spec, Place(), "", "")

    def _walk(self, part: PartSpec, place: Place, path: str, name: str, *, within: bool = False) -> None:
        name = name if part.shared is None else f"shared.{part.shared}."
        for own, weight in part.weights(place).items():
            if weight is not None:
                self.tensors[f"{path}{own}"] = Standing(f"{name}{own}", weight)
        if isinstance(part, BlockSpec) and not within:
            self.layers.append(path.removesuffix("."))
        if isinstance(part, BranchSpec) and not within:
            self.branches.append((path.removesuffix("."), part))
            within = True
        if isinstance(part, MixerSpec | ProjectionSpec):
            self.maps += [(f"{path}{each.of}.", each) for each in part.heads(place)]
        for does, inner_name, inner, inner_place in _inner(part, place):
            self._walk(inner, inner_place, f"{path}{does}.", f"{name}{inner_name}.", within=within)


def _inner(part: PartSpec, place: Place) -> Iterator[tuple[str, str, PartSpec, Place]]:
    """(what it does, its name, part, place) of the parts inside one; of a sublayer's, those inside the sublayer."""
    met = Counter[str]()

    def numbered(what: str) -> str:
        met[what] += 1
        return f"{what}.{met[what] - 1}"

    for name, inner, inner_place in inside(part, place):
        if isinstance(part, BlockSpec) and isinstance(inner, SublayerSpec):
            jobs = [numbered(branch.mixer.job) for branch in inner.branches] or [numbered("empty")]
            for own, each, each_place in inside(inner, inner_place):
                what, _, number = own.partition(".")
                does = jobs[int(number)] if what == "branches" else f"{jobs[0]}.around.{own}"
                yield does, f"{name}.{own}", each, each_place
        elif isinstance(part, EmbeddingSpec) and name.startswith("terms."):
            yield numbered(inner.kind), name, inner, inner_place
        elif isinstance(part, ModelSpec) and name.startswith("heads."):
            yield f"heads.{getattr(inner, 'name', name)}", name, inner, inner_place
        else:
            yield name, name, inner, inner_place
