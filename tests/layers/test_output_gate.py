"""Gated values: by hand, and against the attention of transformers' Qwen3NextForCausalLM, whose gate lies beside each query.

Gated norms by hand; A.X K2's class has both (the laws).
"""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import transformers
from torch import Tensor

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, QK_NORMS
from anyformer.families.hf.mapping import ours_of, theirs_of
from anyformer.families.qwen3 import qwen3
from anyformer.layers import (
    AttentionSpec,
    GatedRMSNormSpec,
    GQASpec,
    MLASpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    Sigmoid,
    Softplus,
)
from anyformer.layers.gated_norm import GatedRMSNorm
from anyformer.resizing import shrink
from anyformer.spec import Place, Width
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import FLOAT32, close, distance
from tests.laws.weights import filled, telling

GATE = "0.branches.0.mixer.gate"


@pytest.mark.parametrize("over", ["features", "heads"])
@pytest.mark.parametrize("activation", [Sigmoid(), Softplus()])
def test_each_head_is_multiplied_before_the_map_of_all(
    over: Literal["features", "heads"], activation: Sigmoid | Softplus
) -> None:
    """By hand: what the ungated layer gives its output map, head by head and token by token."""
    gate = OutputGateSpec(over=over, activation=activation, bias=True)
    spec = changed(shrink(preset("llama3-8b").spec), AttentionSpec, gate=gate)
    model, ids = randomised(spec), ids_for(spec, 2, 9)
    attention = model.stack.blocks[0].sublayers[0].branches[0].mixer
    seen: dict[str, Tensor] = {}
    attention.register_forward_pre_hook(lambda _, given: seen.update(x=given[0]))
    attention.projection.o.register_forward_pre_hook(lambda _, given: seen.update(gated=given[0]))
    attention.gate.register_forward_pre_hook(lambda _, given: seen.update(plain=given[0]))
    with torch.no_grad():
        model(ids)
        n_heads, width = seen["plain"].shape[1], seen["plain"].shape[3]
        weight, bias = attention.gate.weight, attention.gate.bias
        for h in range(n_heads):
            for i in range(width):
                row = h * width + i if over == "features" else h
                factor = seen["x"] @ weight[row] + bias[row]
                factor = torch.sigmoid(factor) if isinstance(activation, Sigmoid) else (1 + factor.exp()).log()
                close(seen["gated"][..., h * width + i], seen["plain"][:, h, :, i] * factor)
    assert distance(model(ids).logits, randomised(changed(spec, AttentionSpec, gate=None))(ids).logits) > 0.01


def test_it_may_read_what_queries_are_made_of() -> None:
    """By hand: of the latent normed, and as it was beside it; so are queries, and an indexer's are of the normed one alone."""
    spec = changed(shrink(preset("deepseek-v3.2").spec), AttentionSpec, gate=OutputGateSpec(reads="query"))
    spec = changed(spec, MLASpec, unnormed=True)
    model, ids = randomised(spec), ids_for(spec, 2, 9)
    attention = model.stack.blocks[0].sublayers[0].branches[0].mixer
    projection, seen = attention.projection, dict[str, Tensor]()
    attention.register_forward_pre_hook(lambda _, given: seen.update(x=given[0]))
    projection.o.register_forward_pre_hook(lambda _, given: seen.update(gated=given[0]))
    projection.q.register_forward_pre_hook(lambda _, given: seen.update(read=given[0]))
    attention.indexer.q.register_forward_pre_hook(lambda _, given: seen.update(index=given[0]))
    attention.gate.register_forward_pre_hook(lambda _, given: seen.update(plain=given[0]))
    with torch.no_grad():
        model(ids)
        latent = seen["x"] @ projection.q_down.weight.T
        normed = latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt() * projection.norm_query.weight
        close(seen["read"], torch.cat((normed, latent), -1))
        close(seen["index"], normed)
        factor = torch.sigmoid(seen["read"] @ attention.gate.weight.T)
        close(seen["gated"], seen["plain"].transpose(1, 2).flatten(2) * factor)


@pytest.mark.parametrize("missing", ["query_rank", "norm_query"])
def test_a_latent_before_its_norm_is_one_with_a_norm(missing: str) -> None:
    mla = next(shrink(preset("deepseek-v3.2").spec).nested(MLASpec))
    with pytest.raises(
        SpecError, match=r"MLA.unnormed = True is of a latent of queries, and its norm; give query_rank and"
    ):
        mla.but(unnormed=True).but(**{missing: None})


