"""A whole architecture: one stack or two, heads, and what predicts further tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import ClassVar, NamedTuple, Self

from anyformer.errors import SpecError
from anyformer.spec.cost import Cost, Workload
from anyformer.spec.head import HeadLayersSpec, HeadSpec, TableSpec
from anyformer.spec.kinds import InitSpec, Kept, MapSpec, MixerSpec
from anyformer.spec.part import PartSpec, Place, Placed, inside, usual
from anyformer.spec.ranges import Length
from anyformer.spec.sizes import Sizes
from anyformer.spec.structure import BlockSpec, BranchSpec, Lent, StackSpec, SublayerSpec, check_lent, check_residual


class AheadSpec(PartSpec):
    """A module that predicts one token further than what stands before it: DeepSeek-V3, arXiv:2412.19437, section 2.2.

    The k-th makes block(hidden(norm_hidden(x_i)) + token(norm_token(e_i+k))) of what the one before it made of token i (the
    first: the stack's last hidden state) and the embedding of token i + k; normed, the model's first head reads from it
    token i + k + 1. Training runs it, and decoding that checks guesses.
    """

    counted_as: ClassVar[str | None] = "multi-token prediction"

    hidden: MapSpec
    token: MapSpec
    block: BlockSpec
    norm_hidden: MapSpec | None = None
    norm_token: MapSpec | None = None
    norm: MapSpec | None = None  # of what the head reads; the next module reads what is not normed

    def parts(self, place: Place) -> Mapping[str, Placed]:
        stream = place.at(place.d_model)
        for name, width in (("hidden", self.hidden.width_out(place)), ("token", self.token.width_out(stream))):
            self.require(name, width == place.d_model, f"must give vectors of d_model = {place.d_model} features")
        return {
            "norm_hidden": self.norm_hidden and (self.norm_hidden, place),
            "norm_token": self.norm_token and (self.norm_token, stream),
            "hidden": (self.hidden, place),
            "token": (self.token, stream),
            "block": (self.block, stream),
            "norm": self.norm and (self.norm, place),
        }


class ModelSpec(PartSpec):
    """A whole architecture: a decoder or an encoder (its masks decide), or both with cross-attention."""

    stack: StackSpec
    heads: tuple[HeadSpec, ...] = ()
    encoder: StackSpec | None = None
    init: InitSpec = usual("ByRole")
    context: Length | None = None  # tokens it is published for; longer is not refused unless a part must
    ahead: tuple[AheadSpec, ...] = ()  # each predicts one token further than the last, for training and guesses
    version: ClassVar[int] = 1  # of the language

    def __post_init__(self) -> None:
        names = [head.name for head in self.heads]
        if len(set(names)) < len(names):
            raise SpecError(f"Model.heads are called {', '.join(names)}; give each a name of its own")
        if self.ahead and not self.heads:
            raise SpecError("Model.ahead predicts with the first of Model.heads, and there is none; give the model one")
        if self.encoder and self.encoder.residual.undoes != self.stack.residual.undoes:
            raise SpecError(
                f"Model.encoder has the residual {self.encoder.residual.kind}, and Model.stack {self.stack.residual.kind}; "
                "give both stacks one of which layers can be undone, or neither"
            )
        place = Place(self.stack.d_model, (self.stack.d_model,))
        for head in self.heads:
            if head.layers is not None:
                self._check_layers(head.name, head.layers)
                lent: Lent = {}
                check_lent(self.stack.blocks, place, lent)
                check_lent(head.layers.blocks, place, lent)
                check_residual(head.layers.blocks, self.stack.residual)
        check_residual((module.block for module in self.ahead), self.stack.residual)
        for module in self.ahead:
            check_lent((module.block,), place, {})  # which runs on other tokens than the stack

    def __str__(self) -> str:
        from anyformer.spec.codec import dumps

        return dumps(self)

    def _repr_html_(self) -> str:
        """Its block diagram and its card, for a notebook."""
        room = import_module("anyformer.descriptions")
        return room.as_svg(room.diagram(self), "block diagram") + room.card(self)._repr_html_()

    def _n_maps(self, d_source: int) -> int:
        """How many maps of attention's weights the stack gives, where a head reads them. Raises SpecError for none."""
        reading = next((head.name for head in self.heads if head.by_name), None)
        if reading is None:
            return 0
        stream = Place(self.stack.d_model, (self.stack.d_model,), d_source)
        n_maps = sum(mixer.n_maps(stream) for block in self.stack.blocks for mixer in block.mixers)
        if not n_maps:
            raise SpecError(f"the head {reading!r} reads attention's weights, and no layer has any; leave it out")
        return n_maps

    def _check_layers(self, name: str, layers: HeadLayersSpec) -> None:
        if layers.before > self.n_layers:
            raise SpecError(
                f"the head {name!r} reads {layers.before} layers before the last, and the stack has {self.n_layers}"
            )
        if self.stack.width != self.stack.d_model:
            raise SpecError(
                f"the head {name!r} has layers, whose stream is d_model wide, and {self.stack.residual.kind} gives "
                "another width; take Add, or leave Head.layers out"
            )
        if self.ahead and name == self.heads[0].name:
            raise SpecError("Model.ahead predicts with the first of Model.heads; that cannot have layers of its own")

    @property
    def vocab_size(self) -> int:
        """Rows of the first token table: the ids that the model takes."""
        tables = self.stack.embedding.nested(TableSpec)
        return next((table.rows for table in tables), 0)

    @property
    def n_scored(self) -> int:
        """The tokens that the first head scores: the first of those that the model takes, or all; 0 without such a head."""
        table = self.heads[0].table if self.heads else None
        return 0 if table is None else table.rows

    @property
    def stacks(self) -> Mapping[str, StackSpec]:
        """The stacks by name, the encoder first; one alone has none."""
        return {"encoder": self.encoder, "decoder": self.stack} if self.encoder else {"": self.stack}

    @property
    def n_layers(self) -> int:
        """Blocks of the main stack."""
        return len(self.stack.blocks)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        d_source = self.encoder.width if self.encoder else 0
        inner_place = Place(d_source=d_source, modules=place.modules)
        answer = Place(self.stack.d_model, (self.stack.width,), d_source, place.modules, n_maps=self._n_maps(d_source))
        return {
            "encoder": self.encoder and (self.encoder, Place(modules=place.modules)),
            "stack": (self.stack, inner_place),
            "heads": [(head, answer) for head in self.heads],
            "ahead": [(module, answer) for module in self.ahead],
        }

    def resized(self, to: Sizes) -> Self:
        n_layers = len(self.stack.resized(to).blocks)
        return super(ModelSpec, self.but(heads=tuple(head.within(n_layers) for head in self.heads))).resized(to)

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The FLOPs of one pass; the encoder runs over `workload.memory` tokens, the heads over all new ones.

        What predicts further tokens is left out, `cost_ahead` has it, and heads that answer by name alone.
        """
        of_encoder, total = Workload(workload.batch, workload.memory, causal_exact=workload.causal_exact), Cost()
        for name, part, inner_place in inside(self, place):
            if not isinstance(part, AheadSpec) and not (isinstance(part, HeadSpec) and part.by_name):
                total += part.cost(inner_place, of_encoder if name == "encoder" else workload)
            if isinstance(part, HeadSpec) and part.layers is not None:
                total += self._begun_again(workload)
        return total

    def _begun_again(self, workload: Workload) -> Cost:
        """Of the stack's residual, opened and closed by layers behind it."""
        width, residual = self.stack.d_model, self.stack.residual
        return residual.cost(Place(width, (width,), n_streams=residual.n_streams), workload)

    def cost_ahead(self, place: Place, workload: Workload) -> Cost:
        """The FLOPs that predicting further tokens adds to a pass of training: the modules, and the head for each."""
        total, heads = Cost(), self.parts(place)["heads"]
        assert isinstance(heads, list)
        for k, (_, module, inner_place) in enumerate((p for p in inside(self, place) if p[0].startswith("ahead.")), 1):
            fewer = dataclasses.replace(workload, query=max(0, workload.query - k))
            total += module.cost(inner_place, fewer) + heads[0][0].cost(heads[0][1], fewer) + self._begun_again(fewer)
        return total


class KeptCall(NamedTuple):
    """What one call of a mixer keeps in one store."""

    mixer: MixerSpec
    shapes: Mapping[str, tuple[int, ...]]  # of one token, one block, or a row's state
    how: Kept
    reach: int | None  # how many of the last tokens are ever seen again; None: all
    every: int = 1  # kept is one of a block of so many tokens, or a state of such blocks
    numbered: bool = False  # those blocks are what layers run on, by whose numbers they go
    name: str = ""  # of a store beside the call's own, which comes before it
    number: int = 0  # of that store, from 1


def cached_calls(spec: ModelSpec) -> Iterator[KeptCall]:
    """What mixers keep for later tokens, in the order of the calls.

    They are the main stack's, then those of the heads' own layers: the layout of a cache, for building one and for costing it.
    """
    for name, part, place in inside(spec, Place()):
        if name == "stack" or isinstance(part, HeadSpec):
            yield from kept_calls(part, place)


def kept_calls(part: PartSpec, place: Place) -> Iterator[KeptCall]:
    """What the mixers inside a part keep, in the order of the calls."""
    for _, inner, inner_place in inside(part, place):
        if isinstance(inner, BranchSpec):
            every, shorter = inner_place.every, inner_place.every > 1
            for mixer in inner.calls:
                if (shapes := mixer.cache_shapes(inner_place)) is not None:
                    reach = None if shorter else mixer.reach()
                    yield KeptCall(mixer, shapes, mixer.kept_as(), reach, every, shorter)
                    for i, more in enumerate(mixer.beside(inner_place), 1):
                        numbered = shorter or bool(mixer.layers())
                        yield KeptCall(mixer, more.shapes, more.how, None, more.every * every, numbered, more.name, i)
                if mixer.layers():
                    yield from kept_calls(mixer, inner_place)
        elif isinstance(inner, HeadLayersSpec | BlockSpec | SublayerSpec):
            yield from kept_calls(inner, inner_place)
