"""Blocks and stacks: pre-, post-, sandwich- and branch-norm are which norms exist; parallel is a sublayer of two branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.embedding import Embedding
from anyformer.layers.part import Part
from anyformer.layers.recompute import layer_made_again
from anyformer.layers.tokens import Notes, Now, Store
from anyformer.spec import BlockSpec, BranchSpec, StackSpec, SublayerSpec

KEEP_NOTHING = Store()


def mapped(step: Any, x: Tensor, now: Now) -> Tensor:
    """Return what a norm, or another map, makes of x."""
    return step(x, now) if step.spec.reads_tokens else step(x)


class Branch(Part[BranchSpec]):
    norm_in: nn.Module | None
    mixer: nn.Module
    norm_out: nn.Module | None

    def __init__(self, spec: BranchSpec, site: Any) -> None:
        super().__init__(spec, site)
        self.keeps = spec.mixer.cache_shapes(site) is not None

    def forward(self, x: Tensor, now: Now, stores: Iterator[Store]) -> tuple[Tensor, Notes]:
        store = next(stores) if self.keeps else KEEP_NOTHING
        y, notes = self.mixer(x if self.norm_in is None else mapped(self.norm_in, x, now), now, store)
        if self.norm_out is not None:
            y = mapped(self.norm_out, y, now)
        if now.dropout and now.dropout.residual:
            y = F.dropout(y, now.dropout.residual)
        return y, notes


class Sublayer(Part[SublayerSpec]):
    norm_in: nn.Module | None
    branches: Any
    norm_sum: nn.Module | None

    def forward(self, state: Tensor, residual: Any, now: Now, stores: Iterator[Store]) -> tuple[Tensor, list[Notes]]:
        x = residual.read(state)
        if self.norm_in is not None:
            x = mapped(self.norm_in, x, now)
        total, notes = None, []
        for branch in self.branches:
            y, note = branch(x, now, stores)
            total = y if total is None else total + y
            notes.append(note)
        state = residual.write(state, total)
        return state if self.norm_sum is None else mapped(self.norm_sum, state, now), notes


class Block(Part[BlockSpec]):
    sublayers: Any

    def forward(self, state: Tensor, residual: Any, now: Now, stores: Iterator[Store]) -> tuple[Tensor, list[Notes]]:
        if now.recompute == "full":
            return layer_made_again(lambda state, now: self(state, residual, now, stores), state, now)
        notes: list[Notes] = []
        for sublayer in self.sublayers:
            state, more = sublayer(state, residual, now, stores)
            notes += more
        return state, notes


class Stack(Part[StackSpec]):
    embedding: Embedding
    blocks: Any
    residual: Any
    norm: nn.Module | None

    def forward(
        self,
        ids: Tensor,
        now: Now,
        stores: Iterator[Store],
        hidden: list[Tensor] | None = None,
        early: dict[int, Tensor | None] | None = None,
    ) -> tuple[Tensor, list[Notes]]:
        """Return the last hidden state [batch, token, width] and each mixer's notes; `hidden` collects what lies between.

        `early`: at each number of layers in it is put what the stack would give if it had no more.
        """
        x = now.input = self.embedding(ids, now)
        state, notes = self.residual.open(x), []
        for i, block in enumerate(self.blocks):
            if hidden is not None:
                hidden.append(state)
            if early is not None and i in early:
                early[i] = self._closed(state, now)
            state, more = block(state, self.residual, now, stores)
            notes += more
        x = self._closed(state, now)
        if hidden is not None:
            hidden.append(x)
        return x, notes

    def _closed(self, state: Tensor, now: Now) -> Tensor:
        x = self.residual.close(state)
        return x if self.norm is None else mapped(self.norm, x, now)
