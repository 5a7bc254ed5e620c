"""How many pairs of queries and keys an attention computes, and its indexer scores: what their FLOPs go by."""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import add
from typing import TYPE_CHECKING

from anyformer.layers.compression import blocks_seen
from anyformer.layers.counting import tiles
from anyformer.layers.mask import Everything, Mask, SlidingWindow
from anyformer.spec import Window, Workload

if TYPE_CHECKING:
    from anyformer.layers.attention import AttentionSpec


def computed_pairs(spec: AttentionSpec, workload: Workload, n_heads: int) -> int:
    """How many (head, query, key) of a row are computed, keys of blocks among them."""
    query, past, memory = workload.query, workload.past, workload.memory
    of_others = spec.reads == "memory"
    if not workload.causal_exact:
        pairs = n_heads * query * (memory if of_others else past + query)
    elif of_others:
        pairs = spec.mask.pairs_of_memory(query, past, memory, n_heads)
    elif spec.indexer is not None and spec.compressor is None:
        pairs = n_heads * spec.indexer.chosen_pairs(spec.mask, query, past)
    else:
        pairs = spec.mask.pairs(query, past, n_heads)
    pairs += n_heads * query * memory if spec.memory else 0
    most = spec.indexer.top_k if spec.indexer else None
    return pairs + n_heads * _block_pairs(spec, workload, most)


def scored_pairs(spec: AttentionSpec, workload: Workload) -> int:
    """How many (query, key or block) of a row its own indexer scores."""
    assert spec.indexer is not None
    if spec.compressor is not None:
        return _block_pairs(spec, workload, None)
    if workload.causal_exact:
        return spec.indexer.scored(spec.mask, workload.query, workload.past)
    return workload.query * ((workload.past + workload.query) // spec.indexer.mean_of)


def _block_pairs(spec: AttentionSpec, workload: Workload, most: int | None) -> int:
    """How many (query, block beside the keys) of a row there are, where each query sees `most` past ones at most."""
    if spec.transient is not None:
        return workload.query * (workload.query // spec.transient.every)
    if spec.compressor is None:
        return 0
    if not workload.causal_exact:
        return workload.query * ((workload.past + workload.query) // spec.compressor.every)
    return spec.compressor.pairs(workload.query, workload.past, most)


@lru_cache(maxsize=256)
def chosen_pairs(mask: Mask, query: int, past: int, top_k: int, every: int = 1) -> int:
    """How many (query, key) are left of those that a mask shows to `query` new tokens after `past` ones where each keeps
    `top_k` at most, in whole blocks of `every`, and those behind the last: of a causal band in closed form."""
    band, total = mask.band(), past + query
    if every > 1 and mask == Everything():
        return query * (min(total // every * every, top_k) + total % every)
    if every > 1:
        left, before = (
            every * blocks_seen(every, n, top_k // every)
            + n // every * (every * (every - 1) // 2)
            + (n % every) * (n % every + 1) // 2
            for n in (total, past)
        )
        return left - before
    if band is not None and band[1] == 0:
        return (mask & SlidingWindow(size=Window(top_k))).pairs(query, past, 1)
    of_queries = (reduce(add, (seen.sum(-1) for seen in row)) for row in tiles(mask, query, past, total, 1))
    return sum(int(each.clamp(max=top_k).sum()) for each in of_queries)
