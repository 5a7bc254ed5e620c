"""What a card says of the norms of a layer: where they stand, what else is there, what runs in parallel."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.descriptions import words
from anyformer.descriptions.card.row import joined
from anyformer.layers import NormSpec
from anyformer.spec import BlockSpec, MapSpec, SublayerSpec


def arrangement(sublayer: SublayerSpec) -> str | None:
    """Whether branches follow each other or stand side by side, and on what norms."""
    n = len(sublayer.branches)
    norms = "one norm" if sublayer.norm_in else "a norm each" if sublayer.branches[0].norm_in else "no norm"
    return "serial" if n == 1 else f"{n} branches in parallel, {norms}"


def _maps(sublayer: SublayerSpec) -> Iterator[tuple[str, MapSpec | None]]:
    yield from (("in", sublayer.norm_in), ("sum", sublayer.norm_sum))
    for branch in sublayer.branches:
        yield from (("in", branch.norm_in), ("out", branch.norm_out))


def norms(block: BlockSpec) -> list[NormSpec]:
    """The norms between the mixers of a layer."""
    return [m for s in block.sublayers for _, m in _maps(s) if isinstance(m, NormSpec)]


def eps(norm: NormSpec) -> float | None:
    """What is added before dividing."""
    return getattr(norm, "eps", None)


def placement(sublayer: SublayerSpec) -> str:
    """Where the norms stand."""
    where = {place for place, value in _maps(sublayer) if isinstance(value, NormSpec)}
    return {
        frozenset(): "no norm",
        frozenset({"in"}): "pre-norm",
        frozenset({"sum"}): "post-norm",
        frozenset({"out"}): "on each branch's output",
        frozenset({"in", "out"}): "sandwich: before and after each branch",
        frozenset({"in", "sum"}): "pre- and post-norm",
    }.get(frozenset(where), ", ".join(sorted(where)))


def other_maps(sublayer: SublayerSpec) -> str | None:
    """What else than norms stands there: the gains of ReZero, a shift."""
    place = {"in": "before", "out": "after a branch", "sum": "after the sum"}
    others = ((p, v) for p, v in _maps(sublayer) if v is not None and not isinstance(v, NormSpec))
    return joined(f"{words.part(v)} {place[p]}" for p, v in others)
