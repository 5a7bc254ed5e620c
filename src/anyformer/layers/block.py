"""Blocks and stacks: pre-, post-, sandwich- and branch-norm are which norms exist; parallel is a sublayer of two branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.context import ForwardContext, KeepNothing, Notes, Store
from anyformer.layers.embedding import Embedding
from anyformer.layers.head import Head
from anyformer.layers.memory_efficient import made_again
from anyformer.layers.part import Part
from anyformer.layers.stage import PipelineStage
from anyformer.spec import BlockSpec, BranchSpec, MapSpec, StackSpec, SublayerSpec

# Of a function in a process: of layers, each kind makes one, and one more where they have numbers of their own or lend keys; of a
# kernel, masks and lengths; of losses, numbers of rows, vocabularies, options; of decoding, numbers of rows, lengths of caches.
GRAPHS = 64


def mapped(spec: MapSpec | None, step: Any, x: Tensor, context: ForwardContext) -> Tensor:
    """What a norm, or another map, makes of x; without one, x. The module may be one that stands for the specification's."""
    if spec is None:
        return x
    return step(x, context) if spec.reads_tokens else step(x)


class Branch(Part[BranchSpec]):
    norm_in: nn.Module
    mixer: nn.Module
    norm_out: nn.Module
    then: nn.Module | None

    def __init__(self, spec: BranchSpec, place: Any) -> None:
        super().__init__(spec, place)
        self.n_stores = [
            0 if mixer.cache_shapes(place) is None else 1 + len(mixer.beside(place)) for mixer in spec.calls
        ]

    def forward(self, x: Tensor, context: ForwardContext, stores: Iterator[Store]) -> tuple[Tensor, list[Notes]]:
        """What the branch writes [batch, token, d_model] having read x of that shape, its mixer's notes, and those of layers
        inside that."""
        x = mapped(self.spec.norm_in, self.norm_in, x, context)
        store = _store(stores, self.n_stores[0])
        if self.spec.mixer.layers():
            y, more = self.mixer(x, context, store, stores)
            notes = [{}, *more]
        else:
            y, own = self.mixer(x, context, store)
            notes = [own]
        y = mapped(self.spec.norm_out, self.norm_out, y, context)
        if self.then is not None:
            y, _ = self.then(y, context, _store(stores, self.n_stores[1]))
        if rate := context.rates.residual:
            y = F.dropout(y, rate)
        return y, notes


def _store(stores: Iterator[Store], n: int) -> Store:
    """The first of so many, which has the others for its parts."""
    store = KeepNothing.store if n == 0 else next(stores)
    for _ in range(n - 1):
        next(stores)
    return store


