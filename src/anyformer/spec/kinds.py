"""What parts can be, each a kind with its own question to answer: maps, terms, mixers, residuals, inits; and a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from anyformer.spec.part import PartSpec, Place, Spec, Weight
from anyformer.spec.ranges import Exponent, Positive

if TYPE_CHECKING:
    from anyformer.spec.model import ModelSpec

Kept = Literal["tokens", "memory", "state"]
# What mixers do in a layer, by what they are counted as.
JOBS = {
    **dict.fromkeys(("attention", "recurrence", "Fourier transform"), "mixing"),
    **dict.fromkeys(("feed-forward", "experts"), "features"),
}


class KeptBeside(NamedTuple):
    """What a mixer keeps beside what its `cache_shapes` say, in a store of its own."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    how: Kept = "tokens"
    every: int = 1  # kept is one of a block of so many tokens


class HeadMap(NamedTuple):
    """The rows of a linear map that make vectors for heads, one head behind the other, or the columns that read them."""

    makes: Literal["query", "key", "value", "output"]  # "output": it reads what heads give
    of: str  # the map, by its path inside the part
    n: int  # heads
    width: int  # of one
    first: int = 0  # row or column of the first


class MapSpec(PartSpec, abstract=True):
    """A map of each token's vector by itself: a norm, a gain, a shift, a linear map, an activation.

    Its module is called with x, and with the pass's `ForwardContext` too where the map `reads_tokens` (batch norm: padding).
    """

    reads_tokens: ClassVar[bool] = False
    of_stream: ClassVar[bool] = False  # has matrices of its own, which no mixer's formula of FLOPs counts inside it
    counted_as: ClassVar[str | None] = "norms"  # of the stream, where gains and shifts may stand in their stead

    def width_out(self, place: Place) -> int:
        """The width of what comes out, given the place of what goes in."""
        return place.shape[-1]


def in_turn(maps: Sequence[MapSpec], place: Place) -> tuple[list[tuple[PartSpec, Place]], Place]:
    """(maps one after the other, each with its place, the place behind the last)."""
    placed: list[tuple[PartSpec, Place]] = []
    for each in maps:
        placed.append((each, place))
        place = place.at(*place.shape[:-1], each.width_out(place))
    return placed, place


class TermSpec(PartSpec, abstract=True):
    """A summand of the embedding: tokens, positions, segments, languages."""

    def positions(self) -> int | None:
        """How many positions it has vectors for; None: it learns none."""
        return None


class MixerSpec(PartSpec, abstract=True):
    """What a branch does between its norms: attention, a feed-forward, experts, a convolution."""

    counted_as: ClassVar[str | None] = "other mixers"
    takes_streams: ClassVar[bool] = False  # whether it may read and write all streams side by side (`Place.n_streams`)

    @property
    def job(self) -> str:
        """What it does in a layer: "mixing" of a text's tokens, of "features", reading of "memory", or as its kind is called."""
        return "memory" if self.kept_as() == "memory" else JOBS.get(self.counted_as or "", self.kind)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]] | None:
        """What decoding keeps of each token, by name; the token axis comes before the last. None: nothing."""
        return None

    def reach(self) -> int | None:
        """How many of the last tokens decoding can ever see again; None: all of them."""
        return None

    def kept_as(self) -> Kept:
        """Whether what it keeps is of each token, of the encoder's output once, or one state that each pass replaces.

        The shapes of a state are of a whole row.
        """
        return "tokens"

    def beside(self, place: Place) -> tuple[KeptBeside, ...]:
        """What it keeps in stores beside its own, which are that one's `part`."""
        return ()

    def layers(self) -> tuple[Any, ...]:
        """The layers inside, if it has some: its module is called with their stores too, and gives a note of each of their
        branches."""
        return ()

    def narrowed(self, place: Place, ranks: int) -> MixerSpec | None:
        """What each of several ranks computes of it, such that the sum of what they write is what it writes.

        Each has as many heads or features as any other, the first rank the first ones; a weight is cut along one axis, one that
        isn't cut is read by all. None: it cannot be, and each rank computes the whole. Raises SpecError where the number of
        ranks does not divide it.
        """
        return None

    def shows_later(self) -> bool:
        """Whether a token is shown later ones by what it is; what masks show is asked of them (`layers.causality`)."""
        return False

    def together(self) -> str | None:
        """Why several processes cannot each compute a stretch of a row's tokens; None: tokens meet in what it stores alone.

        They do in what `Store.extend` and `once` return, and in the facts of keys that a store has.
        """
        return "does not say that tokens meet in what it stores alone"

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        """Where queries, keys and values are made for each head, and where what heads give is read; by default nowhere.

        What carries a trained attention's maps over into another one, or into a state that is read and written by such.
        """
        return ()

    def lends(self) -> Mapping[str, str]:
        """What later layers may read of it ("keys": keys and values; "choice": which keys are attended to; "router": what a
        router has read; "queries": queries), each with the name under which they find it."""
        return {}

    def borrows(self) -> Mapping[str, str]:
        """What it reads of an earlier layer, the last that lends such by that name; the rest it has by itself."""
        return {}

    def n_maps(self, place: Place) -> int:
        """How many maps of weights [query, key] of a text's own tokens it notes where a pass asks for them."""
        return 0

    def reads_input(self) -> bool:
        """Whether it reads the embedding's output too, whatever lies between."""
        return False

    def unfit(self, what: str, lender: MixerSpec, place: Place) -> str | None:
        """Why it cannot read what another mixer of the stack lends, or None."""
        return None

    def within(self, layer: int, n_layers: int) -> MixerSpec:
        """The mixer in this layer, counted from 0, of a stack of so many; by default the same in any.

        What hangs on depth is left unsaid in a specification, so that layers stay alike and a stack may be resized.
        """
        return self


