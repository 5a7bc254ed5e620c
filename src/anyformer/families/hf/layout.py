"""What the classes of transformers share: which modules of theirs hold the weights of which of ours, and the rows of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import torch

from anyformer.families.hf.mapping import TensorRow, fused, reshaped, shapes
from anyformer.layers import GQASpec, MLASpec
from anyformer.spec import ModelSpec, StackSpec


class Theirs(NamedTuple):
    """A module of theirs that is laid out otherwise than ours."""

    name: str
    # Its matrices are (in, out).
    turned: bool = False
    # What takes turns in it: one head's queries, keys and values (those of one key/value head), what one head of queries has of
    # each, one feature of each, or a share of so many groups; or ours lie side by side in what they read; or experts are one
    # below the other in one matrix, each `turned` or not; or ours is its only row; or theirs has ours in this shape.
    by: Literal["head", "query", "feature", "input", "expert", "row"] | int | tuple[int, ...] | None = None
    # What files may call it too: duplicates of a tied table.
    also: tuple[str, ...] = ()
    # What a "*" of its name stands for: ours is these, one below the other.
    pieces: tuple[str, ...] = ()


# Modules, ours → theirs, or tensors that are no module's weight or bias; several of ours lie side by side in theirs. A "*" is
# the number of an expert: theirs has a module for each, ours one for all.
Modules = Mapping[str, str | Theirs] | Mapping[str | tuple[str, ...], str | Theirs]
Laid = dict[str | tuple[str, ...], Theirs]  # modules by their whole names
ENDS = {"weight": "weight", "bias": "bias", "correction": "e_score_correction_bias"}


def within(modules: Modules, ours: str = "", theirs: str = "") -> Laid:
    """The modules with what both sides' names begin with."""
    found: Laid = {}
    for own, place in modules.items():
        place = place if isinstance(place, Theirs) else Theirs(place)
        whole = ours + own if isinstance(own, str) else tuple(ours + each for each in own)
        found[whole] = place._replace(name=theirs + place.name, also=tuple(theirs + name for name in place.also))
    return found


def moved(modules: Modules, to: Callable[[str], str]) -> Laid:
    """The modules, ours by what `to` makes of their names."""
    return {to(own) if isinstance(own, str) else tuple(map(to, own)): place for own, place in within(modules).items()}


def gated(ours: str, theirs: str) -> dict[str, str]:
    """The modules of a gated feed-forward by their usual names."""
    return {f"{ours}.{x}": f"{theirs}.{x}_proj" for x in ("gate", "up", "down")}


def of_layers(stack: StackSpec, theirs: str, modules: Modules, ours: str = "stack") -> Laid:
    """The modules of every layer: ours within it → theirs within `theirs`.i; `ours` is the stack's name."""
    each = (within(modules, f"{ours}.blocks.{i}.sublayers.", f"{theirs}.{i}.") for i in range(len(stack.blocks)))
    return {own: place for layer in each for own, place in layer.items()}


def rows_of(spec: ModelSpec, modules: Modules) -> Iterator[TensorRow]:
    """The rows of every tensor that our modules have: a weight, a bias, both or neither.

    What lies side by side in theirs may be without a module that the layer lacks.
    """
    sizes = shapes(spec)
    held = {name for tensor in sizes for name in (tensor, tensor.rpartition(".")[0])}
    for own, place in within(modules).items():
        each = (own,) if isinstance(own, str) else tuple(name for name in own if name in held)
        if not each:
            continue
        if each[0] in sizes:
            yield _row(spec, sizes, each, place)
        for end, their_end in ENDS.items():
            ours = tuple(f"{module}.{end}" for module in each)
            if ours[0] in sizes:
                name, *also = (f"{module}.{their_end}" for module in (place.name, *place.also))
                turned = place.turned and end == "weight"
                yield _row(spec, sizes, ours, Theirs(name, turned, place.by, tuple(also), place.pieces))


def _row(spec: ModelSpec, sizes: Mapping[str, tuple[int, ...]], ours: tuple[str, ...], place: Theirs) -> TensorRow:
    name, turned, by, also, pieces = place
    shape = sizes[ours[0]]
    if pieces:
        each = tuple(name.replace("*", piece) for piece in pieces)
        return TensorRow(ours, each, lambda each: (torch.cat(each),), lambda one: one[0].chunk(len(pieces)))
    if "*" in name:
        each = tuple(name.replace("*", str(i)) for i in range(shape[0]))
        return TensorRow(ours, each, lambda each: (torch.stack(each),), lambda stack: stack[0].unbind(0))
    if by == "row":
        return reshaped(ours[0], name, lambda rows: rows[0], lambda one: one[None])
    if by == "expert":

        def turn(each: torch.Tensor) -> torch.Tensor:
            return each.transpose(-1, -2) if turned else each

        return reshaped(
            ours[0], name, lambda rows: turn(rows.unflatten(0, (shape[0], -1))), lambda each: turn(each).flatten(0, 1)
        )
    if isinstance(by, tuple):
        return reshaped(ours[0], name, lambda one: one.reshape(shape), lambda ours: ours.reshape(by))
    dim = max(len(shape) - (1 if ours[0].endswith(".bias") else 2), 0)
    groups = 1
    match by:
        case "head" | "query":
            heads = next(spec.nested(GQASpec, MLASpec))
            groups = heads.kv_heads if by == "head" and isinstance(heads, GQASpec) else heads.n_heads
        case "feature":
            groups = shape[dim]
        case int():
            groups = by
        case "input":
            dim += 1
        case _:
            pass
    shares = tuple(sizes[name][dim] // groups for name in ours) if len(ours) > 1 else ()
    return fused(ours, name, shares=shares, groups=groups, dim=dim, turned=turned, also=also)


def tokens_and_head(spec: ModelSpec, tokens: Theirs, head: Theirs) -> Laid:
    """The tokens' table and the head's, one where they are tied, and the head itself."""
    tied = spec.heads[0].tied
    if tied:
        return {f"shared.{tied}": tokens._replace(also=(*tokens.also, head.name, *head.also)), "heads.0": head}
    return {"stack.embedding.terms.0.table": tokens, "heads.0.table": head, "heads.0": head}
