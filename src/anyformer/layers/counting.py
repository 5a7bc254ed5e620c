"""How many pairs of query and key a mask shows, counted: tile by tile where there is no closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from anyformer.layers.tokens import Tokens, plain_tokens

TILE = 1024  # queries and keys counted at once


Predicate = Callable[[Tokens, Tokens, Tensor], Tensor]


def unmarked(n: int, start: int = 0) -> Tokens:
    """Plain tokens none of which is of a prefix that only token_type_ids tell: no mask says how long that is."""
    tokens = plain_tokens(n, torch.device("cpu"), start)
    return replace(tokens, segment=torch.ones_like(tokens.position))


def ignores_heads(mask: Predicate) -> bool:
    """Whether a mask gives one answer for all heads."""
    one = unmarked(1)
    return mask(one.as_queries(), one.as_keys(), torch.arange(2).view(1, -1, 1, 1)).shape[1] == 1


@lru_cache(maxsize=256)  # a model asks for each of its layers
def counted(mask: Predicate, query: int, past: int, n_heads: int) -> int:
    """How many (head, query, key) a hashable mask shows to `query` new tokens after `past` ones."""
    count, head, total = 0, torch.arange(n_heads).view(1, -1, 1, 1), past + query
    for q in range(past, total, TILE):
        for k in range(0, total, TILE):
            queries = unmarked(min(TILE, total - q), q).as_queries()
            keys = unmarked(min(TILE, total - k), k).as_keys()
            seen = mask(queries, keys, head)
            same = n_heads if seen.shape[1] == 1 else 1  # heads that see the same are counted once
            seen = seen.expand(1, -1, queries.position.shape[2], keys.position.shape[3])
            count += same * int(torch.count_nonzero(seen))
    return count


def sum_of_minima(start: int, stop: int, bound: float) -> int:
    """The sum over i from start to stop - 1 of min(i, bound)."""
    bent = max(start, min(stop, stop if math.isinf(bound) else int(bound)))
    rising = (bent * (bent - 1) - start * (start - 1)) // 2
    return rising + (0 if bent == stop else (stop - bent) * int(bound))
