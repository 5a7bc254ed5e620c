"""Which blocks of queries and keys hold a visible pair: worked out once a pass, from what the mask's predicate says of bounds.

Nothing here reads a tensor without numbers: of plain tokens the positions are known by their span, and what cannot be read
could be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.kernels.intervals import FAR, Bits, BlockVisibility, IndexRange, Numbers, bounds
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.execution import numberless
from anyformer.layers.mask import Mask, shown
from anyformer.layers.tokens import FACTS, Span, Tokens

TILE = 64  # queries, and keys, that are looked at together
# From so many times as many keys in whole blocks as in others on, those have a call of their own, without a mask.
WHOLE = 8
JOINED, MORE = 128, 1.15  # queries that one call takes, where it computes at most so many times the pairs of several
AT_ONCE = 2**22  # bounds worked out together

ALL, ANYTHING = BlockVisibility(np.array(True), np.array(True)), BlockVisibility(np.array(True), np.array(False))

Facts = Mapping[str, Numbers | None]


class Tile(NamedTuple):
    """Queries and the keys that some of them see."""

    queries: Numbers
    keys: Numbers
    masked: bool  # whether a pair among them is, or may be, hidden


class TileGroup(NamedTuple):
    """The pieces of some rows and heads, under a mask that shows no pair that another section's shows."""

    mask: Mask
    row: int | None  # None: every row
    heads: Numbers
    pieces: tuple[Tile, ...]

    @property
    def pairs(self) -> int:
        """How many (head, query, key) of a row are computed."""
        return len(self.heads) * sum(len(piece.queries) * len(piece.keys) for piece in self.pieces)


def beyond_a_plan(kernel: str, spec: AttentionSpec) -> str | None:
    """Why the kernel of this name, which computes blocks of a plan, cannot compute an attention, whatever its scores; or None."""
    if spec.relative_values is not None:
        return f"{kernel} gives no weights, which {spec.relative_values.kind} are made of"
    if spec.memory:
        return f"{kernel} has no keys of another text beside a layer's own (memory)"
    if (beside := spec.compressor or spec.transient) is not None:
        return f"{kernel} has no keys of blocks of tokens ({beside.kind})"
    return None if spec.indexer is None else f"{kernel} has no keys chosen by what tokens say (Indexer)"


def plan(mask: Mask, query: Tokens, key: Tokens, n_heads: int, tile: int = TILE) -> tuple[TileGroup, ...]:
    """The blocks to compute; rows and heads that see alike have theirs in common."""
    if query.span and key.span:
        mask = mask.within(query.span, key.span)
        if not key.turned and all(tokens.segment is None and tokens.mark is None for tokens in (query, key)):
            return _plain(mask, query.span, key.span, n_heads, tile)
    of_queries, of_keys = _facts(query), _facts(key)
    rows, parts = _n_rows(of_queries, of_keys), _parts(mask, n_heads)
    if rows == 1:
        return tuple(_row(parts, _of_row(of_queries, 0), _of_row(of_keys, 0), tile, None))
    each = ((_of_row(of_queries, row), _of_row(of_keys, row), row) for row in range(rows))
    return tuple(s for queries, keys, row in each for s in _row(parts, queries, keys, tile, row))


def tiles(mask: Mask, query: Tokens, key: Tokens, n_heads: int, tile: int) -> BlockVisibility:
    """Whether blocks of queries and keys, as they follow each other, may hold a visible pair, and must hold only such.

    Each [row or 1, head or 1, block of queries, block of keys].
    """
    of_queries, of_keys = _facts(query), _facts(key)
    found: list[BlockVisibility] = []
    for row in range(_n_rows(of_queries, of_keys)):
        queries, keys = (_of_row(facts, row) for facts in (of_queries, of_keys))
        i, j = _blocks(queries, None, tile), _blocks(keys, None, tile)
        rows, columns = _bounded(queries, i, (1, 1, len(i), 1)), _bounded(keys, j, (1, 1, 1, len(j)))
        found.append(_asked(mask, rows, columns, np.arange(n_heads).reshape(1, -1, 1, 1)))
    return BlockVisibility(*(np.concatenate(bits) for bits in zip(*found, strict=True)))


@lru_cache(maxsize=32)
def _plain(mask: Mask, query: Span, key: Span, n_heads: int, tile: int) -> tuple[TileGroup, ...]:
    queries, keys = ({"position": np.arange(*span)} for span in (query, key))
    keys["end"] = np.full_like(keys["position"], key[1] - 1)
    return tuple(_row(_parts(mask, n_heads), queries, keys, tile, None))


