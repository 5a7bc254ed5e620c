"""How many pairs of queries and keys a mask shows: by tiles, and the sums that closed forms are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.layers.tokens import unmarked

if TYPE_CHECKING:
    from anyformer.layers.mask import Mask

TILE = 1024  # queries and keys that are looked at together


@lru_cache(maxsize=256)  # a model asks for each of its layers
def counted(mask: Mask, query: int, past: int, n_heads: int, memory: int | None = None) -> int:
    """How many (head, query, key) a mask shows to `query` new tokens after `past` ones; of a `memory` of so many tokens."""
    n_keys = past + query if memory is None else memory
    each = (seen for row in tiles(mask, query, past, n_keys, n_heads) for seen in row)
    return sum(n_heads // seen.shape[1] * int(torch.count_nonzero(seen)) for seen in each)


def tiles(mask: Mask, query: int, past: int, n_keys: int, n_heads: int) -> Iterator[Iterator[Tensor]]:
    """What a mask shows to `query` new tokens after `past` ones: for some of them in turn, key tile by key tile.

    Each tile is [1, heads, query, key], of one head where all see the same.
    """
    heads = torch.arange(n_heads).view(1, -1, 1, 1)
    for q in range(0, query, TILE):
        queries = unmarked(min(TILE, query - q), past + q).as_queries()
        each = (unmarked(min(TILE, n_keys - k), k).as_keys() for k in range(0, n_keys, TILE))
        yield (
            mask(queries, keys, heads).expand(1, -1, queries.position.shape[2], keys.position.shape[3]) for keys in each
        )


def sum_of_minima(start: int, stop: int, bound: float) -> int:
    """The sum over i from start to stop - 1 of min(i, bound)."""
    bent = max(start, min(stop, stop if math.isinf(bound) else int(bound)))
    rising = (bent * (bent - 1) - start * (start - 1)) // 2
    return rising + (0 if bent == stop else (stop - bent) * int(bound))


def sum_of_floors(n: int, by: int) -> int:
    """The sum of i // by for i from 0 to n - 1."""
    times, rest = divmod(n, by)
    return by * times * (times - 1) // 2 + times * rest
