"""Where two architectures part, as a reader of papers would say it, and what each difference costs by itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from operator import sub
from typing import Any, Literal

import torch

from anyformer.cache import cache_kinds
from anyformer.costs.report import lengths_of
from anyformer.descriptions.diff.rows import ROWS
from anyformer.descriptions.grouping import stretches
from anyformer.errors import SpecError, errors_of
from anyformer.families import as_preset
from anyformer.notebook import ShowsItself
from anyformer.screen import printed
from anyformer.spec import Architecture, ModelSpec, Place, Workload, parameters, specification, tensors
from anyformer.spec.difference import differences, short
from anyformer.variants.rows import BY_PART

Shape = tuple[int, ...]
LAYER = re.compile(r"\bblocks\.(\d+)\.")
TOKENIZATION = "tokenization"
LONGEST = 2048  # tokens, where neither model has a context


@dataclass(frozen=True)
class Measure:
    """What one architecture costs, at one length of text."""

    parameters: int
    active: int  # that one token uses
    flops_per_token: float  # forward, the pairs that the masks show, averaged over the text
    cache_nbytes_per_token: float  # bfloat16, averaged over the text

    def __sub__(self, other: Measure) -> Measure:
        return Measure(*map(sub, astuple(self), astuple(other)))


@dataclass(frozen=True)
class DiffRow:
    """One part of every architecture, in words."""

    part: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Effect:
    """What one difference does by itself: that one thing changed, all else as it was."""

    measured_in: Literal["a", "b"]  # which of the two was changed; in b, its own part was put back to a's
    change: Measure  # from a's part to b's
    added: int  # keys of the state dict
    removed: int
    reshaped: int


@dataclass(frozen=True)
class KeyChange:
    """Tensors of one name but for the number of the layer, that differ in one way."""

    key: str  # stack.blocks.{i}.…
    layers: str  # "0–31"; empty for a tensor outside the layers
    count: int
    before: Shape | None  # None: added
    after: Shape | None  # None: removed

    @property
    def change(self) -> str:
        return "added" if self.before is None else "removed" if self.after is None else "reshaped"


@dataclass(frozen=True)
class SpecComparison(ShowsItself):
    """Several architectures side by side."""

    names: tuple[str, ...]
    seq_len: int  # tokens that FLOPs and cache are for
    rows: tuple[DiffRow, ...]  # all of them, equal ones too
    totals: tuple[Measure, ...]  # one an architecture

    @property
    def equal(self) -> bool:
        return not any(row.differs for row in self.rows)

    def __str__(self) -> str:
        from anyformer.descriptions.diff.shown import shown

        return printed(*shown(self))

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "differs": row.differs} for row in self.rows]
        return {"version": 1, **asdict(self), "rows": rows, "equal": self.equal}


@dataclass(frozen=True)
class Diff(SpecComparison):
    """Two architectures, with what each difference does. The effects of parts needn't add up to the whole."""

    effects: Mapping[str, Effect | None]  # by part that differs; None: it cannot be changed by itself in either
    keys: tuple[KeyChange, ...]  # of the state dict, from the first to the second

    @property
    def change(self) -> Measure:
        """All differences together."""
        return self.totals[1] - self.totals[0]

    def as_json(self) -> dict[str, Any]:
        keys = [{**asdict(key), "change": key.change} for key in self.keys]
        effects = {part: effect and asdict(effect) for part, effect in self.effects.items()}
        return {**super().as_json(), "effects": effects, "together": asdict(self.change), "keys": keys}


def side_by_side(
    *architectures: Architecture, seq_len: int | None = None, names: tuple[str, ...] | None = None
) -> SpecComparison:
    """The rows of several architectures, and what each costs.

    `seq_len` defaults to the shortest context. Raises SpecError for fewer than two, and for one without as many positions or
    without a name where names are given.
    """
    return _compared(architectures, seq_len, names)[0]


def _compared(
    architectures: Sequence[Architecture], seq_len: int | None, names: tuple[str, ...] | None
) -> tuple[SpecComparison, list[Measured]]:
    if len(architectures) < 2:
        raise SpecError("a difference takes two architectures or more")
    architectures = [as_preset(architecture) for architecture in architectures]
    specs = [specification(architecture) for architecture in architectures]
    named = names or tuple(
        x if isinstance(x, str) else getattr(x, "name", chr(ord("a") + i)) for i, x in enumerate(architectures)
    )
    if len(named) != len(specs):
        raise SpecError(f"{len(named)} names are given for {len(specs)} architectures; name each, or none")
    length = min((spec.context for spec in specs if spec.context), default=LONGEST) if seq_len is None else seq_len
    for name, spec in zip(named, specs, strict=True):
        with errors_of(name):
            lengths_of(spec, length, None)
    measured = [_measured(spec, length) for spec in specs]
    return SpecComparison(named, length, rows_of(*architectures), tuple(measure for measure, _ in measured)), measured


