"""What the classes of transformers for decoders share: where a layer keeps its parts, and rows for whole modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from anyformer.families.hf.mapping import TensorRow, fused, one, shapes
from anyformer.families.hf.settings import Settings
from anyformer.layers import ByRole, GQASpec, Normal
from anyformer.spec import ModelSpec, StackSpec


class Link(NamedTuple):
    """A module of theirs and the modules of ours, one or several in one, that hold the same weights and biases."""

    ours: tuple[str, ...]
    theirs: str
    shares: tuple[int, ...] = ()
    groups: int = 1
    turned: bool = False  # their weight is (in, out)


class Theirs(NamedTuple):
    """A module of theirs that is laid out otherwise than ours."""

    name: str
    # Its weight is (in, out).
    turned: bool = False
    # Queries, keys and values of one head, or of one key/value head, after one another.
    by_head: bool = False


# Of a layer: ours → theirs; several of ours lie side by side in theirs.
Modules = Mapping[str, str | Theirs] | Mapping[str | tuple[str, ...], str | Theirs]


def link(ours: str, theirs: str, *, turned: bool = False) -> Link:
    """The link of one module with one."""
    return Link((ours,), theirs, turned=turned)


def of_layers(stack: StackSpec, theirs: str, modules: Mapping[str, str], ours: str = "stack") -> Iterator[Link]:
    """The modules of every layer: ours within it → theirs within `theirs`.i; `ours` is the stack's name."""
    for i in range(len(stack.blocks)):
        yield from (link(f"{ours}.blocks.{i}.sublayers.{own}", f"{theirs}.{i}.{name}") for own, name in modules.items())


def decoder_links(spec: ModelSpec, layer: str, modules: Modules) -> Iterator[Link]:
    """The modules of every layer of a decoder, laid out as `Theirs` says."""
    sizes = shapes(spec)
    for i in range(spec.n_layers):
        for one_or_more, theirs in modules.items():
            each = (one_or_more,) if isinstance(one_or_more, str) else one_or_more
            ours = tuple(f"stack.blocks.{i}.sublayers.{name}" for name in each)
            name, turned, by_head = theirs if isinstance(theirs, Theirs) else Theirs(theirs)
            shares, groups = tuple(sizes[f"{module}.weight"][0] for module in ours) if len(ours) > 1 else (), 1
            if by_head:
                found = one(spec, GQASpec, "grouped-query attention")
                shares, groups = (found.n_heads // found.kv_heads, 1, 1), found.kv_heads
            yield Link(ours, f"{layer}.{i}.{name}", shares, groups, turned)


def rows_of(spec: ModelSpec, links: Iterable[Link]) -> Iterator[TensorRow]:
    """The rows of every tensor that our modules have: a weight, a bias, both or neither."""
    names = shapes(spec)
    for each in links:
        for end in ("weight", "bias"):
            ours = tuple(f"{module}.{end}" for module in each.ours)
            if ours[0] in names:
                turned = each.turned and end == "weight"
                yield fused(ours, f"{each.theirs}.{end}", shares=each.shares, groups=each.groups, turned=turned)


def table_rows(spec: ModelSpec, tokens: str, head: str, *aliases: str) -> list[TensorRow]:
    """The rows of the tokens' table and the head's, one where they are tied, and of the head's bias.

    `aliases` are what files may call the head instead.
    """
    names, shared = shapes(spec), spec.heads[0].tied
    heads = [f"{name}.weight" for name in (head, *aliases)]
    if shared:
        found = [fused((f"shared.{shared}.weight",), f"{tokens}.weight", also=tuple(heads))]
    else:
        found = [
            fused(("stack.embedding.terms.0.table.weight",), f"{tokens}.weight"),
            fused(("heads.0.table.weight",), heads[0], also=tuple(heads[1:])),
        ]
    if "heads.0.bias" in names:
        found.append(fused(("heads.0.bias",), f"{head}.bias", also=tuple(f"{name}.bias" for name in aliases)))
    return found


def tied(spec: ModelSpec) -> bool:
    """Whether the first head's table is shared."""
    return bool(spec.heads and spec.heads[0].tied)


def starts(settings: Settings, name: str = "initializer_range") -> ByRole:
    """One normal distribution for all matrices and tables, its deviation a setting."""
    deviation = Normal(scale=settings.take(name, float, 0.02))
    return ByRole(table=deviation, matrix=deviation)


def deviation(spec: ModelSpec) -> float:
    """The standard deviation that matrices start with; 0.02 where it depends on more than a number."""
    matrix = spec.init.matrix if isinstance(spec.init, ByRole) else None
    return matrix.scale if isinstance(matrix, Normal) and not matrix.fan_in_power else 0.02
