"""How sizes change when an architecture is made larger or smaller: one rule for each type of field."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import UnionType
from typing import Any, Union, get_args, get_origin

from anyformer.spec.part import Count, Length, Spec, Vocab, Width, Window


class Sizes(ABC):
    """The new size for each old one. Subclasses say how; `field` applies the rule that a field's type asks for."""

    d_model: int  # the new one of the main stack

    @abstractmethod
    def width(self, old: int) -> int:
        """The new width of a vector."""

    @abstractmethod
    def heads(self, n_heads: int, n_kv_heads: int, head_dim: int | None) -> tuple[int, int, int | None]:
        """(n_heads, n_kv_heads, head_dim), which only make sense together."""

    @abstractmethod
    def layers(self, blocks: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """The blocks of a stack of another depth, before their own sizes change."""

    def count(self, old: int) -> int:
        """The new number of things; by default the old one."""
        return old

    def length(self, old: int) -> int:
        """The new length of sequences; by default the old one."""
        return old

    def window(self, old: int) -> int:
        """The new distance; by default the old one."""
        return old

    def vocab(self, old: int) -> int:
        """The new number of rows of a token table; by default the old one."""
        return old

    def field(self, hint: Any, value: Any) -> Any:
        """What becomes of a field's value, given its type."""
        if isinstance(value, Spec):
            return value.resized(self)
        if value is None:
            return None
        if get_origin(hint) in (Union, UnionType):
            return next((self.field(h, value) for h in get_args(hint) if h in _RULES), value)
        if isinstance(value, tuple) and value and isinstance(value[0], Spec):
            each = {id(item): item for item in value}
            resized = {name: item.resized(self) for name, item in each.items()}  # a layer that is tiled is resized once
            return tuple(resized[id(item)] for item in value)
        rule = _RULES.get(hint)
        return getattr(self, rule)(value) if rule else value


_RULES: dict[Any, str] = {Width: "width", Count: "count", Length: "length", Window: "window", Vocab: "vocab"}
