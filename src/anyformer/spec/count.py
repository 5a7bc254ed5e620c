"""How many numbers a specification has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from anyformer.spec.architecture import Architecture, specification
from anyformer.spec.part import PartSpec, Place, Seen, Weight, inside, is_met

WHOLE_NBYTES = 8  # of a whole number of a table that nothing trains
# The first axis of what looks tokens, positions, segments and languages up.
EMBEDDING_AXES = ("vocab", "position", "segment", "language")


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers; shared ones once."""

    total: int
    embedding: int  # tables of tokens, positions, segments and languages, an untied head's table among them
    frozen: int = 0  # held beside them and never trained
    inactive: int = 0  # of the experts that one token does not choose
    whole: int = 0  # of the frozen ones, whole numbers, which have a type of their own

    def nbytes(self, each: float) -> float:
        """What all that is held takes, where a number that may be of any dtype takes so many bytes."""
        return (self.total + self.frozen - self.whole) * each + self.whole * WHOLE_NBYTES

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
    return _counted((weight, times) for _, weight, times, _ in _weights(spec, Place(), {}))


def parameters_by_part(architecture: PartSpec | Architecture) -> Mapping[str, int]:
    """The same total by what the outermost part that has a name is `counted_as`: embedding, attention, norms, heads …

    What is shared belongs to the first part that holds it: a tied table to the embedding.
    """
    spec = architecture if isinstance(architecture, PartSpec) else specification(architecture)
    by_part: dict[str, list[tuple[Weight, int]]] = {}
    for name, weight, times, _ in _weights(spec, Place(), {}):
        by_part.setdefault(name or "other", []).append((weight, times))
    totals = {name: _counted(weights).total for name, weights in by_part.items()}
    return {name: total for name, total in totals.items() if total}


def parameters_met(part: PartSpec, place: Place) -> int:
    """How many a token meets on its way through a part, tables of an embedding left out: what is called twice counts twice."""
    own = (weight for weight in part.weights(place).values() if weight is not None and weight.trainable)
    met = sum(weight.active for weight in own if not _looked_up(weight))
    return met + sum(
        times * parameters_met(inner, inner_place) for _, inner, inner_place, times in _distinct(part, place)
    )


def _distinct(part: PartSpec, place: Place) -> Iterator[tuple[str, PartSpec, Place, int]]:
    """The parts inside one, each with its first name, its place, and how often it stands there: thousands are a few."""
    places = list(inside(part, place))
    times = Counter((id(inner), id(inner_place)) for _, inner, inner_place in places)
    first: dict[tuple[int, int], tuple[str, PartSpec, Place]] = {}
    for each in places:
        first.setdefault((id(each[1]), id(each[2])), each)
    yield from ((*first[key], n) for key, n in times.items())


def _weights(
    part: PartSpec, place: Place, seen: Seen, name: str | None = None, path: str = ""
) -> Iterator[tuple[str | None, Weight, int, bool]]:
    """(what it is counted as, weight, how often, whether it is a shared part's) of all tensors; those that are shared once."""
    name, own = name or part.counted_as, tuple(part.weights(place).items())
    shared = part.shared is not None
    if is_met(part, own, seen, path):
        return
    yield from ((name, weight, 1, shared) for _, weight in own if weight is not None)
    for label, inner, inner_place, n in _distinct(part, place):
        for said, weight, times, once in _weights(inner, inner_place, seen, name, f"{path}.{label}".lstrip(".")):
            yield said, weight, times if once else times * n, once or shared


def _counted(weights: Iterable[tuple[Weight, int]]) -> Parameters:
    total = embedding = frozen = inactive = whole = 0
    for weight, times in weights:
        numel = weight.numel * times
        if not weight.trainable:
            frozen += numel
            whole += numel if weight.below is not None else 0
            continue
        total += numel
        inactive += numel - weight.active * times
        embedding += numel if _looked_up(weight) else 0
    return Parameters(total, embedding, frozen, inactive, whole)


def _looked_up(weight: Weight) -> bool:
    return weight.role == "table" and weight.axes[0] in EMBEDDING_AXES
