"""How many numbers a specification has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from anyformer.spec.architecture import Architecture, specification
from anyformer.spec.part import PartSpec, Place, Seen, Weight, inside, tensors

EMBEDDING_AXES = ("vocab", "position", "segment")  # the first axis of what looks tokens, positions and segments up


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers; shared ones once."""

    total: int
    embedding: int  # tables of tokens, positions and segments, an untied head's table among them
    frozen: int = 0  # held beside them and never trained
    inactive: int = 0  # of the experts that one token does not choose

    @property
    def active(self) -> int:
        """What one token uses: all but the experts that it does not choose; tables count whole (Mixtral's convention)."""
        return self.total - self.inactive

    @property
    def non_embedding(self) -> int:
        """All but the tables."""
        return self.total - self.embedding


def parameters(architecture: PartSpec | Architecture) -> Parameters:
    """The parameters of a model or a part, from the declarations of its weights; nothing is allocated."""
    spec = architecture if isinstance(architecture, PartSpec) else specification(architecture)
    return counted(weight for _, weight in tensors(spec, Place()))


def parameters_by_part(architecture: PartSpec | Architecture) -> Mapping[str, int]:
    """The same total by what the outermost part that has a name is `counted_as`: embedding, attention, norms, heads …

    What is shared belongs to the first part that holds it: a tied table to the embedding.
    """
    spec = architecture if isinstance(architecture, PartSpec) else specification(architecture)
    by_part: dict[str, list[Weight]] = {}
    for name, weight in _named(spec, Place(), {}):
        by_part.setdefault(name, []).append(weight)
    totals = {name: counted(weights).total for name, weights in by_part.items()}
    return {name: total for name, total in totals.items() if total}


def parameters_met(part: PartSpec, place: Place) -> int:
    """How many a token meets on its way through a part, tables of an embedding left out: what is called twice counts twice."""
    own = (weight for weight in part.weights(place).values() if weight is not None and weight.trainable)
    met = sum(weight.active for weight in own if not _looked_up(weight))
    return met + sum(parameters_met(inner, inner_place) for _, inner, inner_place in inside(part, place))


def _named(part: PartSpec, place: Place, seen: Seen) -> Iterator[tuple[str, Weight]]:
    if part.counted_as is not None:
        yield from ((part.counted_as, weight) for _, weight in tensors(part, place, seen=seen))
        return
    own = tuple(part.weights(place).items())
    if part.shared is not None:
        if part.shared in seen:
            return
        seen[part.shared] = (part, own)
    yield from (("other", weight) for _, weight in own if weight is not None)
    for _, inner, inner_place in inside(part, place):
        yield from _named(inner, inner_place, seen)


def counted(weights: Iterable[Weight]) -> Parameters:
    """The parameters that these tensors hold."""
    total = embedding = frozen = inactive = 0
    for weight in weights:
        if not weight.trainable:
            frozen += weight.numel
            continue
        total += weight.numel
        inactive += weight.numel - weight.active
        embedding += weight.numel if _looked_up(weight) else 0
    return Parameters(total, embedding, frozen, inactive)


def _looked_up(weight: Weight) -> bool:
    return weight.role == "table" and weight.axes[0] in EMBEDDING_AXES