class ResidualSpec(PartSpec, abstract=True):
    """How branches write to the stream.

    Its module has `open(x, context)`, the state that the stream x begins with; `step(state, branches, context)`, the state
    after some branches; `close(state)`, what the final norm sees of it. A part called `begin` is for `open` alone, one called
    `end` for `close`: where processes have some layers each, those in between have neither.
    """

    counted_as: ClassVar[str | None] = "residual"
    # whether steps can be undone, so that training keeps nothing of the layers and makes them again
    undoes: ClassVar[bool] = False
    sums_normed: ClassVar[bool] = True  # whether norms of sums (post-norm) can read its state

    @property
    def n_streams(self) -> int:
        """How many streams of d_model features its state has side by side, for the layers to be connected to; 1: the stream."""
        return 1

    def width(self, d_model: int) -> int:
        """The width of what the final norm and the heads see."""
        return d_model

    def within(self, n_branches: int) -> ResidualSpec:
        """The residual in a stack of so many branches; by default the same in any."""
        return self


class ConnectionSpec(PartSpec, abstract=True):
    """How the sublayers of one layer are connected to streams side by side, by weights of the layer's own.

    Its module is called with (state, the sublayers, the stack's residual, context, stores), as a block is.
    """

    counted_as: ClassVar[str | None] = "residual"

    def beside(self, sublayers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of a layer's sublayers those that it leaves to the stack's residual; by default none."""
        return ()

    def misfit(self, sublayers: tuple[Any, ...]) -> str | None:
        """Why it does not connect a layer of these sublayers, or None."""
        return None

    def inner(self, place: Place) -> Place:
        """The place of its sublayers, given the layer's."""
        return place

    def n_whole(self) -> int:
        """How many of the first sublayers read and write all streams as they lie, told of them by `Place.n_streams`."""
        return 0


class InitSpec(Spec, abstract=True):
    """How weights start, by role; applied by layers.init."""

    def begun(self, model: ModelSpec) -> ModelSpec:
        """The architecture with this start, and with what goes with it."""
        return model.but(init=self)

    def rate(self, weight: Weight, d_model: int) -> float:
        """The share of a recipe's learning rate by which a weight in a stream of this width learns."""
        return 1.0


class ScaleSpec(Spec):
    """A constant that may follow from a width: factor · width^power."""

    factor: Positive = 1.0
    power: Exponent = 0.0
    rounded: Literal["no", "bfloat16"] = "no"  # to the nearest number that has such a form (RecurrentGemma)

    def value(self, width: int) -> float:
        """The number at this width."""
        value = self.factor * width**self.power
        if self.rounded == "no":
            return value
        bits: int = unpack("<I", pack("<f", value))[0]
        even = bits >> 16 & 1  # of two that are as near, the one whose last bit is 0
        return unpack("<f", pack("<I", (bits + 0x7FFF + even) & 0xFFFF0000))[0]
