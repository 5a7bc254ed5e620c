"""The tensors of a checkpoint, checked against its model, each read when it is asked for, by their names or ours."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.families import Family
from anyformer.families.hf.mapping import TensorRow, ours_of, same, shapes, their_shapes
from anyformer.families.hf.pooling import module_tensors, without_pooling
from anyformer.hub.gguf import GGUF, SUFFIX, opened
from anyformer.hub.merging import Merging
from anyformer.hub.sentences import module_files
from anyformer.hub.source import ModelSource, opened_weights
from anyformer.hub.weights import Weights
from anyformer.hub.wrapped import is_wrapped, prefix_in
from anyformer.spec import ModelSpec, Place, tensors

log = logging.getLogger(__name__)
FAR_BEYOND = 4  # times; less is a tensor that is missing, or another shape, and named


class Contents(NamedTuple):
    """What a checkpoint holds. `rows` are between our names and those that its family has; ours alone without one."""

    weights: Weights | GGUF
    rows: list[TensorRow]
    spelled: Callable[[str], str]  # what the files call a tensor of the rows
    names: list[str]  # in the files, of all tensors that are needed
    whole: frozenset[str]  # in the files, of those that hold whole numbers
    others: tuple[Contents, ...] = ()  # of models with the same rows
    merging: Merging | None = None  # how each tensor is read of all of them; None: there are no others

    def dtype(self) -> torch.dtype:
        """The dtype that holds all tensors but those of whole numbers. Raises CheckpointError for quantised ones."""
        own = self.weights.dtype(name for name in self.names if name not in self.whole)
        return reduce(torch.promote_types, (each.dtype() for each in self.others), own)

    def read(self, theirs: str) -> Tensor:
        """A tensor by the name that the rows have for it. Raises CheckpointError where those of several models are not merged."""
        own = self.weights.read(self.spelled(theirs))
        return self.merging.of(theirs, [own, *(each.read(theirs) for each in self.others)]) if self.merging else own

    def release(self) -> None:
        """Give back the memory of what was read."""
        for each in (self, *self.others):
            each.weights.release()

    def layout(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that is read, by the name that the rows have for it."""
        return {name: self.weights.shape(self.spelled(name)) for row in self.rows for name in row.theirs}

    def ours(self) -> Iterator[tuple[str, Tensor]]:
        """Our tensors by name."""
        return ours_of(self.rows, self.read)

    def through(self, rows: list[TensorRow], *, alike: bool) -> Iterator[tuple[str, Tensor]]:
        """The tensors of other rows' theirs, holding no more than a row of each side needs.

        `alike`: both tables are of one family, so that a row of the same names needs no turning there and back.
        """
        known = {(row.ours, row.theirs) for row in self.rows} if alike else set()
        sources = {name: row for row in self.rows for name in row.ours}
        waiting: dict[str, Tensor] = {}  # made along with one that was asked for

        def ours(name: str) -> Tensor:
            if name not in waiting:
                row = sources[name]
                waiting.update(zip(row.ours, row.load(tuple(map(self.read, row.theirs))), strict=True))
            return waiting.pop(name)

        for row in rows:
            if (row.ours, row.theirs) in known:
                yield from ((name, self.read(name)) for name in row.theirs)
            else:
                yield from zip(row.theirs, row.save(tuple(map(ours, row.ours))), strict=True)


def contents(source: ModelSource) -> Contents:
    """The tensors of a checkpoint. Raises CheckpointError listing those that are missing, surplus or misshapen."""
    own, others = _contents(source), tuple(map(contents, source.others))
    for each, other in zip(source.others, others, strict=True):
        if other.layout() != own.layout():
            where = f"{each.weights} has its tensors in another layout than {source.weights}"
            raise CheckpointError(f"{where}; bring both into one by `convert` first")
    return own._replace(others=others, merging=source.merging)


