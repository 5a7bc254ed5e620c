"""Attention on the blocks that hold a visible pair, whatever mask says so; exact, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels import blocks
from anyformer.kernels.intervals import Numbers
from anyformer.kernels.plan import TILE, Tile, TileGroup, beyond_a_plan, pairs_of_row, plan, with_ends
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.execution import product_dtype
from anyformer.layers.mask import Mask, shown
from anyformer.layers.tokens import Bias, Tokens

AT_ONCE = 2**18  # pairs whose mask is written together
NOTHING = np.empty(0, dtype=np.int64)


class Planned(NamedTuple):
    """What the operator is told: its pieces, the tokens that are no slices, what is added, how many pairs it computes."""

    pieces: list[int]
    tokens: Tensor
    added: Tensor | None  # of all pieces one after the other
    pairs: int  # (head, query, key), of all rows


class Blocked:
    """Whole blocks that a mask hides are never computed; the plan comes from the mask's predicate, once a pass."""

    name = "blocked"
    brings = False

    def __init__(self, tile: int = TILE) -> None:
        self.tile = tile

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why the kernel cannot compute this attention, or None."""
        if (why := beyond_a_plan(self.name, spec)) is not None:
            return why
        of_content = [score.kind for score in spec.scores if score.reads_content]
        return f"blocked has no scores of what tokens say ({', '.join(of_content)})" if of_content else None

    def plan(self, mask: Mask, query: Tokens, key: Tokens, n_heads: int) -> tuple[TileGroup, ...]:
        """The blocks that hold a visible pair."""
        return plan(mask, query, key, n_heads, self.tile)

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Planned:
        """The blocks, and what is added to their scores: a bias, and -inf for pairs that are hidden."""
        return laid_out(self.plan(mask, query, key, n_heads), bias, query, key, n_heads)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Planned, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, value_dim], and no weights; a row that sees no key gives 0."""
        value_width = v.shape[-1]
        width = max(q.shape[-1], value_width)
        dtype = product_dtype(q)
        q, k, v = (F.pad(x, (0, width - x.shape[-1])).to(dtype) for x in (q, k, v))
        added = None if seen.added is None else seen.added.to(q.dtype)
        given = added, how.sink, seen.tokens, blocks.seeded(how.dropout), seen.pieces, seen.pairs
        y, _ = blocks.attention(q, k, v, *given, how.scale, how.softcap, how.dropout)
        return y[..., :value_width], None


def laid_out(sections: Sequence[TileGroup], bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Planned:
    """The sections as the operator takes them."""
    device = query.position.device
    pieces: list[int] = []
    index: list[Numbers] = []
    added: list[Tensor] = []
    at = indexed = 0
    known: dict[int, np.ndarray[Any, Any]] = {}  # by row, which queries of which heads have values already

    def placed(tokens: Numbers) -> tuple[int, int, int]:
        nonlocal indexed
        run = _run(tokens)
        if run is None:
            index.append(tokens)
            indexed += len(tokens)
            run = indexed - len(tokens), indexed, 0
        return run

    key = with_ends(key)
    for section in sections:
        row = -1 if section.row is None else section.row
        done = known.setdefault(row, np.zeros((n_heads, query.n), dtype=bool))
        begins: dict[int, tuple[int, int]] = {}
        for same in _alike(section, bias):
            made = _made(section, [section.pieces[i] for i in same], bias, query, key, n_heads)
            for i, each in zip(same, made, strict=True):
                begins[i] = at, each.shape[0]
                at += each.numel()
            added.append(made.flatten())
        for i, piece in enumerate(section.pieces):
            tokens = *placed(piece.queries), *placed(piece.keys)
            start, per_head = begins.get(i, (-1, 1))
            first = 0
            for h0, h1, step in _runs(section.heads):
                n = len(range(h0, h1, step))
                here = start if per_head == 1 else start + first * len(piece.queries) * len(piece.keys)
                again = bool(done[h0:h1:step][:, piece.queries].any())
                pieces += [row, h0, h1, step, *tokens, here, 1 if per_head == 1 else n, again]
                first += n
            done[section.heads[:, None], piece.queries] = True
    return Planned(
        [int(number) for number in pieces],
        torch.tensor(np.concatenate(index) if index else NOTHING, device=device),
        torch.cat(added) if added else None,
        pairs_of_row(sections),
    )


def _alike(section: TileGroup, bias: Bias | None) -> Iterable[list[int]]:
    """The numbers of pieces that something is added to, those of one shape together, as many as lie in a core's cache."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, piece in enumerate(section.pieces):
        if piece.masked or bias is not None:
            alike.setdefault((len(piece.queries), len(piece.keys)), []).append(i)
    for (n, m), each in alike.items():
        some = max(1, AT_ONCE // (n * m))
        yield from (each[at : at + some] for at in range(0, len(each), some))


def _made(
    section: TileGroup, pieces: list[Tile], bias: Bias | None, query: Tokens, key: Tokens, n_heads: int
) -> Tensor:
    """What is added to the scores of pieces of one shape [piece, heads of the section or 1, query, key]."""
    device = query.position.device
    of_queries = _of(query, section.row, torch.tensor(np.stack([piece.queries for piece in pieces]), device=device))
    of_keys = _of(key, section.row, torch.tensor(np.stack([piece.keys for piece in pieces]), device=device))
    heads = torch.tensor(section.heads, device=device)
    seen = shown(section.mask, of_queries.as_queries(), of_keys.as_keys(), heads.view(1, -1, 1, 1))
    values = None if bias is None else bias(of_queries, of_keys)
    if values is None:
        values = torch.zeros((), device=device)
    elif values.shape[1] > 1 and len(section.heads) < n_heads:
        values = values.index_select(1, heads)
    if seen is not None:
        values = torch.where(seen, values, -torch.inf)
    per_head = values.shape[1] if values.dim() == 4 else 1
    return values.expand(len(pieces), per_head, of_queries.n, of_keys.n)


def _of(tokens: Tokens, row: int | None, which: Tensor) -> Tokens:
    """The facts of some tokens of a row [piece, token]."""
    few = tokens.each(lambda fact: fact[min(row or 0, len(fact) - 1)][which])
    return replace(few, span=None)


def _run(numbers: Numbers) -> tuple[int, int, int] | None:
    """(first, behind the last, step) of numbers at one distance above 0 from each other."""
    step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
    if step < 1 or (np.diff(numbers) != step).any():
        return None
    return int(numbers[0]), int(numbers[-1]) + 1, step


def _runs(heads: Numbers) -> list[tuple[int, int, int]]:
    run = _run(heads)
    return [(int(head), int(head) + 1, 1) for head in heads] if run is None else [run]
