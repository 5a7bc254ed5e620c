"""Law 6 for XLNet: both streams, orders that predict all words or some, segments, padding on either side, memories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.cache import KVCache
from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import misfits, spec_of
from anyformer.layers import BySegmentSpec, Causal, RelativeSinusoidSpec, ScoreSpec, TwoStreams
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.parity import pair
from tests.laws.tolerance import FLOAT32, VISIBLE, close, distance, gradient_distance
from tests.laws.weights import edited, filled, telling

N = 23
TARGETS = torch.tensor([[11, 3, 9, 17], [8, 15, 10, 13]])  # positions that are asked for


@dataclass
class Streams:
    """Tokens and the order in which they are known; [batch, token] each."""

    ids: Tensor
    real: Tensor
    segments: Tensor
    order: Tensor
    hidden: Tensor  # perm_mask [batch, query, key]

    def ours(self, model: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Return the logits of the content and of the queries, from one stream."""
        positions = (self.real.cumsum(-1) - 1).clamp(min=0)
        marks = torch.cat((torch.zeros_like(self.ids), torch.ones_like(TARGETS)), 1)
        logits = model(
            self.twice(self.ids),
            self.twice(self.real.long()),
            self.twice(positions),
            self.twice(self.segments),
            facts={"order": self.twice(self.order), "mark": marks},
            **options,
        ).logits
        return logits[:, :N][self.real], logits[:, N:]

    def theirs(self, model: Any) -> tuple[Tensor, Tensor]:
        """Return the same, from two: the class answers for one of them a call."""
        chosen = nn.functional.one_hot(TARGETS, N).to(self.hidden.dtype)
        alike = {"attention_mask": self.real.to(self.hidden.dtype), "token_type_ids": self.segments}
        content = model(self.ids, perm_mask=self.hidden, **alike).logits
        queries = model(self.ids, perm_mask=self.hidden, target_mapping=chosen, **alike).logits
        return content[self.real], queries

    def twice(self, fact: Tensor) -> Tensor:
        return torch.cat((fact, fact.gather(1, TARGETS)), 1)


