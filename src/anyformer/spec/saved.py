"""What a forward pass leaves for the backward pass: each part says which tensors it keeps, as it says what it costs.

A tensor here is a size without numbers. Two parts that keep the same tensor keep it once, as autograd does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from anyformer.spec.cost import Workload

if TYPE_CHECKING:
    from anyformer.spec.part import PartSpec, Placed

Number = Literal["float32", "bfloat16", "int64", "bool"]
NBYTES: Mapping[Number, int] = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}
T = TypeVar("T")
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a pass; `whole` is the tensor whose memory it is a view of."""

    numel: int
    number: Number = "float32"
    whole: Value | None = None
    by_head: bool = False  # of heads, laid out [head, token] in memory: side by side again, it is a copy

    @property
    def memory(self) -> Value:
        """What is held when this is held."""
        return self if self.whole is None else self.whole.memory

    @property
    def nbytes(self) -> int:
        """Of the memory that is held when this is."""
        held = self.memory
        return held.numel * NBYTES[held.number]


@dataclass
class Tape:
    """One training pass in sizes. `saved` and `passing` are bytes by term; `passing` holds what is only there for a while."""

    workload: Workload
    half: bool  # products in bf16 by autocast, all else as it comes
    kernels: Any  # an attention's spec → its kernel, which says what it keeps
    # a GPU's fused operators; without, as on CPUs, dropout keeps factors and some attention is written out
    fused: bool = True
    rates: frozenset[str] = frozenset()  # names of the rates of dropout that are not 0
    recompute: Recompute = "none"
    saved: dict[str, int] = field(default_factory=dict)
    passing: dict[str, int] = field(default_factory=dict)
    residual: Any = None  # the stack's, while its blocks are traced
    memory: Value | None = None  # the encoder's output
    input: Value | None = None  # the embedding's output
    states: list[Value] = field(default_factory=list)  # of the stack traced last: the stream before each layer
    _seen: set[Value] = field(default_factory=set)
    _names: dict[str, Any] = field(default_factory=dict)  # what layers share within a pass; a pass's `memo`
    _path: str = ""
    _term: str = ""
    _again: dict[Value, int] | None = None  # what is kept inside a part that is computed again

    def value(self, numel: int, like: Value | Number = "float32") -> Value:
        """Return a new tensor."""
        return Value(numel, like if isinstance(like, str) else like.number)

    def keep(self, *values: Value | None) -> None:
        """Write down tensors that stay until the backward pass."""
        for value in values:
            if value is None or value.memory in self._seen:
                continue
            held = value.memory
            if self._again is not None:
                self._again[held] = held.nbytes
            else:
                self._seen.add(held)
                self.saved[self._term] = self.saved.get(self._term, 0) + held.nbytes

    def product(self, x: Value) -> Value:
        """Return x as a matrix product takes it, kept: by autocast a copy in bf16, a new one for each product."""
        x = Value(x.numel, "bfloat16") if self.half and x.number == "float32" else x
        self.keep(x)
        return x

    def exact(self, x: Value) -> Value:
        """Return x in float32."""
        return x if x.number == "float32" else Value(x.numel)

    def weights(self, numel: int, name: str = "weight", *, kept: bool = True) -> None:
        """Write down the copy in bf16 that autocast makes of a weight, once a pass; if nobody keeps it, till the pass ends."""
        key = f"{self._path}.{name}"
        if self.half and key not in self._names:
            self._names[key] = None
            into = self.saved if kept and self._again is None else self.passing
            into["weights in bf16"] = into.get("weights in bf16", 0) + NBYTES["bfloat16"] * numel

    def once(self, name: str | None, make: Callable[[], T]) -> T:
        """What `make` gave for the name, which layers share; without a name it is made anew."""
        if name is None:
            return make()
        if name not in self._names:
            self._names[name] = make()
        return self._names[name]

    def dropped(self, x: Value, rate: str) -> Value:
        """Return x after dropout, if that rate is not 0."""
        if rate not in self.rates:
            return x
        self.keep(Value(x.numel, "bool" if self.fused else x.number))
        return Value(x.numel, x.number)

    def run(self, name: str, placed: Placed, x: Value) -> Value:
        """What a part, or parts one after the other, make of x."""
        if placed is None:
            return x
        if isinstance(placed, list):
            for i, each in enumerate(placed):
                x = self.run(f"{name}.{i}", each, x)
            return x
        part, place = placed
        with self.at(name, part):
            return part.trace(place, x, self)

    @contextmanager
    def at(self, name: str, part: PartSpec) -> Iterator[None]:
        """Weights are called by the path of parts, those of a shared part by its name."""
        before, self._path = self._path, f"shared.{part.shared}" if part.shared else f"{self._path}.{name}"
        yield
        self._path = before

    @contextmanager
    def term(self, name: str) -> Iterator[None]:
        """What is kept inside is counted under this name."""
        before, self._term = self._term, name
        yield
        self._term = before

    @contextmanager
    def again(self, *inputs: Value | None) -> Iterator[None]:
        """What is inside is computed again in the backward pass: its inputs are kept, and nothing of what it makes."""
        if self._again is not None:
            yield
            return
        self.keep(*inputs)
        self._again = {}
        yield
        rebuilt, self._again = sum(self._again.values()), None
        self.passing["recomputed"] = max(rebuilt, self.passing.get("recomputed", 0))