def _facts(tokens: Tokens) -> dict[str, Numbers | None]:
    """Each fact that is there as [row, token]; what has no numbers lies anywhere, and is told apart by -FAR."""
    facts: dict[str, Numbers | None] = {name: _numbers(getattr(tokens, name)) for name in FACTS}
    if tokens.span and not tokens.turned:
        facts["position"] = np.arange(*tokens.span)[None]
    position, document = facts["position"], facts["document"]
    assert position is not None
    facts["end"] = ends(position, document)
    return facts


def ends(position: Numbers, document: Numbers | None) -> Numbers:
    """The position of the last token of each token's document [row, token]."""
    if document is None:
        return np.broadcast_to(position.max(-1, keepdims=True), position.shape)
    position, document = np.broadcast_arrays(position, document)
    out = np.empty_like(position)
    for row in range(len(out)):
        _, which = np.unique(document[row], return_inverse=True)
        last = np.zeros(int(which.max()) + 1, dtype=np.int64)
        np.maximum.at(last, which, position[row])
        out[row] = last[which]
    return out


def with_ends(keys: Tokens) -> Tokens:
    """Keys that know where their documents end, which some of them alone could not say."""
    if keys.document is None:
        return replace(keys, end=keys.ends.expand_as(keys.position))
    if numberless(keys.position):
        return keys
    of_keys = ends(keys.position.cpu().numpy(), keys.document.cpu().numpy())
    return replace(keys, end=torch.as_tensor(of_keys, device=keys.position.device))


def pairs_of_row(sections: Sequence[TileGroup]) -> int:
    """How many (head, query, key) of a row are computed, in the mean of all rows."""
    rows = max(1, len({section.row for section in sections}))
    return sum(section.pairs for section in sections) // rows


def _numbers(fact: Tensor | None) -> Numbers | None:
    if fact is None:
        return None
    if numberless(fact):
        return np.full(tuple(fact.shape), -FAR)
    return fact.detach().cpu().numpy().astype(np.int64)


def _n_rows(*given: Facts) -> int:
    return max(1 if fact is None else len(fact) for facts in given for fact in facts.values())


def _of_row(facts: Facts, row: int) -> dict[str, Numbers | None]:
    return {name: None if fact is None else fact[min(row, len(fact) - 1)] for name, fact in facts.items()}


def _bounded(facts: Facts, blocks: Numbers, shape: tuple[int, ...]) -> Any:
    """The facts of blocks [block, token] as bounds, shaped as a predicate takes them."""
    return _Tokens({name: _shaped(fact[blocks], shape) for name, fact in facts.items() if fact is not None})


def _shaped(numbers: Numbers, shape: tuple[int, ...]) -> IndexRange:
    each = bounds(numbers)
    unknown = each.lo == -FAR
    hi, step = np.where(unknown, FAR, each.hi), np.where(unknown, 1, each.step)
    return IndexRange(*(part.reshape(shape) for part in (each.lo, hi, step)))


class _Tokens(Tokens):
    """Facts as bounds, which `each` and the rest of `Tokens` treat as tensors."""

    def __init__(self, facts: dict[str, Any]) -> None:
        for name in (*FACTS, "end"):
            object.__setattr__(self, name, facts.get(name))


def _asked(mask: Mask, query: Any, key: Any, heads: Numbers) -> BlockVisibility:
    """What the predicate says of each pair of blocks; where it asks what is not known of bounds, a pair may be anything."""
    head: Any = IndexRange(heads, heads, np.zeros_like(heads))
    try:
        found: Any = shown(mask, query, key, head)
    except (TypeError, AttributeError):
        found = ANYTHING
    if not isinstance(found, BlockVisibility):
        found = ALL if found is None else ANYTHING
    shape = np.broadcast_shapes(*(bits.shape for bits in (*found, query.position.lo, key.position.lo)))
    return BlockVisibility(*(np.broadcast_to(bits, shape) for bits in found))


def _parts(mask: Mask, n_heads: int) -> list[tuple[Mask, Numbers]]:
    """Masks that show no pair of a head twice, and the heads that have each."""
    alike: dict[Mask, list[int]] = {}
    for head in range(n_heads):
        alike.setdefault(mask.of_head(head), []).append(head)
    return [(part, np.array(heads)) for one, heads in alike.items() for part in one.disjoint()]


