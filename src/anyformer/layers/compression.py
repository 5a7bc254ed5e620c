"""Compressed keys: past tokens beyond a window are read as blocks, each pooled into one. DeepSeek-AI 2026, the report of
DeepSeek-V4 (from memory), sections 2.3.1 (sparse: small blocks that overlap, of which an indexer chooses) and 2.3.2 (heavily
compressed: large ones, all of them).

Blocks are counted from the first token of a document that a row holds, and the incomplete last one is not seen; until it is whole
its tokens wait in a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.execution import exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.recurrence import Steps, steps_of
from anyformer.layers.tokens import Tokens, flagged_first
from anyformer.spec import MapSpec, PartSpec, Place, Placed, Weight, Width, Window

COUNT = "count"  # in the state of a row: tokens of its last document so far


class CompressorSpec(PartSpec):
    """norm(Σ softmax(gate(x) + bias) · value(x)) over the tokens of a block, feature by feature; the bias goes by place in it.

    Its place's shape is the width of what is made.
    """

    flops_as: ClassVar[str | None] = "compression"

    every: Window  # tokens of a block
    # a block is of its own tokens' second halves of features and of the first halves of the block before
    overlap: bool = False
    norm: MapSpec | None = RMSNormSpec(eps=1e-6)

    @property
    def waiting(self) -> int:
        """How many of a row's last tokens the next block may be made of."""
        return (2 if self.overlap else 1) * self.every - 1

    def width(self, place: Place) -> int:
        """The width of what a token gives."""
        return (2 if self.overlap else 1) * place.shape[-1]

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"bias": Weight((self.every, self.width(place)), ("block", "head_dim"), "bias", fill=0.0)}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        each = LinearSpec(d_out=Width(self.width(place)), axes=("head_dim", "d_model"))
        stream = place.at(place.d_model)
        return {"value": (each, stream), "gate": (each, stream), "norm": self.norm and (self.norm, place)}

    def state_shapes(self, place: Place, name: str) -> Mapping[str, tuple[int, ...]]:
        """What of the last tokens waits, by names that begin with this one."""
        shape = (self.waiting, self.width(place))
        return {f"{name} value": shape, f"{name} gate": shape}

    def pairs(self, query: int, past: int, most: int | None = None) -> int:
        """How many (query, block) are visible to `query` new tokens after `past` ones, where each sees `most` at most."""
        return blocks_seen(self.every, past + query, most) - blocks_seen(self.every, past, most)


def blocks_seen(every: int, n: int, most: int | None = None) -> int:
    """How many whole blocks of `every` tokens, `most` at most, the first n tokens see in all."""
    few = n if most is None else min(n, most * every)
    whole, rest = divmod(few, every)
    return every * whole * (whole - 1) // 2 + whole * (rest + 1) + (n - few) * (most or 0)


class EndedBlocks(NamedTuple):
    """The blocks that end within a pass."""

    steps: Steps
    tokens: Tokens  # [batch or 1, block], the facts of each one's last token; of document 0: the row has no more
    last: Tensor  # [batch or 1, block], the step of its last token
    later: Tensor  # [batch or 1, block], whether a block of the same document comes before it
    so_far: Tensor  # [batch or 1, 1], tokens of the last document so far
    counted: Tensor  # [batch or 1, step], tokens of the step's document so far, its own among them
    ends: Tensor  # [batch or 1, step], whether a block ends with it

    def first(self, every: int) -> Tokens:
        """The same by their first tokens, for what turns by positions."""
        return Tokens(self.tokens.position - (every - 1))


