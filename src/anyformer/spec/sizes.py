"""An architecture at other sizes: what becomes of each number, by its type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar, get_args

from anyformer.spec.part import Spec
from anyformer.spec.ranges import Count, Length, Vocab, Width, Window

K = TypeVar("K", bound=Spec)


class Sizes(ABC):
    """The new size for each old one. Subclasses say how; `fields` applies the rules that fields' types ask for."""

    d_model: int  # the new one of the main stack

    @abstractmethod
    def width(self, old: int) -> int:
        """The new width of a vector."""

    @abstractmethod
    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        """(n_heads, n_kv_heads, head_dim), which only make sense together."""

    def in_pairs(self) -> Sizes:
        """The same for heads that stand in pairs; by default it leaves pairs whole."""
        return self

    @abstractmethod
    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """The blocks of a stack of another depth, before their own sizes change."""

    def count(self, old: int) -> int:
        """The new number of things; by default the old one."""
        return old

    length = window = vocab = count  # the same of sequences, of distances, of the rows of a token table

    def fields(self, value: K, **known: Any) -> K:
        """A value at the new sizes: each field by its type, but for those whose new values are known, as of heads."""
        others = {name: hint for name, hint in value.types().items() if name not in known}
        return value.but(**{name: self.field(hint, getattr(value, name)) for name, hint in others.items()}, **known)

    def field(self, hint: Any, value: Any) -> Any:
        """What becomes of a field's value, given its type."""
        if isinstance(value, Spec):
            return value.resized(self)
        if isinstance(value, tuple) and value and isinstance(value[0], Spec):
            each = {id(item): item for item in value}
            resized = {name: item.resized(self) for name, item in each.items()}  # a layer that is tiled is resized once
            return tuple(resized[id(item)] for item in value)
        rule = next((_RULES[each] for each in (hint, *get_args(hint)) if each in _RULES), None)
        if rule is None or value is None:
            return value
        return tuple(map(getattr(self, rule), value)) if isinstance(value, tuple) else getattr(self, rule)(value)


_RULES: dict[Any, str] = {Width: "width", Count: "count", Length: "length", Window: "window", Vocab: "vocab"}
