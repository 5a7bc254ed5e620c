"""Mixers with a state: what is refused, what a pass leaves behind, where a document begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cache import STATE_NBYTES, KVCache
from anyformer.costs import cost
from anyformer.errors import CacheError, InputError, SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    CausalConvolutionSpec,
    ConvolvedHeadsSpec,
    GatedDeltaNetSpec,
    GQASpec,
    MoESpec,
    ShortConvolutionSpec,
    SiLU,
    SSDSpec,
)
from anyformer.layers.causal_convolution import CausalConvolution
from anyformer.layers.delta_rule import delta_rule, delta_rule_flops
from anyformer.layers.delta_rule_by_feature import delta_rule_by_feature, delta_rule_by_feature_flops
from anyformer.layers.linear_attention import linear_attention, linear_attention_flops
from anyformer.layers.recurrence import Steps
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, Count, MixerSpec, ModelSpec, Place, Workload, parameters
from tests.laws.models import flop_counter, ids_for, randomised
from tests.laws.tolerance import close
from tests.oracles.recurrences import causal_convolution

NAMES = (
    *("lstm-medium", "gru-medium", "awd-lstm-ptb"),
    "lfm2-350m",
    "mamba2-130m",
    "codestral-mamba-7b",
    "qwen3.5-9b",
    "granite-4.0-h-tiny",
    "falcon-mamba-7b",
    "jamba-v0.1",
    "kimi-linear-48b-a3b",
    "nemotron-3-nano-30b-a3b",
    "falcon-h1-34b",
    "recurrentgemma-2b",
    "rwkv-4-169m",
)
every_hybrid = pytest.mark.parametrize("spec", [shrink(af.preset(name).spec) for name in NAMES], ids=NAMES)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_causal_convolution_is_the_loop(size: int) -> None:
    spec = CausalConvolutionSpec(size=size, bias=True, activation=SiLU())
    layer, x = spec.build(Place(d_model=6).at(6)), torch.randn(1, 11, 6)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    expected = torch.nn.functional.silu(causal_convolution(x[0], layer.weight[:, 0], layer.bias))
    got, tail = layer(x, Steps(), None)
    torch.testing.assert_close(got[0], expected)
    first, tail = layer(x[:, :4], Steps(), None)
    rest, _ = layer(x[:, 4:], Steps(), tail)
    torch.testing.assert_close(torch.cat((first, rest), 1)[0], expected)


@pytest.mark.parametrize("past", [0, 1])
@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 200, 512, 513, 600, 1100])
def test_flops_are_those_counted(tokens: int, past: int) -> None:
    q, k, v = torch.randn(1, tokens, 2, 6), torch.randn(1, tokens, 2, 6), torch.randn(1, tokens, 4, 5)
    decay, rate, state = -torch.rand(1, tokens, 4), torch.rand(1, tokens, 4), torch.zeros(1, 4, 6, 5) if past else None
    with flop_counter() as counter:
        linear_attention(q, k, v, decay, None, state, bool(past))
    assert counter.get_total_flops() == linear_attention_flops(tokens, past, groups=2, heads=4, key_dim=6, value_dim=5)
    with flop_counter() as counter:
        delta_rule(q, k, v, decay, rate, None, state, bool(past))
    assert counter.get_total_flops() == delta_rule_flops(tokens, past, key_heads=2, heads=4, key_dim=6, value_dim=5)
    q, k, decay = (x.repeat_interleave(2, 2) for x in (q, k, -torch.rand(1, tokens, 2, 6)))
    with flop_counter() as counter:
        delta_rule_by_feature(q, k, v, decay, rate, None, state, bool(past))
    assert counter.get_total_flops() == delta_rule_by_feature_flops(tokens, past, heads=4, key_dim=6, value_dim=5)


@every_hybrid
def test_decoding_takes_the_flops_of_the_formula(spec: ModelSpec) -> None:
    model = af.build(spec, device="meta")
    cache = KVCache(spec, batch=3, length=20, device="meta")
    ids = torch.zeros(3, 19, dtype=torch.long, device="meta")
    with torch.no_grad():
        model(ids, cache=cache)
        with flop_counter() as counter:
            model(ids[:, :1], cache=cache)
    expected = spec.cost(Place(), Workload(batch=3, query=1, past=19)).flops
    assert counter.get_total_flops() == expected


@every_hybrid
def test_a_state_is_of_one_size(spec: ModelSpec) -> None:
    short, long = (next(k for k in cost(spec, seq_len=n, batch=2).cache if k.kind == "state") for n in (10, 10_000))
    assert short == long
    numbers = sum(
        tensor[0].numel() for store in KVCache(spec).stores if store.state is not None for tensor in store.held.values()
    )
    assert short.nbytes == 2 * STATE_NBYTES * numbers


@every_hybrid
def test_rows_part_by_select_and_are_not_rewound(spec: ModelSpec) -> None:
    model, ids = randomised(spec), ids_for(spec, 2, 12)
    cache = KVCache(spec, batch=2, length=12)
    with torch.no_grad():
        model(ids[:, :8], cache=cache)
        with pytest.raises(
            CacheError, match=r"rewind\(1\): a state holds all tokens as one sum; select\(\) copies rows"
        ):
            cache.rewind(1)
        cache.rewind(0)
        cache.select([1, 0, 1])
        got = model(ids[[1, 0, 1], 8:], cache=cache).logits
        close(got, model(ids[[1, 0, 1]]).logits[:, 8:])


@every_hybrid
def test_a_cache_keeps_no_gradients(spec: ModelSpec) -> None:
    with pytest.raises(CacheError, match=r"a cache keeps no gradients; call the model under torch.no_grad\(\)"):
        af.build(spec)(ids_for(spec, 1, 3), cache=KVCache(spec))


@every_hybrid
def test_documents_lie_in_one_piece_and_in_the_order_of_the_row(spec: ModelSpec) -> None:
    model, ids = af.build(spec), ids_for(spec, 1, 6)
    with pytest.raises(
        InputError, match="a document lies in several pieces of a row, and a state cannot go back to it"
    ):
        model(ids, torch.tensor([[1, 1, 2, 2, 1, 1]]))
    cache = KVCache(spec, length=12)
    with torch.no_grad():
        model(ids, torch.tensor([[1, 1, 1, 2, 2, 0]]), cache=cache)
        model(ids[:, :2], torch.tensor([[2, 3]]), cache=cache)
        with pytest.raises(InputError, match="several pieces"):
            model(ids[:, :3], torch.tensor([[3, 4, 3]]), cache=cache)
    with pytest.raises(InputError, match="a state is read in the order of the row; leave the fact 'order' out"):
        model(ids, facts={"order": torch.arange(6)[None]})


@every_hybrid
def test_a_short_document_goes_on_in_the_next_pass(spec: ModelSpec) -> None:
    """It begins one token before a pass ends: of the tokens before it the tail keeps nothing."""
    model, ids = randomised(spec), ids_for(spec, 1, 12)
    documents = torch.tensor([[1] * 5 + [2] * 7])
    cache = KVCache(spec, length=12)
    with torch.no_grad():
        parts = [model(ids[:, a:b], documents[:, a:b], cache=cache).logits for a, b in ((0, 6), (6, 7), (7, 12))]
        close(torch.cat(parts, 1), model(ids, documents).logits)
        close(torch.cat(parts, 1)[:, 5:], model(ids[:, 5:]).logits)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: SSDSpec(n_heads=Count(6), n_groups=Count(4)),
            "SSD.n_heads = 6 must be a multiple of n_groups = 4",
        ),
        (lambda: GatedDeltaNetSpec(n_heads=Count(3), n_key_heads=Count(2)), "must be a multiple of n_key_heads = 2"),
        (lambda: ShortConvolutionSpec(convolution=CausalConvolutionSpec(size=0)), "size = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(make: type[MixerSpec], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make()


@pytest.mark.parametrize("fields", [{"values_are_keys": True}, {"convolved": ConvolvedHeadsSpec()}])
def test_keys_and_values_are_convolved_where_each_has_a_map(fields: dict[str, Any]) -> None:
    with pytest.raises(
        SpecError, match=r"GQA\.short = CausalConvolution is of keys and of values as maps of their own"
    ):
        GQASpec(n_heads=Count(2), short=CausalConvolutionSpec(), **fields)


def test_a_convolution_over_heads_stands_where_there_are_some() -> None:
    """Elsewhere it has a matrix of all channels for each of them, whose numbers would be summed."""
    over = CausalConvolutionSpec(over="head")
    assert CausalConvolution(over, Place(8, (2, 4))).weight.shape == (8, 4, 4)
    with pytest.raises(
        SpecError, match=r"CausalConvolution\.over = 'head' needs heads, and here are none; take channel"
    ):
        parameters(changed(shrink(preset("mamba2-130m").spec), CausalConvolutionSpec, over="head"))


def test_what_a_branch_writes_meets_the_last_tokens_in_a_state() -> None:
    mixer = next(shrink(af.preset("inkling").spec).nested(MoESpec))
    with pytest.raises(SpecError, match=r"Branch\.then = .* must be a mixer with a state"):
        BranchSpec(mixer=mixer, then=mixer.expert)