def blocks_of(context: ForwardContext, store: Store, every: int) -> EndedBlocks:
    """The blocks of `every` tokens of a pass, of which `store` knows what came before. How many there are follows from shapes."""
    steps, state, tokens = steps_of(context, store), store.state, context.tokens
    document, device = tokens.document, tokens.position.device
    number = torch.arange(1, tokens.n + 1, device=device)[None]
    before = state[COUNT].long() if state else torch.zeros_like(number[:, :1])
    if document is None or steps.order is None or steps.begins is None or steps.real is None or steps.piece is None:
        count = before + number
        ends = count % every == 0
        if not state:
            last = torch.arange(tokens.n // every, device=device)[None] * every + every - 1
            facts = tokens.each(lambda fact: fact.gather(1, last.expand(fact.shape[0], -1)))
            return EndedBlocks(steps, _named(facts, every), last, last >= every, count[:, -1:], count, ends)
        order = number - 1
    else:
        begun = torch.where(steps.begins, number, 0).cummax(1).values
        count = torch.where(steps.piece == 0, before + number, number - begun + 1)
        order, ends = steps.order.expand(count.shape[0], -1), steps.real & (count % every == 0)
    so_far = steps.last(torch.cat((before.expand(count.shape[0], 1), count), 1), 1)
    n = (tokens.n + (every - 1 if store.state is not None else 0)) // every
    last = flagged_first(ends)[:, :n]
    token, whole = order.expand(last.shape[0], -1).gather(1, last), ends.gather(1, last)
    facts = tokens.each(lambda fact: fact.expand(last.shape[0], -1).gather(1, token))
    found = replace(facts, document=facts.documents * whole)
    later = count.gather(1, last) > every
    return EndedBlocks(steps, _named(found, every), last, later, so_far, count, ends)


def _named(facts: Tokens, every: int) -> Tokens:
    """Of the facts of blocks those that count: no span holds of them, and masks ask nothing else."""
    return Tokens(facts.position, facts.documents, facts.order, name=f"blocks of {every}")


class Compressor(Part[CompressorSpec]):
    value: Linear
    gate: Linear
    bias: Tensor
    norm: nn.Module

    def forward(
        self, x: Tensor, blocks: EndedBlocks, state: Mapping[str, Tensor] | None, name: str
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(what is made of the blocks [batch, block, width], what of x waits) of x [batch, token, d_model].

        `state`: what waited before, by names that begin with `name`; None where nothing is kept.
        """
        spec, waiting = self.spec, 0 if state is None else self.spec.waiting
        steps, held = blocks.steps.taken(x), {}
        each: list[Tensor] = []
        for what, made in ((f"{name} value", self.value(steps)), (f"{name} gate", self.gate(steps))):
            if state is not None:
                before = state[what].to(made.dtype) if state else made.new_zeros(len(x), waiting, made.shape[-1])
                made = torch.cat((before, made), 1)
                held[what] = blocks.steps.last(made, waiting)
            each.append(made)
        at = blocks.last[..., None] + waiting - spec.every + 1 + torch.arange(spec.every, device=x.device)
        value, gate = (gathered(made, at) for made in each)
        gate = gate + self.bias
        if spec.overlap:
            width = self.place.shape[-1]
            earlier = at - spec.every
            value = torch.cat((gathered(each[0][..., :width], earlier), value[..., width:]), 2)
            before = gathered(each[1][..., :width], earlier) + self.bias[:, :width]
            before = before.masked_fill(~blocks.later[..., None, None], -torch.inf)
            gate = torch.cat((before, gate[..., width:]), 2)
        made = (gate.softmax(2, dtype=exact_dtype(gate)).to(value.dtype) * value).sum(2)
        return self.norm(made), held


def gathered(x: Tensor, at: Tensor) -> Tensor:
    """[batch, block, place, width] of x [batch, step, width] at steps [batch or 1, block, place]; before the first: the first."""
    at = at.clamp(min=0)
    if at.shape[0] == 1:
        return x[:, at[0]]
    return x.gather(1, at.flatten(1)[..., None].expand(-1, -1, x.shape[-1])).unflatten(1, at.shape[1:])


def beside(keys: Tokens, blocks: Tokens, batch: int) -> Tokens:
    """Tokens, and blocks behind them, which are marked, each [batch, key]."""

    def joined(fact: Any, of_blocks: Any, usual: Tensor, usual_block: Tensor) -> Tensor:
        a, b = usual if fact is None else fact, usual_block if of_blocks is None else of_blocks
        return torch.cat((a.expand(batch, -1), b.expand(batch, -1)), 1)

    none, one = torch.zeros_like(keys.position), torch.ones_like(blocks.position)
    return Tokens(
        joined(keys.position, blocks.position, none, one),
        joined(keys.document, blocks.document, none + 1, one),
        joined(keys.order, blocks.order, keys.position, blocks.position),
        mark=joined(none, one, none, one),
        name=f"{keys.name} and {blocks.name}",
    )