class Sublayer(Part[SublayerSpec]):
    norm_in: nn.Module
    branches: Any
    norm_out: nn.Module
    norm_sum: nn.Module
    skip: nn.Module

    def forward(
        self,
        state: Any,
        residual: Any,
        context: ForwardContext,
        stores: Iterator[Store],
        held: list[Tensor],
        last: bool,
        read: Tensor | None = None,
    ) -> tuple[Any, list[Notes]]:
        """The residual's state of a stream [batch, token, d_model] after its branches, and a note of each.

        `held`: what late branches, of this shape, have for the last sublayer to write; `read`: what they read in its place.
        """

        def branches(x: Tensor, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
            x, notes, written = mapped(self.spec.norm_in, self.norm_in, x, context), [], []
            for branch in self.branches:
                y, note = branch(x, context, stores)
                (held if branch.spec.late else written).append(y)
                notes += note
            y = mapped(self.spec.norm_out, self.norm_out, sum(written[1:], written[0]), context)
            return (sum(held, y) if last else y), notes

        kept = mapped(self.spec.skip, self.skip, state, context)
        given = state if read is None else read
        usual = read is None and self.spec.skip is None
        state, notes = residual.step(kept, branches if usual else lambda _, c: branches(given, c), context)
        return mapped(self.spec.norm_sum, self.norm_sum, state, context), notes


def in_turn(
    sublayers: Iterable[Sublayer],
    state: Any,
    residual: Any,
    context: ForwardContext,
    stores: Iterator[Store],
    read: Tensor | None = None,
) -> tuple[Any, list[Notes]]:
    """The residual's state of a stream [batch, token, d_model] after these sublayers, and their notes.

    `residual`: how they read and write it; a list has one for each. `read`: what the first reads in its place.
    """
    notes: list[Notes] = []
    held: list[Tensor] = []
    each = list(sublayers)  # not [*…], which PyTorch 2.11's compiler cannot read
    for i, sublayer in enumerate(each):
        own = residual[i] if isinstance(residual, list) else residual
        state, more = sublayer(state, own, context, stores, held, i == len(each) - 1, None if i else read)
        notes += more
    return state, notes


class Block(Part[BlockSpec]):
    sublayers: Any
    connection: Any
    backend: str | None = None  # of torch.compile, by which a pass of training computes it; None: as it is written

    def forward(
        self, state: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Any, list[Notes]]:
        """The residual's state of a stream [batch, token, d_model] after its sublayers, and their notes."""
        if context.recompute == "full" and not residual.spec.undoes:
            return made_again(lambda state, context: self(state, residual, context, stores), state, context=context)
        compiles = self.backend is not None and context.trains and not residual.spec.undoes
        # What holds layers leaves it to them, each with its own memo.
        if compiles and not any(mixer.layers() for mixer in self.spec.mixers):
            for part in self.modules():
                if isinstance(part, Part):
                    part.prepare(state, context)
            return _compiled(self.backend)(self, state, residual, context, stores)
        return self.compute(state, residual, context, stores)

    def compute(
        self, state: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Any, list[Notes]]:
        """What `forward` gives, kept whole for the backward pass."""
        if self.connection is not None:
            return self.connection(state, self.sublayers, residual, context, stores)
        return in_turn(self.sublayers, state, residual, context, stores)


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Have the model's layers computed by torch.compile in passes of training: layers of one kind share one graph. On a GPU
    the loss between its products, too.

    A deep model takes no longer to compile than a shallow one. What is made again in the backward pass is made again
    by the same graph; layers with residuals that undo stay as they are written, since a graph would keep what those drop.
    """
    for module in model.modules():
        if isinstance(module, Block | Head):
            module.backend = backend


@cache
def _compiled(backend: str) -> Callable[..., tuple[Any, list[Notes]]]:
    keep_graphs()
    return torch.compile(Block.compute, backend=backend)


def keep_graphs() -> None:
    """Let PyTorch's compiler keep `GRAPHS` of each function: before 2.13 a function has no limit of its own."""
    from torch._dynamo import config  # slow to import

    config.recompile_limit = max(GRAPHS, config.recompile_limit)


class Stack(Part[StackSpec]):
    embedding: Embedding
    blocks: Any
    residual: Any
    norm: nn.Module
    stage: PipelineStage | None = None  # where several processes have some of the layers each

    def forward(
        self,
        ids: Tensor,
        context: ForwardContext,
        stores: Iterator[Store],
        hidden: list[Tensor] | None = None,
        early: dict[int, Tensor | None] | None = None,
        carried: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Notes]]:
        """The last hidden state [batch, token, width] and each mixer's notes; `hidden` collects what lies between.

        `early`: at each number of layers in it is put what the stack would give if it had no more. `carried`: what the stage
        before gave, each [batch, …]; what a stage that is not the last gives is the residual's state.
        """
        context.ids, notes, early = ids, [], {} if early is None else early
        if self.stage is None or self.stage.first:
            context.input = self.embedding(ids, context)
            state = self.residual.open(context.input, context)
        else:
            state = self.stage.enter(carried, context, next(stores))
        for i, block in enumerate(self.blocks, self.blocks.here.start):
            if hidden is not None or i in early:
                x, state = self.residual.close(state)
                if hidden is not None:
                    hidden.append(state if isinstance(state, Tensor) else x)
                if i in early:
                    early[i] = mapped(self.spec.norm, self.norm, x, context)
            state, more = block(state, self.residual, context, stores)
            notes += more
        if self.stage is not None and not self.stage.last:
            return state, notes
        x = mapped(self.spec.norm, self.norm, self.residual.close(state)[0], context)
        if hidden is not None:
            hidden.append(x)
        return x, notes
