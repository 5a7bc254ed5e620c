"""Where two architectures part: figures against sums written out here, and a difference for every field that changes."""

from __future__ import annotations

import itertools
import json
import random

import pytest

import anyformer as af
from anyformer.costs import cost
from anyformer.descriptions import Effect, diff, side_by_side
from anyformer.descriptions.diff.diff import KeyChange, key_changes, ranges
from anyformer.descriptions.diff.rows import ROWS
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LinearScaling,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    SlidingWindow,
)
from anyformer.spec import (
    BranchSpec,
    Count,
    HeadSpec,
    Length,
    ModelSpec,
    Place,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Width,
    Window,
    parameters,
    tensors,
)
from tests.laws.models import shrunk_once
from tests.sample import is_drawn

NAMES = list(PRESETS)
SMALL = {name: shrunk_once(preset.spec) for name, preset in PRESETS.items()}
LLAMA, GPT2 = af.preset("llama2-7b").spec, af.preset("gpt2").spec
D, F, L, V = 4096, 11_008, 32, 32_000  # LLaMA 2 7B's


def effect(a: ModelSpec, b: ModelSpec, part: str, seq_len: int = 1024) -> Effect:
    """Return the effect of a pair that differs in one part alone, which is the whole difference."""
    found = diff(a, b, seq_len=seq_len)
    assert [row.part for row in found.rows if row.differs] == [part]
    one = found.effects[part]
    assert one is not None
    assert one.measured_in == "a"
    assert one.change == found.change
    return one


def figures(one: Effect, tokens: int = 1024) -> tuple[int, int, int]:
    """Parameters, FLOPs of the whole text, bytes of its cache."""
    return (
        one.change.parameters,
        round(one.change.flops_per_token * tokens),
        round(one.change.cache_nbytes_per_token * tokens),
    )