def _row(
    parts: Iterable[tuple[Mask, Numbers]], query: Facts, key: Facts, tile: int, row: int | None
) -> Iterator[TileGroup]:
    for part, heads in parts:
        of_queries, of_keys = (_blocks(facts, part.period(), tile) for facts in (query, key))
        yield from _sections(part, query, key, of_queries, of_keys, heads, row)


def _blocks(facts: Facts, period: int | None, tile: int) -> Numbers:
    """The tokens of each block [block, token], the last repeated where there are fewer."""
    position = facts["position"]
    assert position is not None
    n = len(position)
    rests = np.zeros(n, dtype=np.int64) if period is None or n <= period else position % period
    alike = [np.flatnonzero(rests == rest) for rest in np.unique(rests)]
    rounded = (np.minimum(np.arange(-(-len(few) // tile) * tile), len(few) - 1) for few in alike)
    return np.concatenate([few[at].reshape(-1, tile) for few, at in zip(alike, rounded, strict=True)])


def _sections(
    mask: Mask, query: Facts, key: Facts, of_queries: Numbers, of_keys: Numbers, heads: Numbers, row: int | None
) -> Iterator[TileGroup]:
    n, m = len(of_queries), len(of_keys)
    rows, columns = _bounded(query, of_queries, (1, 1, n, 1)), _bounded(key, of_keys, (1, 1, 1, m))
    may, must = (bits[0] for bits in _asked(mask, rows, columns, heads.reshape(1, -1, 1, 1)))
    seen = _keys_seen(mask, query, key, of_queries, of_keys, heads, may, must)
    alike: dict[bytes, list[int]] = {}
    for at in range(len(may)):
        alike.setdefault(np.packbits(seen[at]).tobytes() + np.packbits(must[at]).tobytes(), []).append(at)
    for same in alike.values():
        pieces = tuple(_pieces(seen[same[0]], must[same[0]], of_queries, of_keys))
        if pieces:
            yield TileGroup(mask, row, heads if len(may) == 1 else heads[same], pieces)


def _keys_seen(
    mask: Mask,
    query: Facts,
    key: Facts,
    of_queries: Numbers,
    of_keys: Numbers,
    heads: Numbers,
    may: Bits,
    must: Bits,
) -> Bits:
    """Which keys each block of queries may see [head, block of queries, block of keys, key]."""
    tile = of_keys.shape[1]
    first = np.ones_like(of_keys, dtype=bool)
    first[:, 1:] = of_keys[:, 1:] != of_keys[:, :-1]  # not the last key repeated
    seen = may[..., None] & first
    head, i, j = np.nonzero(may & ~must)
    for at in range(0, len(head), AT_ONCE // tile):
        some = slice(at, at + AT_ONCE // tile)
        h, q, k = head[some], i[some], j[some]
        rows = _bounded(query, of_queries[q], (-1, 1, 1, 1))
        columns = _bounded(key, of_keys[k][..., None], (len(k), 1, 1, tile))
        seen[h, q, k] &= _asked(mask, rows, columns, heads[h].reshape(-1, 1, 1, 1)).may[:, 0, 0]
    return seen


def _pieces(seen: Bits, must: Bits, of_queries: Numbers, of_keys: Numbers) -> Iterator[Tile]:
    for blocks in _joined(seen.reshape(len(seen), -1), of_queries.shape[1]):
        each = of_queries[blocks].ravel()
        queries = each[np.append(True, each[1:] != each[:-1])]
        some: Bits = np.any(seen[blocks], axis=0)
        whole = np.all(must[blocks], axis=0)[:, None] & some
        keys, plain = of_keys[some], of_keys[whole]
        if not len(keys):
            continue
        if len(plain) in (0, len(keys)) or len(plain) < WHOLE * (len(keys) - len(plain)):
            yield Tile(queries, np.sort(keys), len(plain) < len(keys))
        else:
            yield Tile(queries, np.sort(plain), masked=False)
            yield Tile(queries, np.sort(of_keys[some & ~whole]), masked=True)


def _joined(seen: Bits, tile: int) -> Iterator[slice]:
    """Blocks of queries [block, key] that follow each other and see so nearly the same keys that one call takes them."""
    first, union, alone = 0, seen[0], int(seen[0].sum())
    for i in range(1, len(seen)):
        both, of_both = union | seen[i], alone + int(seen[i].sum())
        n = i + 1 - first
        if n * tile > JOINED or n * int(both.sum()) > MORE * of_both:
            yield slice(first, i)
            first, union, alone = i, seen[i], int(seen[i].sum())
        else:
            union, alone = both, of_both
    yield slice(first, len(seen))
