"""What every piece of a specification is: an immutable, hashable value, which can be had at other sizes; and, if it becomes
a module, what it must tell."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from importlib import import_module
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_type_hints, overload

from anyformer.errors import NoModuleError, SpecError, did_you_mean
from anyformer.spec.cost import Cost, Workload
from anyformer.spec.ranges import Refuse, filled, refuse

if TYPE_CHECKING:
    from anyformer.spec.sizes import Sizes

LARGEST = 2**48  # numbers of one tensor: its bytes, and those of many, are exact
MOST_VALUES = 2**18  # inside each other, layers that are alike each counted
MOST_DISTINCT = 2**13  # each counted once


def is_tracing() -> bool:
    """Whether a compiler reads what runs, where values were held to their ranges before: `layers` puts torch's answer here."""
    return False


K = TypeVar("K", bound="Spec")
Role = Literal["matrix", "query", "inner", "output", "table", "bias", "gain"]


@dataclass(frozen=True)
class Weight:
    """One tensor of a part: what counting, initialisation, sharding and checkpoint rows go by."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]  # a name for each axis: "vocab", "d_model", "heads", "d_ff" …
    # "output": a matrix that writes to the residual stream; "inner": one that what it writes grows with;
    # "query": one that makes attention's queries
    role: Role = "matrix"
    # the constant it starts from, or one for each place of the last axis; None: drawn from the distribution of its role
    fill: float | tuple[float, ...] | None = None
    std: float | None = None  # of the normal distribution that it is drawn from, whatever its role's; None: its role's
    trainable: bool = True
    plain: bool = True  # whether it is read of tokens of one segment, none of which is marked
    # what it holds are whole numbers from 0 to below this, no two alike along the last axis, that nothing trains; None: any
    below: int | None = None
    used: int | None = None  # of the first axis, by one token (experts); None: all
    # What it is where weights are held in few bits: "map", matrices that vectors are multiplied by; "table", rows that are
    # looked up or that logits are of. None: it stays as it is.
    quantises_as: Literal["map", "table"] | None = None

    def __post_init__(self) -> None:
        if min(self.shape, default=1) < 1 or self.numel > LARGEST:
            sizes = " × ".join(f"{name} {n:,}" for name, n in zip(self.axes, self.shape, strict=False))
            raise SpecError(
                f"a {self.role} of {sizes} cannot be: sizes are above 0, and a tensor holds {LARGEST:,} at most"
            )

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def active(self) -> int:
        """How many of them one token uses."""
        return self.numel if self.used is None else self.numel // self.shape[0] * self.used


@dataclass(frozen=True)
class Place:
    """What a part is told about the place where it stands."""

    d_model: int = 0  # width of the residual stream
    shape: tuple[int, ...] = ()  # of the vectors it maps; statistics and projections run over the last axis
    d_source: int = 0  # width of the stream that cross-attention reads
    modules: Any = field(default_factory=dict, compare=False, repr=False)  # by name, the shared ones built so far
    heads: tuple[int, int] | None = None  # (the first, of how many) where a process has some of a layer's; None: all
    n_streams: int = 1  # side by side in what it reads: all of a stack's, or the one that most parts see
    n_sublayers: int = 0  # of the layer, told to what connects them to the streams
    n_maps: int = 0  # of attention's weights in the whole stack, told to heads that read them
    d_outer: int = 0  # width of the stream around the bottleneck that it stands in; 0: there is none
    every: int = 1  # tokens of the text, of which it is given one vector

    def at(self, *shape: int) -> Place:
        """The same place for vectors of another shape."""
        return dataclasses.replace(self, shape=shape)


@dataclass(frozen=True)
class Caveat:
    """A law that a part cannot obey by its nature, and why."""

    law: str
    reason: str


def usual(kind: str) -> Any:
    """The default of a field whose kinds stand in other rooms: the part of this name, as it comes."""
    return field(default_factory=lambda: Spec.kinds_with(kind)[kind]())


def is_needed(field: dataclasses.Field[Any]) -> bool:
    """Whether a field must be given."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Spec:
    """An immutable, hashable value of the specification language; a subclass lists its fields, nothing else."""

    kinds: ClassVar[dict[str, type[Spec]]] = {}
    kind: ClassVar[str] = "Spec"
    abstract: ClassVar[bool] = True
    _names: ClassVar[tuple[str, ...]] = ()  # of its fields
    _sizes: ClassVar[tuple[int, int]] = (1, 1)  # of each value: how many it and those inside are; how many differ

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if "__post_init__" in cls.__dict__:
            cls.__post_init__ = _in_range(cls.__post_init__)  # pyright: ignore[reportAttributeAccessIssue]
        dataclass(frozen=True, kw_only=True)(cls)
        cls._names = tuple(each.name for each in dataclasses.fields(cls))  # type: ignore[arg-type]
        cls.kind, cls.abstract = cls.__name__.removesuffix("Spec"), abstract
        known = Spec.kinds.setdefault(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise SpecError(f"a part called {cls.kind!r} exists already ({known.__module__}); give yours another name")
        Spec.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        """Hold each field to the range of its type. Subclasses' own come after it, and need not call it."""
        if "_sizes" not in self.__dict__ and not is_tracing():
            self._hold(self._names)

    def _hold(self, names: Iterable[str]) -> None:
        """Hold these fields to the ranges of their types, and what is inside to how much that may be."""
        ranges = self._ranges()
        for name in names:
            if said := ranges[name](getattr(self, name)):
                raise self.refusal(name, said)
        inside = held(self)
        size = 1 + sum([value._sizes[0] for value in inside])
        distinct = 1 + sum({id(value): value._sizes[1] for value in inside}.values())
        if size > MOST_VALUES or distinct > MOST_DISTINCT:
            said = f"{MOST_VALUES:,}, and {MOST_DISTINCT:,} different ones, are the most"
            raise SpecError(f"{self.kind} holds {size:,} values, {distinct:,} of them different; {said}")
        self.__dict__["_sizes"] = size, distinct

    @classmethod
    @cache
    def _hints(cls) -> dict[str, Any]:
        """The type of each field, with its range."""
        inherited = [base._hints() for base in reversed(cls.__bases__) if issubclass(base, Spec)]
        return reduce(operator.or_, (*inherited, get_annotations(cls, eval_str=True)))

    @classmethod
    @cache
    def _ranges(cls) -> dict[str, Refuse]:
        """What refuses a value of each field, by its type; a list that must be given is not empty."""
        needed = {each.name for each in dataclasses.fields(cls) if is_needed(each)}  # type: ignore[arg-type]
        refusals = {name: refuse(cls._hints()[name]) for name in cls._names}
        return {name: filled(each) if name in needed else each for name, each in refusals.items()}

    @classmethod
    @cache
    def types(cls) -> dict[str, Any]:
        """The type of each field."""
        return {name: hint for name, hint in get_type_hints(cls).items() if name in cls._names}

    @staticmethod
    def kinds_with(name: object) -> Mapping[str, type[Spec]]:
        """All kinds by name; the layers are read in for a name that is none so far."""
        if not isinstance(name, str) or name not in Spec.kinds:
            import_module("anyformer.layers")
        return Spec.kinds

    def values(self) -> dict[str, Any]:
        """The value of each field, not copied."""
        return {name: getattr(self, name) for name in self._names}

    def but(self, **changes: Any) -> Self:
        """The same value with some fields changed; itself, where they are what they were."""
        if is_tracing():
            return dataclasses.replace(self, **changes)  # type: ignore[type-var]
        if unknown := changes.keys() - self._ranges().keys():
            from anyformer.spec.within import stands

            name = min(unknown)
            told = f"{did_you_mean(name, self._names)}; it has {', '.join(self._names)}{stands(self, name)}"
            raise SpecError(f"{self.kind} has no field {name!r}{told}")
        new = {name: value for name, value in changes.items() if not _same(value, getattr(self, name))}
        if not new:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.values() | new)
        made._hold(new)  # the others were held before
        made.__post_init__()
        return made

    def refusal(self, name: str, remedy: str) -> SpecError:
        """The error that says which field of which part cannot be, and what would do."""
        value = getattr(self, name, "?")
        said = value.kind if isinstance(value, Spec) else repr(value)
        if isinstance(value, tuple) and any(isinstance(each, Spec) for each in value):
            said = f"[{', '.join(getattr(each, 'kind', repr(each)) for each in value[:10])}{', …' if len(value) > 10 else ''}]"
        elif isinstance(value, tuple) and len(value) > 100:
            said = f"{len(value):,} values"
        return SpecError(f"{self.kind}.{name} = {said} {remedy}")

    def divided(self, name: str, ranks: int) -> Any:
        """A field's number divided by the ranks that share it. Raises SpecError where they don't divide it."""
        number = getattr(self, name)
        self.require(name, number % ranks == 0, f"is no multiple of tp = {ranks}; take a tp that divides it")
        return number // ranks

    def require(self, name: str, holds: bool, remedy: str) -> None:
        """Raise that error unless a condition on the field holds."""
        if not holds:
            raise self.refusal(name, remedy)

    @overload
    def nested(self) -> Iterator[Spec]: ...
    @overload
    def nested(self, *kinds: type[K]) -> Iterator[K]: ...
    def nested(self, *kinds: type[Any]) -> Iterator[Any]:
        """This value and every value inside it, or those of some kinds, depth first; a layer that is tiled is met once."""
        left: list[Spec] = [self]
        while left:
            value = left.pop()
            if isinstance(value, kinds or Spec):
                yield value
            left += reversed({id(inner): inner for inner in held(value)}.values())

    @cached_property
    def kinds_inside(self) -> frozenset[type[Spec]]:
        """The kinds of this value and of every value inside it."""
        return frozenset([type(self)]).union(*{id(value): value.kinds_inside for value in held(self)}.values())

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
        return to.fields(self)


