"""Pairs of query and key in closed form, against the mask itself, counted pair by pair."""

from __future__ import annotations

import pytest
import torch

from anyformer.layers import (
    AdjacentBlocks,
    Causal,
    Everything,
    Heads,
    LocalAndVertical,
    Mask,
    SameBlock,
    SlidingWindow,
    Strided,
)
from anyformer.layers.counting import counted
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import Window

NEAR = Causal() & SlidingWindow(size=Window(5))
MASKS = [
    Causal() & LocalAndVertical(size=Window(4), near=Window(3), stride=Window(5)),
    LocalAndVertical(size=Window(3), near=Window(1), stride=Window(2)) & Causal(),
    Causal() & Strided(stride=Window(7)),
    Causal() & Strided(stride=Window(1)),
    Heads(masks=(NEAR, Causal() & Strided(stride=Window(4)))),
    Heads(masks=(NEAR, Causal() & LocalAndVertical(size=Window(4), near=Window(2), stride=Window(3)), Everything())),
    LocalAndVertical(size=Window(4), near=Window(2), stride=Window(3)),
    Causal() & SameBlock(size=Window(8)),
    AdjacentBlocks(size=Window(5), before=2) & Causal(),
    Causal() & AdjacentBlocks(size=Window(16), before=0, after=1),
]


def by_hand(mask: Mask, query: int, past: int, n_heads: int) -> int:
    queries = plain_tokens(query, torch.device("cpu"), past).as_queries()
    keys = plain_tokens(past + query, torch.device("cpu"), 0).as_keys()
    head = torch.arange(n_heads).view(1, -1, 1, 1)
    return int(mask(queries, keys, head).expand(1, n_heads, query, past + query).sum())


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: repr(mask)[:40])
@pytest.mark.parametrize(("query", "past", "n_heads"), [(50, 0, 3), (37, 11, 8), (1, 90, 12), (64, 64, 32), (1, 0, 1)])
def test_pairs_are_those_of_the_mask(mask: Mask, query: int, past: int, n_heads: int) -> None:
    assert mask.pairs(query, past, n_heads) == by_hand(mask, query, past, n_heads)
    assert counted(mask, query, past, n_heads) == by_hand(mask, query, past, n_heads)


def test_beyond_a_tile() -> None:
    mask = Causal() & Strided(stride=Window(3))
    assert counted(mask, 1500, 0, 2) == mask.pairs(1500, 0, 2) == 2 * sum(p // 3 + 1 for p in range(1500))


def test_blocks_are_counted_at_any_length() -> None:
    n, stop = 2**40, 2**40 + 17
    own = Causal() & SameBlock(size=Window(8192))
    assert own.pairs(n, 0, 3) == 3 * (n // 8192) * (8192 * 8193 // 2)
    assert (Causal() & AdjacentBlocks(size=Window(64), before=2)).pairs(64, n, 1) == sum(128 + i + 1 for i in range(64))
    whole = Causal() & LocalAndVertical(size=Window(64), near=Window(16), stride=Window(1))  # every block: all pairs
    assert whole.pairs(n, 17, 3) == 3 * (stop * (stop + 1) - 17 * 18) // 2
    near = Causal() & LocalAndVertical(size=Window(64), near=Window(16), stride=Window(2**40))
    assert near.pairs(64, n - 64, 1) == sum(64 * 15 + i + 1 for i in range(64))
