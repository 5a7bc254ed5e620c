"""Mixtures of experts as values: what is counted, resized, written, refused."""

from __future__ import annotations

from typing import Any

import pytest

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import AttentionSpec, CapacityFactor, Causal, FixedCapacity, GQASpec, MoESpec, RouterSpec
from anyformer.resizing import Least
from anyformer.spec import Count, Place, Workload, decode, encode, parameters, tensors
from tests.laws.models import DECODERS
from tests.layers.test_moe import GATED, MIXTURES, D, every_mixture, router


@pytest.mark.parametrize(
    "names", [names for names, spec in DECODERS.items() if any(isinstance(v, MoESpec) for v in spec.nested())]
)
def test_shrunk_presets_still_choose(names: str) -> None:
    """But for those whose tokens go to all experts: FlexOlmo."""
    full = next(v for v in preset(names.split(" = ")[0]).spec.nested() if isinstance(v, RouterSpec))
    for r in (value for value in DECODERS[names].nested() if isinstance(value, RouterSpec)):
        assert (r.top_k < r.n_experts) == (full.top_k < full.n_experts)
        assert r.n_groups == 1 or (r.top_groups < r.n_groups and r.n_experts > r.n_groups)


@pytest.mark.parametrize(
    ("old", "n", "k", "groups", "top"),
    [
        (router(256, 8, n_groups=8, top_groups=4, group_score="top2-sum"), 16, 3, 4, 2),
        (router(160, 6, n_groups=8, top_groups=3), 16, 3, 4, 2),
        (router(64, 1), 8, 1, 1, 1),
        (router(32, 32), 4, 4, 1, 1),
        (router(2, 1), 2, 1, 1, 1),
    ],
)
def test_resized_it_stays_a_choice(old: RouterSpec, n: int, k: int, groups: int, top: int) -> None:
    new = old.resized(Least(preset("llama2-7b").spec))
    assert (new.n_experts, new.top_k, new.n_groups, new.top_groups) == (n, k, groups, top)


def test_counts_and_costs_are_of_the_chosen() -> None:
    spec = MIXTURES["Qwen"]
    place = Place(d_model=D, shape=(D,))
    expert = 3 * 10 * D
    found = [(weight.numel, weight.used) for _, weight in tensors(spec, place)]
    assert sum(n for n, _ in found) == 8 * D + 8 * expert + expert + D
    inactive = sum(n // 8 * (8 - used) for n, used in found if used is not None)
    assert inactive == 5 * expert
    cost = spec.cost(place, Workload(batch=2, query=5))
    assert dict(cost) == {
        "router": 10 * 2 * 8 * D,
        "experts": 10 * 2 * 3 * expert,
        "shared expert": 10 * (2 * expert + 2 * D),
    }


@pytest.mark.parametrize(
    ("name", "active", "less_tables"),
    [
        ("mixtral-8x7b", "12.9", 0),
        ("qwen1.5-moe-a2.7b", "2.7", 0),
        ("gpt-oss-20b", "3.61", 0.5),  # OpenAI leaves the input's table out
        ("gpt-oss-120b", "5.13", 0.5),
        ("phi3.5-moe", "6.6", 0),
    ],
)
def test_published_active_parameters(name: str, active: str, less_tables: float) -> None:
    count = parameters(preset(name).spec)
    places = len(active.partition(".")[2])
    assert f"{(count.active - less_tables * count.embedding) / 1e9:.{places}f}" == active


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: router(0, 1), r"Router.n_experts = 0 must be at least 1"),
        (lambda: router(8, 9), r"Router.top_k = 9 must be from 1 to n_experts = 8"),
        (lambda: router(8, 0), r"Router.top_k = 0 must be at least 1"),
        (
            lambda: router(8, 3, n_groups=4, top_groups=1),
            r"Router.top_k = 3 is more than the 2 experts of top_groups = 1",
        ),
        (lambda: router(8, 2, n_groups=3), r"Router.n_groups = 3 must divide n_experts = 8"),
        (lambda: router(8, 2, n_groups=2, top_groups=3), r"Router.top_groups = 3 must be from 1 to n_groups = 2"),
        (
            lambda: router(8, 2, n_groups=8, top_groups=4, group_score="top2-sum"),
            r"group_score = 'top2-sum' needs groups",
        ),
        (lambda: router(score="sparsemixer", correction=True), r"Router.score = 'sparsemixer' takes no correction"),
        (lambda: router(score="sparsemixer", n_shared=1), r"Router.n_shared = 1 takes no sparsemixer and no gains"),
        (lambda: router(score="softmax-of-chosen", renormalise=True), r"Router.renormalise = True changes nothing"),
        (lambda: router(score="sparsemixer", tolerance=0.0), r"Router.tolerance = 0.0 must be above 0"),
        (lambda: CapacityFactor(factor=0.0), r"CapacityFactor.factor = 0.0 must be above 0"),
        (lambda: FixedCapacity(tokens=0), r"FixedCapacity.tokens = 0 must be at least 1"),
        (
            lambda: MoESpec(router=router(), expert=GATED, shared_gate=True),
            r"MoE.shared_gate = True has nothing to gate",
        ),
        (
            lambda: MoESpec(router=router(), expert=AttentionSpec(projection=GQASpec(n_heads=Count(2)), mask=Causal())),
            r"MoE.expert = .* cannot be one of many experts; take a feed-forward",
        ),
        (
            lambda: decode({"kind": "MoE", "router": {"n_experts": 4, "top_k": 2, "score": "sofmax"}}, MoESpec),
            r"router.score = 'sofmax' is none of .* \(did you mean 'softmax'\?\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(wrong: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        wrong()
    assert "\n" not in str(error.value)


@every_mixture
def test_it_is_written_and_read(name: str) -> None:
    assert decode(encode(MIXTURES[name]), MoESpec) == MIXTURES[name]
