"""What every piece of a specification is: an immutable, hashable value; and, if it becomes a module, what it must tell."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NewType, Self, dataclass_transform, get_type_hints

from anyformer.errors import NoModuleError, SpecError
from anyformer.spec.cost import Cost, Workload

if TYPE_CHECKING:
    from anyformer.spec.sizes import Sizes

Width = NewType("Width", int)  # of vectors: d_model, d_ff, head_dim
Count = NewType("Count", int)  # of things: heads, experts, segments
Length = NewType("Length", int)  # of sequences, in tokens: contexts, learned positions
Window = NewType("Window", int)  # of distances, in tokens: sliding windows, the reach of buckets
Vocab = NewType("Vocab", int)  # rows of a table of tokens

Role = Literal["matrix", "query", "inner", "output", "table", "bias", "gain"]


@dataclass(frozen=True)
class Weight:
    """One tensor of a part: what counting, initialisation, sharding and checkpoint rows go by."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]  # a name for each axis: "vocab", "d_model", "heads", "d_ff" …
    # "output": a matrix that writes to the residual stream; "inner": one that what it writes grows with;
    # "query": one that makes attention's queries
    role: Role = "matrix"
    fill: float | None = None  # the constant it starts from; None: drawn from the distribution of its role
    trainable: bool = True
    used: int | None = None  # of the first axis, by one token (experts); None: all

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def active(self) -> int:
        """How many of them one token uses."""
        return self.numel if self.used is None else self.numel // self.shape[0] * self.used

    def stacked(self, axis: str, n: int) -> Weight:
        """`n` of these as one tensor with a leading axis."""
        return dataclasses.replace(self, shape=(n, *self.shape), axes=(axis, *self.axes))


@dataclass(frozen=True)
class Place:
    """What a part is told about the place where it stands."""

    d_model: int = 0  # width of the residual stream
    shape: tuple[int, ...] = ()  # of the vectors it maps; statistics and projections run over the last axis
    d_source: int = 0  # width of the stream that cross-attention reads
    modules: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # the shared ones built so far

    def at(self, *shape: int) -> Place:
        """The same place for vectors of another shape."""
        return dataclasses.replace(self, shape=shape)


