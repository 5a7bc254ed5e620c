"""How many pairs of queries and keys an attention computes, and its indexer scores: what their FLOPs go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.spec import Workload

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
