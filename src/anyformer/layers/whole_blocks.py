"""Blocks of so many keys, counted from the first token of each document, of which a choice is made as one (`indexer`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.tokens import Tokens, flagged_first


class WholeBlocks(NamedTuple):
    """The blocks of which all tokens are there, in as many columns as there can be."""

    members: Tensor  # [batch or 1, block, place]: which of the keys; of a column that is no block: any
    column: Tensor  # [batch or 1, key]: of its block; the number of columns for a key that no whole block has
    real: Tensor | None  # [batch or 1, block], whether a column is a block; None: all are

    def seen(self, shown: Tensor | None) -> Tensor | None:
        """Which blocks are whole to a query [batch or 1, 1, query, block], of its visible keys [batch or 1, 1, query, key]."""
        real = None if self.real is None else self.real[:, None, None]
        if shown is None:
            return real
        last = self.members[..., -1][:, None, None]
        rows = max(len(shown), len(last))
        found = shown.expand(rows, -1, -1, -1).gather(-1, last.expand(rows, 1, shown.shape[2], -1))
        return found if real is None else found & real

    def spread(self, chosen: Tensor, seen: Tensor | None) -> Tensor:
        """What is said of blocks [batch, 1, query, block], of each key [batch, 1, query, key]; 0 where no whole block is seen."""
        said = chosen if seen is None else chosen.masked_fill(~seen, 0.0)
        column = self.column[:, None, None].expand(len(said), 1, said.shape[2], -1)
        return F.pad(said, (0, 1)).gather(-1, column)


def whole_blocks(keys: Tokens, every: int) -> WholeBlocks:
    """The blocks of `every` keys of each document. How many columns there are follows from shapes."""
    document, n = keys.document, keys.n // every
    number = torch.arange(keys.n, device=keys.position.device)[None]
    if document is None:
        return WholeBlocks(number[:, : n * every].unflatten(1, (n, every)), (number // every).clamp(max=n), None)
    order = torch.argsort(document, dim=1, stable=True)
    document = document.gather(1, order)
    begun = torch.where(document.diff(dim=1, prepend=document[:, :1] - 1) != 0, number, 0).cummax(1).values
    place = (number - begun) % every
    last = number - place + every - 1
    there = (last < keys.n) & (document == document.gather(1, last.clamp(max=keys.n - 1)))
    whole = there & (document > 0)
    starts = whole & (place == 0)
    column = torch.where(whole, starts.cumsum(1) - 1, n)
    first = flagged_first(starts)[:, :n]
    at = (first[..., None] + torch.arange(every, device=number.device)).clamp(max=keys.n - 1)
    members = order.gather(1, at.flatten(1)).unflatten(1, (n, every))
    real = number[:, :n] < starts.sum(1, keepdim=True)
    return WholeBlocks(members, torch.empty_like(column).scatter(1, order, column), real)