def _same(a: Any, b: Any) -> bool:
    """Whether two are one object, or lists of the same objects."""
    return a is b or (type(a) is type(b) is tuple and len(a) == len(b) and all(map(operator.is_, a, b)))


@cache
def nesting(kind: type[Spec]) -> tuple[str, ...]:
    """The fields of a kind that may hold values, by their types."""
    return tuple(name for name in kind._names if _mentions(Spec, kind._hints()[name]))


def held(value: Spec) -> list[Spec]:
    """The values directly inside one; a layer that is tiled each time."""
    found: list[Spec] = []
    for name in nesting(type(value)):
        inner = getattr(value, name)
        if isinstance(inner, Spec):
            found.append(inner)
        elif isinstance(inner, tuple) and inner and isinstance(inner[0], Spec):
            found += inner
    return found


def _in_range(own: Callable[[Any], None]) -> Callable[[Any], None]:
    def checked(self: Spec) -> None:
        Spec.__post_init__(self)
        own(self)

    return checked


class PartSpec(Spec, abstract=True):
    """A value that becomes a module. Parts of one `shared` name are equal and are one module."""

    shared: str | None = None
    module: ClassVar[Any] = None  # the nn.Module class, set where that class is defined (layers.part.Part)
    # What its parameters and its share of a pass are called, and those of all inside; None: as they say themselves.
    counted_as: ClassVar[str | None] = None
    # What its share of a pass is called where that is told apart from what it stands in; None: it is not.
    observed_as: ClassVar[str | None] = None
    flops_as: ClassVar[str | None] = None  # the one term that the FLOPs of all inside are; None: as they say themselves

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
            elif value is None and _mentions(PartSpec, self._hints()[name]):
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
        return total if self.flops_as is None else total.named(self.flops_as)

    def build(self, place: Place) -> Any:
        """The part as an `nn.Module` with unset weights. Raises NoModuleError for a part that is only data yet."""
        if self.module is None:
            raise NoModuleError(
                f"{self.kind}: this part has no module yet, so a model with it can be counted but not built"
            )
        return self.module(self, place)


