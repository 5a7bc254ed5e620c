"""The shape that every Transformer shares: a stack of blocks of sublayers of branches, after an embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Self

from anyformer.errors import SpecError
from anyformer.spec.kinds import ConnectionSpec, MapSpec, MixerSpec, ResidualSpec, TermSpec
from anyformer.spec.part import PartSpec, Place, Placed, usual
from anyformer.spec.ranges import Layers, Width
from anyformer.spec.sizes import Sizes


class EmbeddingSpec(PartSpec):
    """The sum of the terms, then the norm, then the projection to d_model."""

    counted_as: ClassVar[str | None] = "embedding"

    terms: tuple[TermSpec, ...]
    width: Width | None = None  # of the sum (ALBERT, ELECTRA); None: d_model
    norm: MapSpec | None = None
    projection: MapSpec | None = None
    masked: bool = False  # padding is multiplied by zero (DeBERTa)

    def __post_init__(self) -> None:
        if (self.width is None) != (self.projection is None):
            raise self.refusal("projection", "and width go together: a narrow embedding is projected to d_model")

    def parts(self, place: Place) -> Mapping[str, Placed]:
        narrow = place.at(self.width or place.d_model)
        fits = self.projection is None or self.projection.width_out(narrow) == place.d_model
        self.require("projection", fits, f"must give vectors of d_model = {place.d_model} features")
        return {
            "terms": [(term, narrow) for term in self.terms],
            "norm": self.norm and (self.norm, narrow),
            "projection": self.projection and (self.projection, narrow),
        }


class BranchSpec(PartSpec):
    """then(norm_out(mixer(norm_in(x))))."""

    mixer: MixerSpec
    norm_in: MapSpec | None = None
    norm_out: MapSpec | None = None
    late: bool = False  # written when the layer ends (shortcut-connected experts: Cai et al. 2024, arXiv:2404.05019)
    then: MixerSpec | None = None  # with a state: what a branch writes is mixed with that of the last tokens (Inkling)

    def __post_init__(self) -> None:
        within = () if self.mixer.layers() else self.mixer.nested(MapSpec)
        inner = next((each.kind for each in within if each.of_stream), None)
        self.require(
            "mixer", inner is None, f"has {inner} within, which is for the stream's vectors; put it before a branch"
        )
        self.require("then", self.then is None or self.then.kept_as() == "state", "must be a mixer with a state")

    @property
    def calls(self) -> tuple[MixerSpec, ...]:
        """What it calls, in turn, each with stores of its own."""
        return (self.mixer,) if self.then is None else (self.mixer, self.then)


class SublayerSpec(PartSpec):
    """Branches side by side on one reading of the stream: one is serial, two are a parallel block."""

    branches: tuple[BranchSpec, ...]
    norm_in: MapSpec | None = None  # of what all branches read: pre-norm
    norm_out: MapSpec | None = None  # of what they write, summed, before the stream gets it
    norm_sum: MapSpec | None = None  # of the stream after writing: post-norm
    skip: MapSpec | None = None  # of the stream that what they write is added to (residual scaling)

    def __post_init__(self) -> None:
        if self.branches and all(branch.late for branch in self.branches):
            raise self.refusal("branches", "are all late; one at least must write at once")


class BlockSpec(PartSpec):
    """One layer: an encoder's has two sublayers, the 2017 decoder's three."""

    sublayers: tuple[SublayerSpec, ...]
    connection: ConnectionSpec | None = (
        None  # to streams side by side (AltUp); None: each sublayer by the stack's residual
    )

    def parts(self, place: Place) -> Mapping[str, Placed]:
        around = dataclasses.replace(place, n_sublayers=len(self.sublayers))
        n_whole = self.connection.n_whole() if self.connection else 0
        one = place if place.n_streams == 1 else dataclasses.replace(place, n_streams=1)
        one = self.inner(one)
        return {
            "sublayers": [(each, place if i < n_whole else one) for i, each in enumerate(self.sublayers)],
            "connection": self.connection and (self.connection, around),
        }

    def __post_init__(self) -> None:
        if self.sublayers and any(branch.late for branch in self.sublayers[-1].branches):
            raise self.refusal("sublayers", "has a late branch in the last, where nothing comes later; leave late out")
        if self.connection is not None and (why := self.connection.misfit(self.sublayers)) is not None:
            raise self.refusal("connection", why)

    def inner(self, place: Place) -> Place:
        """The place of its sublayers, given its own."""
        return place if self.connection is None else self.connection.inner(place)

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """What its branches do, in turn."""
        return tuple(branch.mixer for sublayer in self.sublayers for branch in sublayer.branches)

    def within(self, layer: int, n_layers: int) -> BlockSpec:
        """The layer with this number of a stack of so many; itself where no mixer hangs on that."""
        if all(mixer.within(layer, n_layers) is mixer for mixer in self.mixers):
            return self

        def placed(sublayer: SublayerSpec) -> SublayerSpec:
            each = (branch.but(mixer=branch.mixer.within(layer, n_layers)) for branch in sublayer.branches)
            return sublayer.but(branches=tuple(each))

        return self.but(sublayers=tuple(map(placed, self.sublayers)))


def branches_of(blocks: Iterable[BlockSpec]) -> Iterator[BranchSpec]:
    """The branches of layers, each followed by those of layers inside its mixer, in the order of the calls."""
    for branch in (branch for block in blocks for sublayer in block.sublayers for branch in sublayer.branches):
        yield branch
        yield from branches_of(branch.mixer.layers())


Lent = dict[tuple[str, str], MixerSpec]  # by (what, its name)


def check_lent(blocks: Sequence[BlockSpec], place: Place, lent: Lent) -> None:
    """Raise SpecError where a layer reads what no earlier one, or one that does not fit, lends.

    `lent`: what layers before these lend; what these lend is put in it.
    """
    each = {id(block): block for block in blocks}  # of tiled layers, one
    sharing = {key for key, block in each.items() if any(mixer.lends() or mixer.borrows() for mixer in block.mixers)}
    for i, block in enumerate(blocks if sharing else ()):
        for mixer in block.mixers if id(block) in sharing else ():
            for what, name in mixer.borrows().items():
                lender = lent.get((what, name))
                if lender is None:
                    known = ", ".join(each for kind, each in lent if kind == what)
                    known = f"; there are {known}" if known else ""
                    raise SpecError(
                        f"layer {i} reads the {what} called {name!r}, and no layer before it lends such{known}"
                    )
                if reason := mixer.unfit(what, lender, place):
                    raise SpecError(f"layer {i} cannot read the {what} called {name!r}: {reason}")
            for what, name in mixer.lends().items():
                lent[what, name] = mixer


def check_residual(blocks: Iterable[BlockSpec], residual: ResidualSpec) -> None:
    """Raise SpecError for norms of sums (post-norm) and skips where the residual's state is no sum that they could read, and
    for late branches where it is undone, sublayer by sublayer."""
    for block in () if residual.sums_normed and not residual.undoes else blocks:
        left = block.sublayers if block.connection is None else block.connection.beside(block.sublayers)
        if residual.undoes and any(branch.late for sublayer in left for branch in sublayer.branches):
            raise SpecError(
                f"Stack.residual = {residual.kind} undoes one sublayer after the other and takes no late branch; take Add, or "
                "leave late out"
            )
        if not residual.sums_normed and any(sublayer.norm_sum for sublayer in left):
            raise SpecError(
                f"Stack.residual = {residual.kind} takes no norms of sums (post-norm); take Add, or norms of what branches "
                "read (pre-norm)"
            )
        if residual.undoes and block.connection is not None:
            raise SpecError(
                f"Stack.residual = {residual.kind} undoes sublayers, and a connection has its own way; take Add"
            )
        if any(sublayer.skip for sublayer in left):
            raise SpecError(f"Stack.residual = {residual.kind} has no one stream that a skip could read; take Add")


def period(values: Sequence[object]) -> int:
    """After how many values they repeat, the last time perhaps cut short; as many as there are where they do not."""
    return next(p for p in range(1, len(values) + 1) if all(each == values[i % p] for i, each in enumerate(values)))


class StackSpec(PartSpec):
    """Embedding, blocks, final norm."""

    d_model: Width
    embedding: EmbeddingSpec
    blocks: Annotated[tuple[BlockSpec, ...], Layers]
    residual: ResidualSpec = usual("Add")
    norm: MapSpec | None = None

    def __post_init__(self) -> None:
        check_residual(self.blocks, self.residual)
        check_lent(self.blocks, Place(self.d_model, (self.d_model,)), {})

    @property
    def width(self) -> int:
        """Of the state that it gives, before and after its norm."""
        return self.residual.width(self.d_model)

    @property
    def n_branches(self) -> int:
        """How many branches write to the stream."""
        return sum(1 for _ in branches_of(self.blocks))

    @cached_property
    def layers(self) -> tuple[BlockSpec, ...]:
        """The blocks as they stand: with what follows from their depth."""
        return tuple(block.within(i, len(self.blocks)) for i, block in enumerate(self.blocks))

    def parts(self, place: Place) -> Mapping[str, Placed]:
        stream = Place(self.d_model, (self.d_model,), place.d_source, place.modules, n_streams=self.residual.n_streams)
        return {
            "embedding": (self.embedding, stream),
            "blocks": [(block, stream) for block in self.layers],
            "residual": (self.residual.within(self.n_branches), stream),
            "norm": self.norm and (self.norm, stream.at(self.width)),
        }

    def resized(self, to: Sizes) -> Self:
        return super(StackSpec, self.but(blocks=to.layers(self.blocks))).resized(to)
