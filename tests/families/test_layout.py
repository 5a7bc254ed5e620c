"""Rows of tensors that lie otherwise in files than here: each by slices of theirs, cut by hand."""

from __future__ import annotations

import pytest
import torch

from anyformer.families import preset
from anyformer.families.hf.layout import Theirs, rows_of
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec

SPEC: ModelSpec = shrink(preset("dbrx").spec)
EXPERTS = "stack.blocks.0.sublayers.1.branches.0.mixer.experts"
QUERIES = "stack.blocks.0.sublayers.0.branches.0.mixer.projection"


@pytest.mark.parametrize("turned", [False, True])
def test_experts_one_below_the_other(turned: bool) -> None:
    """Theirs is a matrix of all experts' rows; turned, each expert's is (in, out)."""
    (row,) = rows_of(SPEC, {f"{EXPERTS}.down.weight": Theirs("all.w", turned=turned, by="expert")})
    n, out, into = 4, 32, 56
    whole = torch.randn(n * (into if turned else out), out if turned else into)
    (ours,) = row.load((whole,))
    size = len(whole) // n
    for i in range(n):
        piece = whole[i * size : (i + 1) * size]
        assert torch.equal(ours[i], piece.T if turned else piece)
    assert torch.equal(row.save((ours,))[0], whole)


@pytest.mark.parametrize(("by", "groups"), [("query", 4), ("head", 2)])
def test_what_takes_turns_head_by_head(by: str, groups: int) -> None:
    """Of each head of queries, or of each key/value head: rows of the first, then rows of the second."""
    ours = (f"{QUERIES}.q.weight", f"{QUERIES}.k.weight")
    (row,) = rows_of(SPEC, {ours: Theirs("qk", by=by)})  # type: ignore[arg-type]
    q, k = torch.randn(32, 32), torch.randn(16, 32)
    each = [(q.chunk(groups)[i], k.chunk(groups)[i]) for i in range(groups)]
    whole = torch.cat([piece for pair in each for piece in pair])
    assert all(torch.equal(a, b) for a, b in zip(row.load((whole,)), (q, k), strict=True))
    assert torch.equal(row.save((q, k))[0], whole)


def test_the_only_row_of_theirs() -> None:
    name = "stack.blocks.0.sublayers.0.norm_in.weight"
    (row,) = rows_of(SPEC, {name: Theirs("row", by="row")})
    ours = torch.randn(32)
    assert torch.equal(row.load((ours[None],))[0], ours)
    assert row.save((ours,))[0].shape == (1, 32)