Placed = tuple[PartSpec, Place] | list[tuple[PartSpec, Place]] | None
Seen = dict[str, tuple[PartSpec, tuple[tuple[str, Weight | None], ...], str]]


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
    own = tuple(spec.weights(place).items())
    if is_met(spec, own, seen, path):
        return
    path = path if spec.shared is None else f"shared.{spec.shared}"
    prefix = f"{path}." if path else ""
    for name, weight in own:
        if weight is not None:
            yield f"{prefix}{name}", weight
    yield from _inner(spec, place, prefix, seen)


def is_met(spec: PartSpec, own: tuple[tuple[str, Weight | None], ...], seen: Seen, path: str) -> bool:
    """Whether a shared part was seen before; it is from now on, at `path`. Raises SpecError where another has its name."""
    if spec.shared is None:
        return False
    if spec.shared not in seen:
        seen[spec.shared] = (spec, own, path)
        return False
    known, its, there = seen[spec.shared]
    if (known, its) != (spec, own):
        from anyformer.spec.difference import unlike

        raise unlike(known, spec, there, path)
    return True


def _inner(spec: PartSpec, place: Place, prefix: str, seen: Seen) -> Iterator[tuple[str, Weight]]:
    """The tensors of the parts inside; one that stands there again, as a tiled layer does, is asked once."""
    known: dict[tuple[int, int], list[tuple[str, Weight]]] = {}
    for name, part, inner_place in inside(spec, place):
        path = f"{prefix}{name}"
        if (id(part), id(inner_place)) in known:
            yield from ((f"{path}{end}", weight) for end, weight in known[id(part), id(inner_place)])
        else:
            found = list(tensors(part, inner_place, path, seen))
            yield from found
            own = ((key, weight) for key, weight in found if key.startswith(f"{path}."))  # not what is shared
            known[id(part), id(inner_place)] = [(key.removeprefix(path), weight) for key, weight in own]


@cache
def _mentions(kind: type, hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, kind)
    return any(_mentions(kind, inner) for inner in getattr(hint, "__args__", ()))