def test_a_norm_is_gated_by_what_it_makes() -> None:
    spec = GatedRMSNormSpec(eps=1e-3, rank=Width(3))
    norm = GatedRMSNorm(spec, Place(8, (8,)))
    for i, parameter in enumerate(norm.parameters()):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(9))
    gain = norm.norm.weight
    assert gain is not None
    y = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * gain
    inner = y @ norm.down.weight.T
    close(norm(x), y / (1 + (-(inner / (1 + (-inner).exp())) @ norm.up.weight.T).exp()))
    assert sum(each.numel() for each in norm.parameters()) == 8 + 2 * 3 * 8


def test_layers_may_share_such_a_norm() -> None:
    """Each matrix of it is there once, and both layers read it."""
    spec = changed(shrink(preset("a.x-k2-light").spec), GatedRMSNormSpec, rank=Width(3), shared="norms")
    model = randomised(spec)
    names = [name for name in model.state_dict() if "norms" in name]
    assert names == [f"shared.norms.{each}.weight" for each in ("norm", "down", "up")]
    before = model(ids_for(spec, 1, 7)).logits
    model.get_parameter("shared.norms.up.weight").data.zero_()
    assert distance(model(ids_for(spec, 1, 7)).logits, before.detach()) > 1e-3


def test_it_is_what_qwen3_next_does() -> None:
    """A layer of full attention: norms, gains stored minus one, a quarter that rotates, and a gate in each head's query rows."""
    norm = RMSNormSpec(eps=1e-6, weight_offset=1.0, cast="after")
    spec = changed(qwen3(1, 32, 4, 48, 2).but(context=64), RotarySpec, fraction=0.25, theta=1e4)
    spec = changed(changed(spec, GQASpec, head_dim=Width(16)), RMSNormSpec, **norm.values())
    spec = af.resize(changed(spec, AttentionSpec, gate=OutputGateSpec()), d_model=32, n_layers=1, vocab_size=101)
    both = (f"{table.PROJECTION}.q", GATE)
    modules = {**NORMS, **GATED, **QK_NORMS, **ATTENTION, both: Theirs("self_attn.q_proj", by="query")}
    del modules[f"{table.PROJECTION}.q"]
    rows = table.family("qwen3_next", "Qwen3NextForCausalLM", spec, (), modules).rows(spec)
    theirs = transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            vocab_size=101,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            layer_types=["full_attention"],
            mlp_only_layers=[0],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        )
    ).eval()
    weights = telling(spec)
    named = dict(theirs_of(rows, weights.__getitem__))
    theirs.load_state_dict(named)
    ids = ids_for(spec, 2, 12)
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
        assert distance(filled(spec, weights)(ids).logits, expected) < FLOAT32
    back = dict(ours_of(rows, named.__getitem__))
    assert all(torch.equal(back[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("over", "width"), [("features", 4096), ("heads", 32)])
def test_it_is_counted_costed_and_said(over: Literal["features", "heads"], width: int) -> None:
    spec = preset("llama3-8b").spec
    gated = changed(spec, AttentionSpec, gate=OutputGateSpec(over=over))
    assert af.parameters(gated).total - af.parameters(spec).total == 32 * 4096 * width
    flops = [af.cost(s, seq_len=8, batch=3).forward_flops for s in (gated, spec)]
    assert sum(flops[0].values()) - sum(flops[1].values()) == 2 * 32 * 4096 * width * 3 * 8
    biased = changed(spec, AttentionSpec, gate=OutputGateSpec(over=over, bias=True))
    said = {"features": "a number a feature", "heads": "one a head"}[over]
    assert f"× Sigmoid(W x + b), {said}" in str(af.card(biased))
    (kept,) = {value for value in af.resize(biased, d_model=256).nested() if isinstance(value, OutputGateSpec)}
    assert kept == OutputGateSpec(over=over, bias=True)


def test_a_gated_norm_is_of_the_stream() -> None:
    """Within a mixer its matrices would be in no count of FLOPs."""
    gated = GatedRMSNormSpec(rank=Width(3))
    with pytest.raises(
        SpecError, match="Attention has GatedRMSNorm within, which is for the stream's vectors; put it before a"
    ):
        changed(shrink(preset("qwen3-8b").spec), GQASpec, norm_query=gated)
