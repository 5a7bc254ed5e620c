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
from anyformer.families.hf.mapping import spec_of
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
        ({"attn_type": "uni"}, "attn_type = 'uni' is not computed here"),
        ({"bi_data": True}, "bi_data = True is not computed here"),
        ({"clamp_len": 30}, "clamp_len = 30 is not computed here"),
        ({"same_length": True}, "same_length = True is not computed here"),
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
