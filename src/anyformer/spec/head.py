"""Heads, what the stack's last state is turned into, and the tables of vectors that they share with embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from anyformer.spec.cost import Cost, Workload
from anyformer.spec.kinds import MapSpec, ScaleSpec, TermSpec, in_turn
from anyformer.spec.part import Caveat, PartSpec, Place, Placed, Weight, inside
from anyformer.spec.ranges import Layers, Positive, Vocab, Width
from anyformer.spec.structure import BlockSpec


class TableSpec(PartSpec):
    """Rows of vectors: looked up by an embedding, multiplied by a head; one `shared` name ties them."""

    rows: Vocab
    width: Width | None = None  # of a row; None: the width of the place

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {
            "weight": Weight(
                (self.rows, self.width or place.shape[-1]), ("vocab", "d_model"), role="table", quantises_as="table"
            )
        }


class UnembeddingSpec(TableSpec):
    """A table that is a head's own: it is only multiplied by."""


class PoolSpec(PartSpec, abstract=True):
    """One answer a row, of its real tokens. Its module is called with (x, tokens): of x [batch, token, width] it makes a vector,
    of attention's weights [batch, maps, token, token] the features of each pair of tokens."""

    needs_all: ClassVar[bool] = True  # of a row's tokens, so that it cannot be asked while a cache holds some
    reads: ClassVar[Literal["tokens", "attention"]] = "tokens"


class HeadLayersSpec(PartSpec):
    """Layers between the stack and one head. They begin with what the stack gives, or would give `before` layers earlier.

    The `terms` are added to that where their stream begins; attention that reads "input" takes keys and values from it
    without the terms: with absolute positions, DeBERTa's enhanced mask decoder (arXiv:2006.03654, section 3.2).
    """

    blocks: Annotated[tuple[BlockSpec, ...], Layers]
    terms: tuple[TermSpec, ...] = ()
    before: int = 0  # how many of the stack's last layers this head does not read

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"terms": [(term, place) for term in self.terms], "blocks": [(block, place) for block in self.blocks]}


class HeadSpec(PartSpec):
    """An answer for each token, or for each row where a pool says so: run the layers, pool, transform, multiply by the
    table, add the bias, scale, cap. Without a table the answer is the transformed vector.

    One whose pool reads attention's weights answers where it is asked by name alone: only slower kernels give them."""

    counted_as: ClassVar[str | None] = "heads"

    name: str = "lm"
    layers: HeadLayersSpec | None = None  # None: it reads what the stack gives
    pool: PoolSpec | None = None  # None: every token has an answer of its own
    transform: tuple[MapSpec, ...] = ()
    table: TableSpec | None = None
    # features of a tied table that is narrower than what it is multiplied by: the others are the head's own (MobileBERT)
    beside: bool = False
    bias: bool = False
    scale: ScaleSpec | None = None  # of d_model; multiplies the logits (T5: d_model^-0.5)
    softcap: Positive | None = None  # cap · tanh(logits / cap)

    def __post_init__(self) -> None:
        if self.bias and self.table is None:
            raise self.refusal("bias", "is added to what the table gives, and there is none; leave one or the other")

        if self.beside and not (self.table and self.table.shared and self.table.width):
            raise self.refusal(
                "beside", "is of the features that a tied table of a width of its own leaves; leave it out"
            )

    def within(self, n_layers: int) -> Self:
        """The head of a stack of fewer layers: it reads none before the first."""
        if self.layers is None or self.layers.before <= n_layers:
            return self
        return self.but(layers=self.layers.but(before=n_layers))

    @property
    def by_name(self) -> bool:
        """Whether it answers only where it is asked by its name, since it reads attention's weights."""
        return self.pool is not None and self.pool.reads == "attention"

    @property
    def tied(self) -> str | None:
        """The name under which the table is shared with the embedding; None where it is the head's own."""
        return self.table and self.table.shared

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("gradients", "it answers where it is asked by name alone"),) if self.by_name else ()

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        added = self.bias and self.table
        bias = Weight((added.rows,), ("vocab",), role="bias", fill=0.0) if added else None
        if not self.beside or self.table is None:
            return {"beside": None, "bias": bias}
        width = in_turn(self.transform, place)[1].shape[-1] - (self.table.width or 0)
        self.require("beside", width > 0, "has no features: the table is as wide as what it is multiplied by")
        return {"beside": Weight((self.table.rows, width), ("vocab", "d_model"), role="table"), "bias": bias}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        pool, stream = self.pool and (self.pool, place), place.at(place.d_model)
        place = place.at(place.n_maps) if self.by_name else place
        places, place = in_turn(self.transform, place)
        layers, table = self.layers and (self.layers, stream), self.table
        if table is not None and table.shared is None:
            table = UnembeddingSpec(**table.values())
        return {"layers": layers, "pool": pool, "transform": places, "table": table and (table, place)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        answers = workload.query if self.pool is None else workload.query**2 if self.by_name else 1
        answered = dataclasses.replace(workload, query=answers)
        layers, others = Cost(), Cost()
        for _, part, inner_place in inside(self, place):
            if isinstance(part, HeadLayersSpec):
                layers = part.cost(inner_place, workload)
            elif isinstance(part, TableSpec):
                others += Cost({"logits": 2 * part.rows * inner_place.shape[-1] * answered.tokens})
            else:
                others += part.cost(inner_place, answered)
        return layers + others.named("logits")