@dataclass(frozen=True)
class Caveat:
    """A law that a part cannot obey by its nature, and why."""

    law: str
    reason: str


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Spec:
    """An immutable, hashable value of the specification language; a subclass lists its fields, nothing else."""

    kinds: ClassVar[dict[str, type[Spec]]] = {}
    kind: ClassVar[str] = "Spec"
    abstract: ClassVar[bool] = True

    def __init_subclass__(cls, abstract: bool = False) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.kind, cls.abstract = cls.__name__.removesuffix("Spec"), abstract
        known = Spec.kinds.setdefault(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise SpecError(f"a part called {cls.kind!r} exists already ({known.__module__}); give yours another name")
        Spec.kinds[cls.kind] = cls

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The type of each field."""
        return _types(cls)

    def values(self) -> dict[str, Any]:
        """The value of each field, not copied."""
        # Not remembered by kind: a compiled pass asks too, and cannot look into a cache.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def but(self, **changes: Any) -> Self:
        """The same value with some fields changed."""
        unknown = set(changes) - set(self.values())
        if unknown:
            raise self.refusal(sorted(unknown)[0], f"is no field; it has {', '.join(self.values())}")
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def refusal(self, name: str, remedy: str) -> SpecError:
        """The error that says which field of which part cannot be, and what would do."""
        return SpecError(f"{self.kind}.{name} = {getattr(self, name, '?')!r} {remedy}")

    def require(self, name: str, holds: bool, remedy: str) -> None:
        """Raise that error unless a condition on the field holds."""
        if not holds:
            raise self.refusal(name, remedy)

    def nested(self) -> Iterator[Spec]:
        """This value and every value inside it, depth first, repeats included."""
        yield self
        for value in self.values().values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Spec):
                    yield from item.nested()

    @cached_property
    def key(self) -> str:
        """A short name of the value: equal values, and only they, have equal keys."""
        from anyformer.spec.codec import encode

        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:16]

    def caveats(self) -> tuple[Caveat, ...]:
        """The laws that this part waives, with the reason."""
        return ()

    def resized(self, to: Sizes) -> Self:
        """The same architecture at other sizes: each field by its type, nested values by themselves."""
        return self.but(**{name: to.field(hint, getattr(self, name)) for name, hint in self.types().items()})


class PartSpec(Spec, abstract=True):
    """A value that becomes a module. Parts of one `shared` name are equal and are one module."""

    shared: str | None = None
    module: ClassVar[Any] = None  # the nn.Module class, set where that class is defined (layers.part.Part)
    # What its parameters and its share of a pass are called, and those of all inside; None: as they say themselves.
    counted_as: ClassVar[str | None] = None
    # What its share of a pass is called where that is told apart from what it stands in; None: it is not.
    observed_as: ClassVar[str | None] = None

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        """The part's own tensors by name; None where an option leaves one out."""
        return {}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        """The parts inside it, each with its place; by default those of its fields, at the same place."""
        inside: dict[str, Placed] = {}
        for name, value in self.values().items():
            if isinstance(value, PartSpec):
                inside[name] = (value, place)
            elif isinstance(value, tuple) and value and isinstance(value[0], PartSpec):
                inside[name] = [(item, place) for item in value]
            elif value is None and name in part_fields(type(self)):
                inside[name] = None
        return inside

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The FLOPs of one forward pass, by term; by default the sum over the parts inside."""
        known: dict[tuple[int, int], Cost] = {}  # layers that are tiled are one part at one place, and asked once
        total = Cost()
        for _, part, inner_place in inside(self, place):
            key = id(part), id(inner_place)
            if key not in known:
                known[key] = part.cost(inner_place, workload)
            total += known[key]
        return total

    def build(self, place: Place) -> Any:
        """The part as an `nn.Module` with unset weights. Raises NoModuleError for a part that is only data yet."""
        if self.module is None:
            raise NoModuleError(
                f"{self.kind}: this part has no module yet, so a model with it can be counted but not built"
            )
        return self.module(self, place)


Placed = tuple[PartSpec, Place] | list[tuple[PartSpec, Place]] | None
Seen = dict[str, tuple[PartSpec, tuple[tuple[str, Weight | None], ...]]]


def inside(spec: PartSpec, place: Place) -> Iterator[tuple[str, PartSpec, Place]]:
    """(dotted name, part, place) of the parts directly inside one, absent ones left out."""
    for name, placed in spec.parts(place).items():
        if isinstance(placed, list):
            yield from ((f"{name}.{i}", part, inner_place) for i, (part, inner_place) in enumerate(placed))
        elif placed is not None:
            yield name, *placed


def tensors(spec: PartSpec, place: Place, path: str = "", seen: Seen | None = None) -> Iterator[tuple[str, Weight]]:
    """(state-dict name, Weight) of every tensor once; those of shared parts are called `shared.<name>.…`."""
    seen = {} if seen is None else seen
    if spec.shared is not None:
        path, own = f"shared.{spec.shared}", (spec, tuple(spec.weights(place).items()))
        if spec.shared in seen:
            if seen[spec.shared] != own:
                raise SpecError(f"two different {spec.kind} parts share the name {spec.shared!r}; make them equal")
            return
        seen[spec.shared] = own
    prefix = f"{path}." if path else ""
    for name, weight in spec.weights(place).items():
        if weight is not None:
            yield f"{prefix}{name}", weight
    yield from _inner(spec, place, prefix, seen)


def _inner(spec: PartSpec, place: Place, prefix: str, seen: Seen) -> Iterator[tuple[str, Weight]]:
    """The tensors of the parts inside; one that stands there again, as a tiled layer does, is asked once."""
    places = list(inside(spec, place))
    times = Counter(id(part) for _, part, _ in places)
    known: dict[tuple[int, int], list[tuple[str, Weight]]] = {}
    for name, part, inner_place in places:
        path = f"{prefix}{name}"
        if times[id(part)] == 1:
            yield from tensors(part, inner_place, path, seen)
        elif (id(part), id(inner_place)) in known:
            yield from ((f"{path}{end}", weight) for end, weight in known[id(part), id(inner_place)])
        else:
            found = list(tensors(part, inner_place, path, seen))
            yield from found
            own = ((key, weight) for key, weight in found if key.startswith(f"{path}."))  # not what is shared
            known[id(part), id(inner_place)] = [(key.removeprefix(path), weight) for key, weight in own]


@cache
def _types(kind: type[Spec]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]


@cache
def part_fields(kind: type[PartSpec]) -> tuple[str, ...]:
    """The fields of a class that may hold a part."""
    return tuple(name for name, hint in kind.types().items() if _mentions_part(hint))


def _mentions_part(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, PartSpec)
    return any(_mentions_part(inner) for inner in getattr(hint, "__args__", ()))
