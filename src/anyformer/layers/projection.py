"""How attention gets its queries, keys and values, and what decoding keeps of them: what GQA, MLA and the others share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.part import Part
from anyformer.layers.rotary import LearnedFrequencies, RotarySpec, Rotation
from anyformer.layers.tokens import Tokens
from anyformer.spec import Cost, HeadMap, KeptBeside, PartSpec, Place, Placed, Workload, inside


class ProjectionSpec(PartSpec, abstract=True):
    """Where queries, keys and values come from, and what of them decoding keeps; its place knows d_model and d_source.

    Where d_source is 0 it stores nothing, and has no weights to: it reads what another's stored. Its module is a `Projection`.
    """

    observed_as: ClassVar[str | None] = "projections"
    # whether what it stores is keys that turn, and values, by head, so that blocks of tokens, and another text's, may have such
    takes_blocks: ClassVar[bool] = False

    def sizes(self, place: Place) -> tuple[int, int, int]:
        """(n_heads, width of a query and key, width of a value)."""
        raise TypeError(f"{self.kind} does not say its sizes")

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        """As `MixerSpec.heads`."""
        return ()

    def narrow_width(self, place: Place) -> int:
        """The width of what queries are made of."""
        return place.d_model

    def index_width(self, place: Place) -> int:
        """The width of what an indexer makes its queries of."""
        return self.narrow_width(place)

    def rotation(self, place: Place) -> tuple[RotarySpec, int] | None:
        """(how queries and keys turn, the width of what does); None where they do not."""
        return None

    def frequencies(self, place: Place) -> Placed:
        """What learns the frequencies of its rotation; None where nothing does."""
        if (found := self.rotation(place)) is None or found[0].learned is None:
            return None
        return found[0].learned, place.at(found[0].dims(found[1]) // 2)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        """What `store` gives for one token, by name; the token axis comes before the last."""
        raise TypeError(f"{self.kind} does not say what it keeps")

    @property
    def mixes(self) -> bool:
        """Whether it makes queries, keys or values of several tokens of a row: then it keeps a state of the last ones."""
        return False

    def beside(self, place: Place) -> tuple[KeptBeside, ...]:
        """That state."""
        return ()

    @property
    def reads_input(self) -> bool:
        """Whether it reads the embedding's output too."""
        return False

    @property
    def of_one(self) -> bool:
        """Whether it makes queries, keys and values of one reading alone, not some of what another layer or text gives."""
        return self.mixes or self.reads_input

    @property
    def stored_heads(self) -> int:
        """Heads of keys and values, all of one width, where these are what it stores and what kernels are given; else 0."""
        return 0

    def absorbs(self, query: int, keys: int) -> bool:
        """Whether so many queries a row read `keys` stored tokens as they are stored; if not, they are expanded first."""
        return False

    def absorbed_sizes(self) -> tuple[int, int]:
        """The widths of (queries and keys, values) where what is stored is read as it is."""
        raise TypeError(f"{self.kind} cannot read what it stores as it is")

    def cost(self, place: Place, workload: Workload) -> Cost:
        """Its parts, each by the tokens of a row that it maps."""
        found = Cost()
        for name, part, its_place in inside(self, place):
            found += part.cost(its_place, replace(workload, query=self.n_mapped(name, workload)))
        return found.named("projections")

    def n_mapped(self, name: str, workload: Workload) -> int:
        """How many tokens of a row the part of this name maps: those that ask, or `workload.memory` of the source."""
        return workload.memory if name in ("k", "v") else workload.query

    def narrowed(self, place: Place, ranks: int) -> ProjectionSpec | None:
        """That of each rank's heads, as `MixerSpec.narrowed`: what the ranks' `output` gives adds up."""
        return None

    def between(self, query: int, keys: int, *, absorbed: bool) -> int:
        """The FLOPs a row from what is stored to the kernel, and from the kernel to `output`."""
        return 0


P = TypeVar("P", bound=ProjectionSpec)


class Projection(Part[P], Generic[P]):
    """q, k and v are [batch, heads, token, head_dim], with as many heads of k and v as there are key/value heads."""

    o: Any  # the map of all heads' values that `output` ends with
    frequencies: LearnedFrequencies | None

    def narrow(self, x: Tensor) -> Tensor:
        """What queries are made of, [batch, query, narrow_width] of x [batch, query, d_model]."""
        return x

    def indexed(self, narrow: Tensor) -> Tensor:
        """What an indexer makes its queries of, [batch, query, index_width] of what `narrow` gives."""
        return narrow

    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The queries of what `narrow` gives."""
        raise TypeError(f"{self.spec.kind} makes no queries")

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """What is kept of the source [batch, token, d_source], the token axis before the last."""
        raise TypeError(f"{self.spec.kind} stores nothing")

    def unturned(self, source: Tensor) -> Mapping[str, Tensor]:
        """What `store` gives of tokens that have no place in the text, so that no key turns."""
        raise TypeError(f"{self.spec.kind} stores nothing of another text")

    def turn(self, x: Tensor, context: ForwardContext, *, back: bool = False) -> Tensor:
        """The x [batch, heads, token, width of what turns] as it is rotated; as it is where nothing is."""
        rotary: RotarySpec | None = getattr(self.spec, "rotary", None)
        return x if rotary is None else Rotation(rotary, self.frequencies).rotate(x, context, back=back)

    def project(
        self, narrow: Tensor, x: Tensor, context: ForwardContext, store: Store
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(`query`, `store`) of x [batch, token, d_model] and what `narrow` gives of it, where a layer attends to itself.

        `store`: attention's own.
        """
        return self.query(narrow, context), self.store(x, context)

    def expand(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v), each [batch, heads or kv heads, token, width], of the queries and all that is stored."""
        return q, stored["key"], stored["value"]

    def absorb(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v), each [batch, heads or kv heads, token, one of `absorbed_sizes`]: keys and values as they are stored."""
        raise TypeError(f"{self.spec.kind} cannot read what it stores as it is")

    def can_absorb(self) -> bool:
        """Whether the matrices that `absorb` folds are all that the maps they are of do: no adapter, no hook."""
        return True

    def unfold(self, y: Tensor) -> Tensor:
        """[batch, heads, query, width of a value] of what the kernel made of what `absorb` gave."""
        raise TypeError(f"{self.spec.kind} cannot read what it stores as it is")

    def of_blocks(self, made: Tensor, tokens: Tokens) -> Mapping[str, Tensor]:
        """What is stored of blocks, by name [batch, kv heads, block, width], of all of it side by side [batch, block, width].

        Keys turn by the positions of `tokens`.
        """
        shapes = self.spec.cache_shapes(self.place)
        each = made.split([math.prod(shape) for shape in shapes.values()], -1)
        found = {
            name: x.unflatten(-1, shape).transpose(1, 2) for x, (name, shape) in zip(each, shapes.items(), strict=True)
        }
        if (rotation := self.spec.rotation(self.place)) is not None:
            found["key"] = Rotation(rotation[0], self.frequencies).rotate_as(found["key"], tokens)
        return found

    def output(self, y: Tensor, context: ForwardContext) -> Tensor:
        """[batch, query, d_model] of y [batch, heads, query, width of a value]."""
        return self.o(y.transpose(1, 2).flatten(2))

    def notes(self, context: ForwardContext, shape: tuple[int, int]) -> Notes:
        """What it notes of the pass that `output` ended, of [batch, token]."""
        return {}
