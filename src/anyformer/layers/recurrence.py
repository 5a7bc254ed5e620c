"""Mixers with a state: what a row leaves to later tokens is of one size however long the row was, and each pass replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.layers.context import Dropout, ForwardContext, KeepNothing, Notes, Store
from anyformer.layers.execution import recorded
from anyformer.layers.part import Part
from anyformer.layers.tokens import flagged_first
from anyformer.spec import Caveat, Cost, HeadMap, Kept, MixerSpec, Place, Workload


@dataclass(frozen=True)
class Steps:
    """How a recurrence goes through the rows of a pass: real tokens first, as they follow each other, and padding behind them.

    Then the state behind the last step is the one behind the last real token, wherever a row is padded.
    """

    order: Tensor | None = None  # [batch or 1, step]: the token of each step; None: they are the same
    step: Tensor | None = None  # [batch or 1, token]: the step of each token; None: they are the same
    real: Tensor | None = None  # [batch or 1, step]; None: all are
    # whether a document begins [batch or 1, step], where nothing is left of what was before; None: nowhere
    begins: Tensor | None = None
    # [batch or 1, step]: 0 in the document that the state is of, then 1, 2 … as others begin; None: all of that one
    piece: Tensor | None = None
    dropout: Dropout | None = None  # the pass's rates; None: evaluation

    def taken(self, x: Tensor) -> Tensor:
        """Steps [batch, step, width] of tokens x [batch, token, width]."""
        return _in_order(x, self.order)

    def given(self, y: Tensor) -> Tensor:
        """Tokens [batch, token, width] of steps y [batch, step, width]."""
        return _in_order(y, self.step)

    def kept(self, x: Tensor) -> Tensor:
        """[batch, step, …] with zeros for padding."""
        return x if self.real is None else x * self.real.view(*self.real.shape, *(1,) * (x.dim() - 2))

    def preceding(self, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """(the step before each, zeros where a document begins [batch, step, width], the last real one [batch, 1, width]) of x.

        `last` is the one before, of the document that goes on; None: there is none.
        """
        wide = torch.cat((torch.zeros_like(x[:, :1]) if last is None else last.to(x.dtype), x), 1)
        before = wide[:, :-1]
        before = before if self.begins is None else before.masked_fill(self.begins[..., None], 0.0)
        return before, self.last(wide, 1)

    def last(self, wide: Tensor, n: int, filling: int = 0) -> Tensor:
        """The last n [batch, n, …] before padding, of n that were before and the steps [batch, n + step, …]; `filling` for those
        of other documents."""
        if self.real is None:
            return wide[:, wide.shape[1] - n :]
        at = self.real.sum(1, keepdim=True) + torch.arange(n, device=wide.device)
        each = (slice(None), slice(None), *(None,) * (wide.dim() - 2))
        found = wide.gather(1, at[each].expand(len(wide), -1, *wide.shape[2:]))
        if self.piece is None:
            return found
        pieces = F.pad(self.piece, (n, 0))
        same = pieces.gather(1, at) == pieces[:, -1:]
        return torch.where(same[each], found, filling)


def _in_order(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.gather(1, order[..., None].expand_as(x))


def steps_of(context: ForwardContext, store: Store) -> Steps:
    """The steps of a pass. Raises InputError for what has an order of its own, and for a document in several pieces."""
    tokens = context.tokens
    if tokens.order is not None:
        raise InputError("a state is read in the order of the row; leave the fact 'order' out, or take attention")
    document = tokens.document
    if document is None:
        return Steps(dropout=context.dropout)
    return context.once("steps", lambda: replace(_steps(document, store.document), dropout=context.dropout))


def _steps(document: Tensor, before: Tensor | None) -> Steps:
    """Of tokens' documents [batch or 1, token], after those of document `before` [batch, 1] that a store holds."""
    order = flagged_first(document > 0)
    document = document.gather(1, order)
    if before is None:
        before = torch.zeros_like(document[:, :1])
    elif document.shape[0] < before.shape[0]:
        order, document = order.expand(before.shape[0], -1), document.expand(before.shape[0], -1)
    real = document > 0
    begins = real & (document.diff(dim=1, prepend=before) != 0)
    piece = begins.cumsum(1)
    if not recorded() and document.device.type != "meta":
        runs, distinct = (_changes(each).sum(1) for each in (document, document.sort(1).values))
        if bool((runs > distinct).any() | (real & (piece > 0) & (document == before)).any()):
            raise InputError(
                "a document lies in several pieces of a row, and a state cannot go back to it; pack each in one piece"
            )
    return Steps(order, order.argsort(1), real, begins, piece)


def _changes(document: Tensor) -> Tensor:
    """Whether each token [batch, token] is the first of a run of one document, padding apart."""
    return (document > 0) & (document.diff(dim=1, prepend=torch.zeros_like(document[:, :1])) != 0)


class RecurrentSpec(MixerSpec, abstract=True):
    """A mixer with a state. `cache_shapes` gives the state of one row, by name; its module is a `Recurrent`."""

    counted_as: ClassVar[str | None] = "recurrence"
    flops_as: ClassVar[str | None] = "projections"

    def kept_as(self) -> Kept:
        return "state"

    def together(self) -> str | None:
        return "has a state that goes from token to token"

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("rewind", "a state holds all tokens so far as one sum, and none can be taken back"),)

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The maps, and the products by which chunks of tokens are mixed."""
        mixed = self.chunk_flops(workload.query, workload.past) * workload.batch
        return super().cost(place, workload) + Cost({"recurrence": mixed} if mixed else {})

    def chunk_flops(self, query: int, past: int) -> int:
        """The FLOPs of those products for so many new tokens of a row."""
        return 0


def head_maps(keys: tuple[int, int], values: tuple[int, int]) -> tuple[HeadMap, ...]:
    """`MixerSpec.heads` of maps called q, k, v and out: of so many (heads, features of one)."""
    of_keys = HeadMap("query", "q", *keys), HeadMap("key", "k", *keys)
    return *of_keys, HeadMap("value", "v", *values), HeadMap("output", "out", *values)


R = TypeVar("R", bound=RecurrentSpec)


class Recurrent(Part[R], Generic[R]):
    """The module of a mixer with a state; a subclass writes `run`."""

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        steps = steps_of(context, store)
        y, state = self.run(steps.taken(x), steps, store.state)
        if store.state is not None:
            store.keep(state)
        return steps.given(y), {}

    def prepare(self, x: Tensor, context: ForwardContext) -> None:
        steps_of(context, KeepNothing.store)

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the state behind the last step) of x [batch, step, d_model].

        `state` is the one before, each [batch, …]: empty before the first token, None where none is kept; then nobody reads
        the one behind.
        """
        raise TypeError(f"{self.spec.kind} does not run")