def _contents(source: ModelSource) -> Contents:
    spec = source.stored or source.spec
    packed = opened(source.weights) if source.weights.suffix.lower() == SUFFIX else None
    weights = packed or opened_weights(source.weights, source.settings)
    if isinstance(weights, Weights) and weights.n_passed_over:
        told = "%s: %d tensors that see or hear are passed over; the text model is read"
        log.warning(told, source.weights, weights.n_passed_over)
    if source.family is not None:
        if source.modules is not None and isinstance(weights, Weights):
            for folder, names in module_files(spec, source.modules).items():
                weights.join(folder, names)
        return _foreign(spec, source.family, weights)
    prefix = prefix_in(weights.listed()) if is_wrapped(source.settings) and isinstance(weights, Weights) else ""
    expected = {f"{prefix}{name}": shape for name, shape in shapes(spec).items()}
    weights.match(expected, "the model")
    rows, spelled = own_rows(spec), f"{prefix}{{}}".format
    return Contents(weights, rows, spelled, list(expected), _whole(spec, rows, spelled))


def own_rows(spec: ModelSpec, prefix: str = "") -> list[TensorRow]:
    """The rows of our own files: each tensor as it is, with a prefix before its name."""
    return [same(name, f"{prefix}{name}") for name in shapes(spec)]


def _foreign(spec: ModelSpec, family: Family, weights: Weights | GGUF) -> Contents:
    _refuse_larger(spec, weights)
    # What lies behind the pool has folders of its own, or is in the same GGUF file.
    beside = (
        weights.dense_rows(spec) if isinstance(weights, GGUF) else [same(name, name) for name in module_tensors(spec)]
    )
    rows = [*_layout(without_pooling(spec), family, weights), *beside]
    spelled = weights.spelling(rows, family.prefix)
    # What none of ours comes from may be absent.
    rows = [row for row in rows if row.ours or all(spelled(name) in weights for name in row.theirs)]
    expected = {spelled(name): shape for name, shape in their_shapes(rows, spec).items()}
    spare = {spelled(name) for row in rows for name in row.also}
    weights.match(expected, family.architecture, spare)
    twins = ((row.theirs[0], name) for row in rows if row.theirs for name in row.also if name not in row.theirs)
    for name, other in (map(spelled, pair) for pair in twins):
        if other in weights and other != name and not torch.equal(weights.read(name), weights.read(other)):
            raise CheckpointError(
                f"{weights.directory}: {name} and {other} differ, but the configuration has one tensor stand for both; "
                "set tie_word_embeddings to false where it has that, or copy the files again"
            )
    weights.release()
    return Contents(weights, rows, spelled, list(expected), _whole(spec, rows, spelled))


def _whole(spec: ModelSpec, rows: list[TensorRow], spelled: Callable[[str], str]) -> frozenset[str]:
    """What the files call the tensors of whole numbers, and those that follow from the settings."""
    ours = {name for name, weight in tensors(spec, Place()) if weight.below is not None}
    return frozenset(spelled(name) for row in rows if not row.ours or ours & set(row.ours) for name in row.theirs)


def _refuse_larger(spec: ModelSpec, weights: Weights | GGUF) -> None:
    """Refuse a model far beyond what its files hold, whose rows alone might take all memory."""
    needed = sum(math.prod(shape) for shape in shapes(spec).values())
    held = sum(math.prod(weights.shape(name)) for name in weights.listed())
    if needed > FAR_BEYOND * held:
        raise CheckpointError(
            f"{weights.directory} holds {held:,} numbers, and the model of its configuration has {needed:,}; "
            "give the configuration that belongs to these weights"
        )


def _layout(spec: ModelSpec, family: Family, weights: Weights | GGUF) -> list[TensorRow]:
    """The rows of the layout that the files are in: a GGUF file's, that of files, or that of memory, which some write too.

    One that was released with the same names has other shapes.
    """
    if isinstance(weights, GGUF):
        return weights.rows(spec)
    held = family.rows(spec)
    files = family.files or family.released
    if files is None:
        return held
    filed = files(spec)
    alone = {name for row in held if not row.also for name in row.theirs}  # a duplicate may lie in either layout
    names = alone - {name for row in filed for name in row.theirs}
    spelled = weights.spelling(held, family.prefix)
    if not any(spelled(name) in weights for name in names):
        return filed
    released = family.released(spec) if family.released and family.released is not files else held
    other = dict(their_shapes(released, spec).items() - their_shapes(held, spec).items())
    fits = (spelled(name) in weights and weights.shape(spelled(name)) == shape for name, shape in other.items())
    return released if other and all(fits) else held