def streams(spec: ModelSpec, kind: str, padding: str) -> Streams:
    """Return two rows: all words in any order, or those that are asked for, one after the other, from all others."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, spec.vocab_size, (2, N), generator=generator)
    segments = torch.randint(0, 2, (2, N), generator=generator)
    real = torch.ones(2, N, dtype=torch.bool)
    if padding != "none":
        real[1, slice(N - 5, None) if padding == "right" else slice(0, 5)] = False
    if kind == "any order":
        order = torch.stack([torch.randperm(N, generator=generator) for _ in range(2)])
        order = torch.where(order == 0, N, order)  # a query that comes first would see no key
        order = order.scatter(1, torch.tensor([[6], [6]]), 0)
    else:
        order = torch.zeros(2, N, dtype=torch.long).scatter(1, TARGETS, torch.arange(1, 5).expand(2, -1))
    later, equal = (order[:, None, :] > order[:, :, None]), (order[:, None, :] == order[:, :, None])
    asked = torch.ones_like(equal) if kind == "any order" else (order > 0)[:, :, None]
    return Streams(ids, real, segments, order, (later | (equal & asked)).float())


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("kind", ["any order", "some words"])
def test_both_streams_are_theirs(kind: str, padding: str, kernel: str) -> None:
    spec = shrink(preset("xlnet-base").spec)
    both, given = pair(spec), streams(spec, kind, padding)
    totals = [torch.zeros(()), torch.zeros(())]
    for ours, theirs in zip(given.ours(both.ours, kernel=kernel), given.theirs(both.theirs), strict=True):
        assert distance(ours, theirs) < FLOAT32
        weight = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1))
        totals = [total + (side * weight).sum() for total, side in zip(totals, (ours, theirs), strict=True)]
    for model, total in zip((both.ours, both.theirs), totals, strict=True):
        model.zero_grad(set_to_none=True)
        total.backward()
    assert gradient_distance(both.our_gradients(), both.gradients()) < FLOAT32


@pytest.mark.parametrize("padding", ["none", "left"])
def test_segments_without_an_order(padding: str) -> None:
    spec = shrink(preset("xlnet-base").spec)
    both, given = pair(spec), streams(spec, "any order", padding)
    mask = given.real.long()
    with torch.no_grad():
        ours = both.ours(given.ids, mask, token_type_ids=given.segments).logits[given.real]
        theirs = both.theirs(given.ids, attention_mask=mask, token_type_ids=given.segments).logits[given.real]
        alone = both.ours(given.ids, mask).logits[given.real]
    close(ours, theirs)
    assert distance(alone, theirs) > VISIBLE * FLOAT32


def test_memories_are_a_cache() -> None:
    """What a segment left, without a gradient, is seen by the next two, at the distances that it has from them."""
    spec = shrink(preset("xlnet-base").spec)
    both, given = pair(spec), streams(spec, "any order", "none")
    cache, mems, segments = KVCache(spec, batch=2), None, torch.zeros(2, 8, dtype=torch.long)
    with torch.no_grad():
        for i, piece in enumerate((slice(0, 8), slice(8, 15), slice(15, N))):
            ids = given.ids[:, piece]
            types = segments[:, : ids.shape[1]]
            theirs = both.theirs(ids, mems=mems, token_type_ids=types, use_mems=True)
            ours = both.ours(ids, token_type_ids=types, cache=cache).logits
            close(ours, theirs.logits)
            if i:
                assert distance(both.ours(ids, token_type_ids=types).logits, ours) > VISIBLE * FLOAT32
            mems = theirs.mems


def one_way(**settings: Any) -> ModelSpec:
    """Return XLNet as a decoder, as their configuration says it."""
    config = {"model_type": "xlnet", **FAMILIES["xlnet"].to_config(shrink(preset("xlnet-base").spec))}
    return spec_of(FAMILIES, config | {"attn_type": "uni", **settings}, "config.json")[1]


def test_one_way_is_a_decoder() -> None:
    """Two rows as they are, with gradients; their class takes no padding and no order of two rows this way."""
    spec = one_way()
    both, ids = pair(spec), streams(spec, "any order", "none").ids
    assert not misfits(both.family, spec)[1]
    assert both.ours.predicts_next
    weight = torch.randn(2, N, spec.vocab_size, generator=torch.Generator().manual_seed(1))
    logits = both.ours(ids).logits, both.theirs(ids).logits
    close(*logits)
    for model, each in zip((both.ours, both.theirs), logits, strict=True):
        model.zero_grad(set_to_none=True)
        (each * weight).sum().backward()
    theirs = both.gradients()
    blank = next(name for name in theirs if name.endswith("blank"))  # which nobody asked
    mine = both.our_gradients()
    assert (
        gradient_distance(
            {n: g for n, g in mine.items() if n != blank}, {n: g for n, g in theirs.items() if n != blank}
        )
        < FLOAT32
    )
    assert distance(filled(shrink(preset("xlnet-base").spec), telling(spec))(ids).logits, logits[1]) > VISIBLE * FLOAT32


@torch.no_grad()
def test_one_way_has_both_streams() -> None:
    """One row in an order of its own, of which a token sees what stands before it too."""
    spec = one_way()
    both, given = pair(spec), streams(spec, "any order", "none")
    order = torch.randperm(N, generator=torch.Generator().manual_seed(8))[None]
    order = torch.where(order == 0, N, order).scatter(1, torch.tensor([[0]]), 0)  # so that every query sees a key
    hidden = (order[:, None, :] >= order[:, :, None]).float()
    row = Streams(given.ids[:1], given.real[:1], given.segments[:1], order, hidden)
    targets = TARGETS[:1]
    marks = torch.cat((torch.zeros_like(row.ids), torch.ones_like(targets)), 1)

    def twice(fact: Tensor) -> Tensor:
        return torch.cat((fact, fact.gather(1, targets)), 1)

    facts = {"order": twice(order), "mark": marks}
    positions = torch.arange(N)[None]
    ours = both.ours(
        twice(row.ids), twice(torch.ones_like(row.ids)), twice(positions), twice(row.segments), facts=facts
    )
    alike = {"perm_mask": hidden, "token_type_ids": row.segments}
    chosen = nn.functional.one_hot(targets, N).float()
    close(ours.logits[:, :N], both.theirs(row.ids, **alike).logits)
    close(ours.logits[:, N:], both.theirs(row.ids, target_mapping=chosen, **alike).logits)


@torch.no_grad()
def test_of_the_same_length_each_token_sees_as_many() -> None:
    """Token by token, and in one piece once their memory is full; our whole pass knows nothing of pieces."""
    spec, other = one_way(same_length=True, mem_len=6), one_way()
    both, ids = pair(spec), streams(spec, "any order", "none").ids
    assert not misfits(both.family, spec)[1]
    cache, mems, theirs, ours = KVCache(spec, batch=2, length=N), None, [], []
    for piece in ids.split([*[1] * 9, 5, 1, 8], 1):
        found = both.theirs(piece, mems=mems, use_mems=True)
        mems = found.mems
        theirs.append(found.logits)
        ours.append(both.ours(piece, cache=cache).logits)
    close(torch.cat(ours, 1), torch.cat(theirs, 1))
    close(both.ours(ids).logits, torch.cat(theirs, 1))
    assert distance(filled(other, telling(spec))(ids).logits, torch.cat(theirs, 1)) > VISIBLE * FLOAT32


EDITS: dict[str, tuple[type[Any], Any]] = {
    "the order": (TwoStreams, lambda _: Causal()),
    "keys that come after": (RelativeSinusoidSpec, lambda score: score.but(bidirectional=False)),
    "base": (RelativeSinusoidSpec, lambda score: score.but(base=9_000.0)),
}


@pytest.mark.parametrize("name", EDITS)
@torch.no_grad()
def test_a_distinguishing_field_is_seen(name: str) -> None:
    spec = shrink(preset("xlnet-base").spec)
    weights, given = telling(spec), streams(spec, "any order", "none")
    before, after = (given.ours(filled(s, weights)) for s in (spec, edited(spec, *EDITS[name])))
    assert all(distance(b, a) > VISIBLE * FLOAT32 for a, b in zip(before, after, strict=True))


@torch.no_grad()
def test_segments_are_scored_by_content() -> None:
    spec = shrink(preset("xlnet-base").spec)
    weights, given = telling(spec), streams(spec, "any order", "none")
    without = {name: weight for name, weight in weights.items() if ".scores.1." not in name}
    one = edited(spec, ScoreSpec, lambda score: score)
    assert any(isinstance(value, BySegmentSpec) for value in one.nested())
    zeroed = weights | {name: torch.zeros_like(weights[name]) for name in weights.keys() - without.keys()}
    before, after = (given.ours(filled(spec, w))[1] for w in (weights, zeroed))
    assert distance(after, before) > VISIBLE * FLOAT32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attn_type": "both"}, "attn_type = 'both' is not computed here; only 'bi' or 'uni' is"),
        ({"attn_type": "uni", "same_length": True, "mem_len": None}, "same_length = True needs mem_len"),
        ({"bi_data": True}, "bi_data = True is not computed here"),
        ({"clamp_len": 30}, "clamp_len = 30 is not computed here"),
        ({"summary_type": "mean"}, "summary_type = 'mean' is not computed here"),
        ({"d_head": 5}, "d_head = 5 is not computed here"),
        ({"architectures": ["XLNetForQuestionAnswering"]}, "has no class that is read here"),
    ],
)
def test_settings_that_would_compute_something_else_are_refused(change: dict[str, Any], said: str) -> None:
    config = {"model_type": "xlnet", **FAMILIES["xlnet"].to_config(shrink(preset("xlnet-base").spec))}
    spec_of(FAMILIES, config | {"d_head": 8, "mem_len": 384, "reuse_len": None, "untie_r": True}, "config.json")
    with pytest.raises(CheckpointError, match=said):
        spec_of(FAMILIES, config | change, "config.json")
