"""Blocks of keys chosen as one: which keys are left, by a loop over queries; documents, padding and caches; pairs; refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, CompressorSpec, Everything, IndexerSpec, SlidingWindow
from anyformer.layers.pairs import chosen_pairs
from anyformer.layers.tokens import Tokens
from anyformer.layers.whole_blocks import whole_blocks
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Window
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

SMALL = shrink(preset("qwen3.8-flash-next").spec)
EVERY = 3


def by_a_loop(document: list[int]) -> tuple[dict[tuple[int, int], list[int]], list[int]]:
    """Return the members of each whole block by (document, number), and the keys of none; padding is document 0."""
    members: dict[tuple[int, int], list[int]] = {}
    seen: dict[int, int] = {}
    for i, d in enumerate(document):
        if d:
            members.setdefault((d, seen.get(d, 0) // EVERY), []).append(i)
            seen[d] = seen.get(d, 0) + 1
    whole = {at: found for at, found in members.items() if len(found) == EVERY}
    return whole, [i for i in range(len(document)) if not any(i in found for found in whole.values())]


@pytest.mark.parametrize(
    "document",
    [
        [1] * 7,
        [0, 0, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0],
        [1, 2, 1, 2, 1, 2, 2, 0, 1, 1],
        [0, 0, 0, 0],
        [3, 3],
    ],
)
def test_blocks_are_counted_from_a_documents_first_token(document: list[int]) -> None:
    n = len(document)
    tokens = Tokens(torch.arange(n)[None], torch.tensor([document]))
    found = whole_blocks(tokens, EVERY)
    expected, alone = by_a_loop(document)
    assert found.real is not None
    real = [row for row, is_one in zip(found.members[0].tolist(), found.real[0].tolist(), strict=True) if is_one]
    assert sorted(real) == sorted(expected.values())
    assert [i for i, column in enumerate(found.column[0].tolist()) if column == n // EVERY] == alone
    for i, column in enumerate(found.column[0].tolist()):
        assert column == n // EVERY or i in found.members[0, column].tolist()


def test_plain_tokens_are_one_document() -> None:
    plain, said = (whole_blocks(Tokens(torch.arange(11)[None], d), EVERY) for d in (None, torch.ones(1, 11).long()))
    assert torch.equal(plain.members, said.members)
    assert torch.equal(plain.column, said.column)
    assert plain.real is None
    assert said.real is not None
    assert said.real.all()


def left_by_a_loop(n: int, scores: Tensor, most: int) -> Tensor:
    """Return which keys each query of a causal text sees [query, key], of scores of its blocks [query, block]."""
    left = torch.zeros(n, n, dtype=torch.bool)
    for q in range(n):
        whole = (q + 1) // EVERY
        for block in scores[q, :whole].topk(min(most, whole)).indices.tolist():
            left[q, block * EVERY : (block + 1) * EVERY] = True
        left[q, whole * EVERY : q + 1] = True
    return left


def test_the_best_blocks_and_all_behind_the_last() -> None:
    n, most = 17, 2
    blocks = whole_blocks(Tokens(torch.arange(n)[None]), EVERY)
    scores = torch.rand(1, 1, n, n // EVERY, generator=torch.Generator().manual_seed(0))
    shown = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    seen = blocks.seen(shown)
    assert seen is not None
    hidden = scores.masked_fill(~seen, -torch.inf)
    least = hidden.topk(most, -1).values[..., -1:]
    chosen = torch.zeros_like(scores).masked_fill(hidden < least, -torch.inf)
    left = (blocks.spread(chosen, seen) == 0) & shown
    assert torch.equal(left[0, 0], left_by_a_loop(n, scores[0, 0], most))
    assert int(left.sum()) == chosen_pairs(Causal(), n, 0, most * EVERY, EVERY)
    for past in (1, 5, 16):
        counted = chosen_pairs(Causal(), n - past, past, most * EVERY, EVERY)
        assert int(left[0, 0, past:].sum()) == counted


def test_pairs_of_tokens_that_see_ahead() -> None:
    """Each of 7 sees the best of two blocks of 3, and the one behind."""
    assert chosen_pairs(Everything(), 7, 0, 3, EVERY) == 7 * 4
    assert chosen_pairs(Everything(), 7, 0, 30, EVERY) == 7 * 7


def sees(spec: ModelSpec, ids: Tensor, **given: Tensor) -> Tensor:
    with torch.no_grad():
        return randomised(spec)(ids, **given).logits


def test_what_is_not_chosen_is_not_seen() -> None:
    """With room for all blocks it is attention without an indexer; with less it is not."""
    bare = changed(SMALL, AttentionSpec, indexer=None)
    ids = ids_for(SMALL, 2, 21)
    few, every, none = randomised(SMALL), randomised(changed(SMALL, IndexerSpec, top_k=Window(40))), randomised(bare)
    own = dict(few.named_parameters())
    with torch.no_grad():
        for model in (every, none):
            for name, value in model.named_parameters():
                value.copy_(own[name])
        close(every(ids).logits, none(ids).logits)
        assert (few(ids).logits - none(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("chunks", [[21], [1] * 21, [7, 1, 9, 4]])
def test_a_cache_rewound_goes_on(chunks: list[int]) -> None:
    """The indexer keeps a key a token, so that an attention of blocks alone can be rewound."""
    spec = changed(shrink(preset("llama3-8b").spec), AttentionSpec, indexer=next(SMALL.nested(IndexerSpec)))
    model, ids = randomised(spec), ids_for(spec, 2, 21)
    with torch.no_grad():
        expected, cache = model(ids).logits, model.new_cache(2, 21, slack=9)
        close(torch.cat([model(piece, cache=cache).logits for piece in ids.split(chunks, 1)], 1), expected)
        cache.rewind([6, 9])
        again = torch.stack((ids[0, 15:18], ids[1, 12:15]))
        close(model(again, cache=cache).logits, torch.stack((expected[0, 15:18], expected[1, 12:15])))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: next(SMALL.nested(IndexerSpec)).but(top_k=Window(6)), "must be a multiple of every = 4"),
        (
            lambda: next(SMALL.nested(IndexerSpec)).but(compressor=CompressorSpec(every=Window(4))),
            "makes one key of them; leave one out",
        ),
        (
            lambda: changed(SMALL, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(8))),
            "take Causal or Everything",
        ),
    ],
)
def test_refusals(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()
