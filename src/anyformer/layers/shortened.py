"""Layers on fewer tokens, in the middle of a stack: Nawrot et al. 2021, arXiv:2110.13711 (Hourglass), section 2.

Every `every` tokens of a document are a block, the first of them from its first token on, where the paper's first block is the
first token alone. A block is seen from its last token on, so that no token is shown a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.block import mapped
from anyformer.layers.compression import COUNT, EndedBlocks, blocks_of, gathered
from anyformer.layers.context import ForwardContext, Memo, Notes, Store
from anyformer.layers.execution import numberless, recorded
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.spec import (
    BlockSpec,
    Caveat,
    Cost,
    Kept,
    KeptBeside,
    Layers,
    MapSpec,
    MixerSpec,
    Place,
    Placed,
    ResidualSpec,
    Sizes,
    Width,
    Window,
    Workload,
    branches_of,
    check_lent,
    check_residual,
    kept_calls,
    usual,
)

WAITING, GIVEN, BLOCKS = "waiting", "given", "blocks"  # what the next block is made of; what is read until then


class ShortenedSpec(MixerSpec):
    """spread(norm(layers(pool(x)))): a vector for each block of tokens goes through layers of its own, and what they make of
    it is read by each token from the block's last on, until the next one's last. Before a document's first block ends: zeros.

    Positions inside are the numbers of blocks, and so are windows.
    """

    counted_as: ClassVar[str | None] = None

    every: Window  # tokens of a block
    blocks: Annotated[tuple[BlockSpec, ...], Layers]
    pool: LinearSpec | None = None  # of a block's tokens side by side; None: their mean
    spread: LinearSpec | None = None  # to a vector for each token that reads the block; None: all read the same
    residual: ResidualSpec = usual("Add")
    norm: MapSpec | None = None

    def __post_init__(self) -> None:
        self.require("every", self.every > 1, "must be 2 or more: that many tokens become one")
        beside = any(each.compressor or each.transient for each in self.nested(AttentionSpec))
        self.require(
            "blocks", not beside, "read keys of blocks of tokens, and are given blocks already; leave those out"
        )
        check_residual(self.blocks, self.residual)

    @property
    def n_branches(self) -> int:
        """How many branches its layers have."""
        return sum(1 for _ in branches_of(self.blocks))

    def inner(self, place: Place) -> Place:
        """Where its layers stand."""
        if place.n_streams != 1 or place.d_outer:
            raise SpecError("Shortened reads one stream, of the model's width; take Add as residual, and no bottleneck")
        return replace(place, every=self.every * place.every, n_streams=self.residual.n_streams)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        inner_place, width = self.inner(place), self.residual.width(place.d_model)
        if self.spread is None and width != place.d_model:
            raise self.refusal("spread", f"is asked for: {self.residual.kind} gives another width than the stream's")
        check_lent(self.blocks, inner_place, {})
        return {
            "pool": self.pool and (self.pool, place.at(self.every * place.d_model)),
            "blocks": [(block, inner_place) for block in self.blocks],
            "residual": (self.residual.within(self.n_branches), inner_place),
            "norm": self.norm and (self.norm, place.at(width)),
            "spread": self.spread and (self.spread.but(d_out=Width(self.every * place.d_model)), place.at(width)),
        }

    def resized(self, to: Sizes) -> Self:
        return super(ShortenedSpec, self.but(blocks=to.layers(self.blocks))).resized(to)

    def layers(self) -> tuple[BlockSpec, ...]:
        return self.blocks

    def within(self, layer: int, n_layers: int) -> Self:
        """Its layers count from 0 by themselves."""
        return self.but(blocks=tuple(block.within(i, len(self.blocks)) for i, block in enumerate(self.blocks)))

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        given = self.every * place.d_model if self.spread else self.residual.width(place.d_model)
        return {COUNT: (1,), WAITING: (self.every - 1, place.d_model), GIVEN: (1, given)}

    def kept_as(self) -> Kept:
        return "state"

    def beside(self, place: Place) -> tuple[KeptBeside, ...]:
        return (KeptBeside(BLOCKS, {}, every=self.every),)

    def together(self) -> str | None:
        return "makes one of several tokens, which lie in two stretches"

    def caveats(self) -> tuple[Caveat, ...]:
        return (
            Caveat("rewind", "tokens that wait for their block to be whole are one state, and none can be taken back"),
        )

    def cost(self, place: Place, workload: Workload) -> Cost:
        """That of its parts on so many blocks as end with the new tokens; means are no FLOPs."""
        past = workload.past // self.every
        ended = (workload.past + workload.query) // self.every - past
        return super().cost(place, replace(workload, query=ended, past=past))


class Shortened(Part[ShortenedSpec]):
    pool: nn.Module | None
    blocks: Any
    residual: Any
    norm: nn.Module
    spread: nn.Module | None

    def __init__(self, spec: ShortenedSpec, place: Place) -> None:
        super().__init__(spec, place)
        # Of its layers: how many stores they take, how many notes they give. Then the width of what a block gives.
        self.n_stores, self.n_notes = sum(1 for _ in kept_calls(spec, place)), spec.n_branches
        self.width = spec.cache_shapes(place)[GIVEN][-1]

    def forward(
        self, x: Tensor, context: ForwardContext, store: Store, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """[batch, token, d_model] of x of that shape, and the notes of its layers, which take `stores` in turn."""
        every = self.spec.every
        blocks: EndedBlocks = context.once(f"shortened {every}", lambda: blocks_of(context, store, every))
        steps, before = blocks.steps.taken(x), store.state or {}
        waiting = before[WAITING].to(x.dtype) if before else x.new_zeros(len(x), every - 1, x.shape[-1])
        wide = torch.cat((waiting, steps), 1)
        if nothing_ends(blocks, store):
            made, notes = None, [{} for _ in range(self.n_notes)]
            for _ in range(self.n_stores):
                next(stores)
        else:
            pooled = gathered(wide, blocks.last[..., None] + torch.arange(every, device=x.device))
            made, notes = self.shorter(pooled, context, blocks, store, stores)
        given = before[GIVEN].to(x.dtype) if before else x.new_zeros(len(x), 1, self.width)
        given = given if made is None else torch.cat((given, made), 1)
        read = blocks.ends.long().cumsum(1)  # which of these each step reads
        if store.state is not None:
            last, kept = blocks.steps.last(F.pad(read, (1, 0)), 1), blocks.steps.last(wide, every - 1)
            count = blocks.so_far.expand(len(x), 1).to(torch.float32)
            store.keep({COUNT: count, WAITING: kept, GIVEN: gathered(given, last[..., None])[:, 0]})
        y = self.read(given, read, blocks.counted)
        return blocks.steps.given(y), notes

    def shorter(
        self, pooled: Tensor, context: ForwardContext, blocks: EndedBlocks, store: Store, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """What the layers make [batch, block, …] of blocks [batch, block, place, d_model], and their notes."""
        z = pooled.mean(2) if self.pool is None else self.pool(pooled.flatten(2))

        def ending() -> Tokens:
            found = inner_tokens(blocks, context.tokens, self.spec.every, begun=bool(store.state))
            store.part(BLOCKS).put(found)
            return found

        tokens = context.once(f"numbers of blocks of {self.spec.every}", ending)
        ids = None if context.ids is None else of_last(context.ids, blocks)
        memo = context.once(f"memo of blocks of {self.spec.every}", Memo)
        here = replace(context, tokens=tokens, input=z, ids=ids, memo=memo)
        state: Any = self.residual.open(z, here)
        notes: list[Notes] = []
        for block in self.blocks:
            state, more = block(state, self.residual, here, stores)
            notes += more
        y = mapped(self.spec.norm, self.norm, self.residual.close(state)[0], here)
        return y if self.spread is None else self.spread(y), notes

    def read(self, given: Tensor, which: Tensor, count: Tensor) -> Tensor:
        """[batch, step, d_model] of what blocks give [batch, block, width]: of block `which` [batch or 1, step], by `count`."""
        every = self.spec.every
        y = gathered(given, which[..., None])[:, :, 0]
        if self.spread is not None:
            place = (count % every)[..., None, None].expand(len(y), -1, 1, self.place.d_model)
            y = y.unflatten(-1, (every, -1)).gather(2, place)[:, :, 0]
        return y.masked_fill((count < every)[..., None], 0.0)


def nothing_ends(blocks: EndedBlocks, store: Store) -> bool:
    """Whether it is known that no block ends in this pass, as of most tokens that are decoded one by one."""
    if not blocks.last.shape[1]:
        return True
    if store.state is None or recorded() or numberless(blocks.ends):
        return False
    return not bool(blocks.ends.any())


def inner_tokens(blocks: EndedBlocks, tokens: Tokens, every: int, *, begun: bool) -> Tokens:
    """What layers that run on blocks of `tokens` know of each: its number, and what else is known of its last token.

    `begun`: other passes came before this one.
    """
    if tokens.document is None and not begun:
        known = plain_tokens(blocks.last.shape[1], blocks.last.device)
    else:
        number = (blocks.counted.gather(1, blocks.last) // every - 1).clamp(min=0)  # of those that are not there, any
        known = Tokens(number, blocks.tokens.document, name=f"blocks of {every}")
    facts = {name: getattr(tokens, name) for name in ("segment", "mark")}
    return replace(known, **{name: of_last(fact, blocks) for name, fact in facts.items() if fact is not None})


def of_last(fact: Tensor, blocks: EndedBlocks) -> Tensor:
    """Of each block's last token [batch or 1, block] what is known of tokens [batch or 1, token]."""
    rows = len(blocks.last) if len(fact) == 1 else len(fact)
    steps = blocks.steps.taken(fact.expand(rows, -1)[..., None])[..., 0]
    return steps.gather(1, blocks.last.expand(rows, -1))