def diff(a: Architecture, b: Architecture, *, seq_len: int | None = None, names: tuple[str, str] | None = None) -> Diff:
    """How b differs from a, part by part, and what each difference does to parameters, FLOPs, cache and keys.

    A part's effect is measured by changing it alone in a; where a has no place for it, by putting a's into b. FLOPs and cache
    are of texts of `seq_len` tokens, by default the shorter context.
    """
    both, measured = _compared((a, b), seq_len, names)
    first, second = specification(a), specification(b)
    base = dict(zip("ab", measured, strict=True))
    effects = {
        row.part: _effect(row.part, first, second, base, both.seq_len)
        for row in both.rows
        if row.differs and row.part != TOKENIZATION
    }
    keys = key_changes(base["a"][1], base["b"][1])
    return Diff(both.names, both.seq_len, both.rows, both.totals, effects=effects, keys=keys)


Measured = tuple[Measure, dict[str, Shape]]


def rows_of(*architectures: Architecture) -> tuple[DiffRow, ...]:
    """Every part of these architectures in words, equal ones too."""
    specs = [specification(architecture) for architecture in architectures]
    rows = [DiffRow(part, tuple(read(spec) for spec in specs)) for part, read in ROWS.items()]
    told = tuple(getattr(architecture, "tokenizer", "") for architecture in architectures)
    rows = [DiffRow(TOKENIZATION, told), *rows] if all(told) else rows
    if not any(row.differs for row in rows[-len(ROWS) :]) and any(spec != specs[0] for spec in specs):
        rows.append(DiffRow("fields", tuple(_fields(spec, specs) for spec in specs)))
    return tuple(rows)


def _fields(spec: ModelSpec, specs: list[ModelSpec]) -> str:
    """The values of fields that no row tells, where they are all that differs."""
    other = next(x for x in specs if x != spec)
    found = list(differences(spec, other))
    said = [f"{path} = {short(ours)}" for path, ours, _ in found[:3]]
    return ", ".join([*said, *([f"{len(found) - 3} more"] if len(found) > 3 else [])])


def _effect(part: str, a: ModelSpec, b: ModelSpec, base: Mapping[str, Measured], seq_len: int) -> Effect | None:
    if part not in BY_PART:
        return None
    sides: tuple[tuple[Literal["a", "b"], ModelSpec, ModelSpec], ...] = (("a", a, b), ("b", b, a))
    for side, ours, theirs in sides:
        try:
            model = BY_PART[part].change(ours, theirs)
            if ROWS[part](model) == ROWS[part](ours):
                continue  # nothing of it could be changed
            changed = _measured(model, seq_len)
        except SpecError:
            continue  # the other way round, or not at all
        before, after = (base["a"], changed) if side == "a" else (changed, base["b"])
        count: Counter[str] = Counter()
        for key in key_changes(before[1], after[1]):
            count[key.change] += key.count
        return Effect(side, after[0] - before[0], count["added"], count["removed"], count["reshaped"])
    return None


def _measured(spec: ModelSpec, seq_len: int) -> Measured:
    weights, workload = dict(tensors(spec, Place())), Workload(query=seq_len, memory=seq_len if spec.encoder else 0)
    count, flops = parameters(spec), spec.cost(Place(), workload).flops / seq_len
    cache = cache_kinds(spec, batch=1, seq_len=seq_len, source_len=seq_len, dtype=torch.bfloat16)
    measure = Measure(count.total, count.active, flops, sum(kind.nbytes for kind in cache) / seq_len)
    return measure, {key: weight.shape for key, weight in weights.items()}


def key_changes(a: Mapping[str, Shape], b: Mapping[str, Shape]) -> tuple[KeyChange, ...]:
    """What differs, in the order of the first's keys and then of the second's."""
    groups: dict[tuple[str, Shape | None, Shape | None], list[int]] = {}
    for key in dict.fromkeys((*a, *b)):
        before, after = a.get(key), b.get(key)
        if before != after:
            match = LAYER.search(key)
            name = LAYER.sub("blocks.{i}.", key, count=1)
            groups.setdefault((name, before, after), []).append(int(match[1]) if match else -1)
    return tuple(
        KeyChange(name, "" if layers[0] < 0 else ranges(layers), len(layers), before, after)
        for (name, before, after), layers in groups.items()
    )


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as runs: 0–31, 40; every second one as 0, 2, …, 46."""
    found = sorted(numbers)
    steps = {after - before for before, after in pairwise(found)}
    if len(found) > 2 and len(steps) == 1 and steps != {1}:
        return f"{found[0]}, {found[1]}, …, {found[-1]}"
    said = stretches(found)
    return ", ".join(said if len(said) <= 5 else [*said[:4], "…", said[-1]])