class TestOneDifference:
    def test_grouped_queries_cost_no_scores_and_a_quarter_of_the_cache(self) -> None:
        one = effect(LLAMA, changed(LLAMA, GQASpec, n_kv_heads=Count(8)), "attention")
        fewer = L * 2 * D * (32 - 8) * 128  # of keys and of values
        assert figures(one) == (-fewer, -2 * fewer * 1024, -L * 2 * 24 * 128 * 2 * 1024)
        whole = diff(LLAMA, LLAMA, seq_len=1024).totals[0].cache_nbytes_per_token
        assert one.change.cache_nbytes_per_token / whole == -0.75
        assert (one.added, one.removed, one.reshaped) == (0, 0, 2 * L)

    def test_rms_norm_has_no_biases(self) -> None:
        norm = RMSNormSpec(eps=1e-5)
        b = changed(changed(GPT2, SublayerSpec, norm_in=norm), StackSpec, norm=norm)
        one = effect(GPT2, b, "norm")
        assert figures(one) == (-25 * 768, 0, 0)
        assert (one.added, one.removed, one.reshaped) == (0, 25, 0)

    def test_a_gate_is_a_third_matrix(self) -> None:
        plain = FeedForwardSpec(d_ff=Width(F), activation=ReLU(), bias_in=False, bias_out=False)
        blocks = []
        for block in LLAMA.stack.blocks:
            attend, feed = block.sublayers
            blocks.append(block.but(sublayers=(attend, feed.but(branches=(feed.branches[0].but(mixer=plain),)))))
        b = LLAMA.but(stack=LLAMA.stack.but(blocks=tuple(blocks)))
        assert figures(effect(LLAMA, b, "activation")) == (-L * D * F, -2 * L * D * F * 1024, 0)
        assert figures(effect(b, LLAMA, "activation")) == (L * D * F, 2 * L * D * F * 1024, 0)

    def test_biases(self) -> None:
        off = {"bias_query": False, "bias_key": False, "bias_value": False, "bias_output": False}
        b = changed(changed(GPT2, GQASpec, **off), FeedForwardSpec, bias_in=False, bias_out=False)
        one = effect(GPT2, b, "biases")
        assert figures(one) == (-12 * 9 * 768, 0, 0)  # q, k, v, o: 4 d; in: 4 d; out: d
        assert one.removed == 12 * 6

    def test_positions(self) -> None:
        embedding = GPT2.stack.embedding
        alone = GPT2.but(stack=GPT2.stack.but(embedding=embedding.but(terms=embedding.terms[:1])))
        assert figures(effect(GPT2, alone, "positions")) == (-1024 * 768, 0, 0)
        rotary = changed(alone, GQASpec, rotary=RotarySpec())
        assert figures(effect(alone, rotary, "positions")) == (0, 0, 0)

    def test_a_table_of_its_own(self) -> None:
        one = effect(GPT2, changed(GPT2, TableSpec, shared=None), "tying")
        assert figures(one) == (50_257 * 768, 0, 0)  # the product with the head is the same

    def test_a_window_saves_pairs_and_cache(self) -> None:
        b = changed(LLAMA, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(100)))
        one = effect(LLAMA, b, "who sees whom", 1024)
        pairs = sum(min(i + 1, 100) for i in range(1024)) - sum(i + 1 for i in range(1024))
        assert figures(one) == (0, L * 2 * 2 * D * pairs, -L * 2 * D * 2 * (1024 - 100))

    def test_experts(self) -> None:
        moe = af.preset("mixtral-8x7b").spec
        dense = moe.but(
            stack=moe.stack.but(
                blocks=tuple(
                    block.but(
                        sublayers=(
                            block.sublayers[0],
                            block.sublayers[1].but(
                                branches=(
                                    BranchSpec(mixer=block.sublayers[1].branches[0].mixer.expert),  # type: ignore[attr-defined]
                                )
                            ),
                        )
                    )
                    for block in moe.stack.blocks
                )
            )
        )
        one, f = effect(dense, moe, "experts"), 14_336
        more = L * (7 * 3 * D * f + 8 * D)  # seven experts and the router
        assert figures(one) == (more, 2 * L * (3 * D * f + 8 * D) * 1024, 0)  # of which one more is used
        assert one.change.active == L * (3 * D * f + 8 * D)
        assert figures(effect(moe, dense, "experts"))[0] == -more

    def test_an_encoder(self) -> None:
        both = af.preset("transformer-base").spec
        alone = af.preset("transformer-lm").spec
        found = diff(both, alone)
        one = found.effects["stacks"]
        assert one is not None
        layer = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 2 * 2 * 512
        cross = 4 * (512 * 512 + 512) + 2 * 512
        assert one.change.parameters == -6 * (layer + cross)
        back = diff(alone, both).effects["stacks"]
        assert back is not None
        assert (back.measured_in, back.change.parameters) == ("b", 6 * (layer + cross))

    def test_wiring_of_one_norm(self) -> None:
        block = GPT2.stack.blocks[0]
        attend, feed = block.sublayers
        beside = block.but(sublayers=(attend.but(branches=(*attend.branches, *feed.branches)),))
        b = GPT2.but(stack=GPT2.stack.but(blocks=(beside,) * 12))
        found = diff(GPT2, b)
        one = found.effects["wiring"]
        assert one is not None
        assert one.change.parameters == found.change.parameters == -12 * 2 * 768

    def test_norms_after_each_branch_too(self) -> None:
        b = changed(LLAMA, BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
        assert figures(effect(LLAMA, b, "norm placement")) == (2 * L * D, 0, 0)

    def test_from_after_each_sum_to_before_each_branch_and_at_the_end(self) -> None:
        a, norm = af.preset("gpt").spec, LayerNormSpec(eps=1e-5)
        b = changed(changed(a, SublayerSpec, norm_in=norm, norm_sum=None), StackSpec, norm=norm)
        one = effect(a, b, "norm placement", seq_len=512)
        assert figures(one) == (2 * 768, 0, 0)
        assert (one.added, one.removed) == (2 * 2 * 12 + 2, 2 * 2 * 12)

    def test_a_vocabulary_of_two_tables(self) -> None:
        b = changed(LLAMA, TableSpec, rows=V + 1000)
        assert figures(effect(LLAMA, b, "vocabulary")) == (2 * 1000 * D, 2 * 1000 * D * 1024, 0)

    def test_layers(self) -> None:
        b = LLAMA.but(stack=LLAMA.stack.but(blocks=LLAMA.stack.blocks[:10]))
        one = effect(LLAMA, b, "layers")
        assert figures(one)[0] == -22 * (4 * D * D + 3 * D * F + 2 * D)
        assert one.removed == 22 * 9

    def test_what_costs_nothing_is_a_difference_too(self) -> None:
        for b, part in (
            (changed(LLAMA, AttentionSpec, softcap=50.0), "scores"),
            (changed(LLAMA, RotarySpec, scaling=LinearScaling(factor=8.0)), "positions"),
            (changed(LLAMA, HeadSpec, softcap=30.0), "output"),
            (LLAMA.but(context=Length(999)), "context"),
        ):
            assert figures(effect(LLAMA, b, part)) == (0, 0, 0)


def test_grouped_queries_take_the_other_models_heads() -> None:
    one = diff(af.preset("llama2-7b"), af.preset("llama3-8b")).effects["attention"]
    assert one is not None
    assert one.change.parameters == -L * 2 * D * 24 * 128


PAIRS = [
    *itertools.pairwise(filter(is_drawn, NAMES)),
    *(tuple(random.Random(seed).sample(NAMES, 2)) for seed in range(40)),
]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: str(name))
def test_any_two(first: str, second: str) -> None:
    """Shrunk presets: totals as `cost` and `parameters` count them, keys as the two models have them."""
    a, b = SMALL[first], SMALL[second]
    found = diff(a, b)
    for spec, measure in zip((a, b), found.totals, strict=True):
        assert measure.parameters == parameters(spec).total
        assert measure.active == parameters(spec).active
        report = cost(spec, seq_len=found.seq_len)
        assert measure.flops_per_token == report.forward_flops_per_token
        if measure.cache_nbytes_per_token:
            assert measure.cache_nbytes_per_token * found.seq_len == report.cache_nbytes
    assert found.equal == (a == b)
    differing = {row.part for row in found.rows if row.differs}
    assert set(found.effects) == differing - {"tokenization"}
    before, after = ({key: w.shape for key, w in tensors(spec, Place())} for spec in (a, b))
    by_change = {change: sum(k.count for k in found.keys if k.change == change) for change in ("added", "removed")}
    assert by_change == {"added": len(after.keys() - before.keys()), "removed": len(before.keys() - after.keys())}
    assert len(found.keys) < 260
    json.dumps(found.as_json())


@pytest.mark.parametrize(
    ("first", "second"), [("transformer", "llama3.1-405b"), ("phi3-small-8k", "deepseek-v3"), ("gpt2-xl", "gpt3-175b")]
)
def test_the_other_way_round_is_the_opposite(first: str, second: str) -> None:
    there, back = (diff(*pair) for pair in itertools.permutations((af.preset(first), af.preset(second)), 2))
    assert there.change.parameters == -back.change.parameters
    opposite = {"added": "removed", "removed": "added", "reshaped": "reshaped"}
    count = {c: sum(k.count for k in there.keys if k.change == c) for c in opposite}
    assert count == {opposite[c]: sum(k.count for k in back.keys if k.change == c) for c in opposite}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [*itertools.pairwise(NAMES)])
def test_any_two_at_full_size(first: str, second: str) -> None:
    found = diff(af.preset(first), af.preset(second))
    assert found.change.parameters == parameters(af.preset(second)).total - parameters(af.preset(first)).total
    for part, one in found.effects.items():
        assert one is None or part in ROWS


def test_equal_ones() -> None:
    found = diff(af.preset("gpt2"), af.loads(af.dumps(GPT2)))
    assert not any(row.differs for row in found.rows if row.part != "tokenization")
    assert diff(GPT2, af.loads(af.dumps(GPT2))).equal
    assert found.change.parameters == 0
    assert found.keys == ()


def test_what_sees_all_tokens_keeps_no_cache() -> None:
    b = changed(GPT2, AttentionSpec, mask=Everything())
    found = diff(GPT2, b)
    assert found.totals[0].cache_nbytes_per_token == 2 * 12 * 768 * 2
    assert found.totals[1].cache_nbytes_per_token == 0
    assert {row.part for row in found.rows if row.differs} == {"stacks", "who sees whom"}


def test_length_and_names() -> None:
    found = side_by_side(af.preset("transformer"), af.preset("llama"), af.preset("llama2"))
    assert found.seq_len == 512
    assert found.names == ("transformer-base", "llama-7b", "llama2-7b")
    rows = {row.part: row.values for row in found.rows}
    assert [text.split(" (")[0] for text in rows["norm"]] == ["LayerNorm", "RMSNorm", "RMSNorm"]
    assert rows["activation"] == ("ReLU", "SwiGLU", "SwiGLU")
    assert "post-norm" in rows["norm placement"][0]
    assert "pre-norm" in rows["norm placement"][1]
    assert [text.split(" ")[0] for text in rows["positions"]] == ["sinusoids", "RoPE", "RoPE"]
    assert len(set(rows["attention"])) == 1
    with pytest.raises(SpecError, match="1 names are given for 2 architectures; name each, or none"):
        side_by_side(GPT2, "llama2", names=("mine",))
    with pytest.raises(SpecError, match="two architectures or more"):
        side_by_side(GPT2)


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "minimax-m3"])
def test_the_norms_of_an_indexer_are_said_once_each(name: str) -> None:
    said = ROWS["scores"](PRESETS[name].spec)
    assert (said.count("of its queries"), said.count("of its keys")) == (1, 1)


def test_keys_are_grouped_by_layer() -> None:
    before = {f"stack.blocks.{i}.w": (2, 3) for i in range(8)} | {"norm": (3,)}
    after = {f"stack.blocks.{i}.w": (2, 3) if i % 2 else (4, 3) for i in range(12)}
    found = key_changes(before, after)
    assert found == (
        KeyChange("stack.blocks.{i}.w", "0, 2, …, 6", 4, (2, 3), (4, 3)),
        KeyChange("norm", "", 1, (3,), None),
        KeyChange("stack.blocks.{i}.w", "8, 10", 2, None, (4, 3)),
        KeyChange("stack.blocks.{i}.w", "9, 11", 2, None, (2, 3)),
    )
    assert [ranges(x) for x in ([0], [0, 1, 2], [1, 2, 5], [3, 4, 5, 9])] == ["0", "0–2", "1–2, 5", "3–5, 9"]


def test_a_stack_that_reads_no_tokens_has_no_place_for_their_table() -> None:
    model = af.preset("transformer-base").spec
    embedding = model.stack.embedding
    bare = model.but(stack=model.stack.but(embedding=embedding.but(terms=embedding.terms[1:])))
    for pair in ((bare, GPT2), (GPT2, bare)):
        found = diff(*pair, seq_len=8)
        assert not found.equal
        assert "embedding" in found.effects
        assert found.effects["embedding"] is None
