"""Law 6 for mixtures of experts: every field that distinguishes them is seen in the logits; both layouts of files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import fitting, spec_of, theirs_of
from anyformer.hub import load, save
from anyformer.layers import (
    GELU,
    AttentionSpec,
    BlockIndexerSpec,
    Causal,
    CausalConvolutionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    MoASpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
    SlidingWindow,
    YaRN,
)
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, ModelSpec, ScaleSpec, Spec
from tests.laws.models import ids_for, same
from tests.laws.mutations import check_mutation, each_mutation
from tests.laws.weights import filled, telling

MUTATIONS: dict[str, list[tuple[type[Spec], dict[str, Any]]]] = {
    "mixtral-8x7b": [
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"top_k": 3}),
        (RouterSpec, {"renormalise": False}),
        (RouterSpec, {"factor": 1.001}),
        (RouterSpec, {"score": "sigmoid"}),
        (GatedFeedForwardSpec, {"activation": GELU()}),
        (RMSNormSpec, {"eps": 1e-6}),
        (RotarySpec, {"theta": 1.1e6}),
    ],
    "jetmoe-8b": [
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"score": "softmax"}),
        (MoASpec, {"rotary": RotarySpec(theta=1.1e4)}),
        (RMSNormSpec, {"eps": 1e-5}),
    ],
    "qwen1.5-moe-a2.7b": [
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"renormalise": True}),
        (RMSNormSpec, {"eps": 1e-5}),
    ],
    "phi3.5-moe": [
        (RouterSpec, {"tolerance": 0.02}),
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"score": "softmax"}),
        (LayerNormSpec, {"eps": 1e-6}),
        (RotarySpec, {"theta": 11_000.0}),
    ],
    "gpt-oss-20b": [
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"score": "softmax"}),
        (GatedFeedForwardSpec, {"limit": 6.0}),
        (GatedFeedForwardSpec, {"up_offset": 0.99}),
        (GatedFeedForwardSpec, {"activation": GELU()}),
        (SlidingWindow, {"size": 4}),
        (AttentionSpec, {"mask": Causal()}),
        (YaRN, {"truncate": True}),
        (YaRN, {"factor": 33.0}),
        (YaRN, {"beta_fast": 4.0}),
        (YaRN, {"beta_slow": 1.1}),
        (RotarySpec, {"theta": 160_000.0}),
    ],
    "minimax-m3": [
        (AttentionSpec, {"indexer": None}),
        (BlockIndexerSpec, {"top_k": 3}),
        (BlockIndexerSpec, {"every": 4}),
        (BlockIndexerSpec, {"near": 2}),
        (BlockIndexerSpec, {"layout": "interleaved"}),
        (BlockIndexerSpec, {"norm_query": RMSNormSpec(weight_offset=2.0)}),
        (BlockIndexerSpec, {"norm_key": RMSNormSpec(weight_offset=2.0)}),
        (GQASpec, {"norm_query": None, "norm_key": None}),
        (RotarySpec, {"fraction": 1.0}),
        (RouterSpec, {"factor": 1.9}),
        (GatedFeedForwardSpec, {"limit": 0.5}),
        (GatedFeedForwardSpec, {"up_offset": 0.99}),
        (GatedFeedForwardSpec, {"activation": GELU()}),
    ],
    "flexolmo-7x7b-1t": [
        (RouterSpec, {"score": "sigmoid"}),
        (GQASpec, {"norm_query": None, "norm_key": None}),
        (BranchSpec, {"norm_out": None}),
    ],
    "hunyuan-a13b": [
        (GQASpec, {"norm_last": False}),
        (RouterSpec, {"renormalise": False}),
        (RotarySpec, {"theta": 1e4}),
    ],
    "kolibri-1": [
        (RouterSpec, {"corrects": "scores"}),
        (RouterSpec, {"renormalise": True}),
        (BranchSpec, {"norm_out": None}),
        (GQASpec, {"norm_query": None, "norm_key": None}),
        (SlidingWindow, {"size": 4}),
    ],
    "granite-moe-swa": [
        (RouterSpec, {"score": "softmax"}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (SlidingWindow, {"size": 4}),
    ],
    "command-a-moe": [
        (RouterSpec, {"score": "softmax"}),
        (RotarySpec, {"layout": "half"}),
        (SlidingWindow, {"size": 4}),
    ],
    "a.x-k1": [(BranchSpec, {"norm_out": None}), (RouterSpec, {"factor": 2.4})],
    "inkling": [
        (SlidingWindow, {"size": 4}),
        (GQASpec, {"short": None}),
        (GQASpec, {"norm_query": None, "norm_key": None}),
        (BranchSpec, {"then": None}),
        (BranchSpec, {"norm_out": None}),
        (CausalConvolutionSpec, {"activation": SiLU()}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (RouterSpec, {"renormalise": False}),
        (RouterSpec, {"score": "softmax"}),
        (RMSNormSpec, {"eps": 1e-5}),
    ],
    "lfm2-8b-a1b": [
        (RouterSpec, {"eps": 1e-2}),
        (RouterSpec, {"score": "softmax"}),
        (RouterSpec, {"renormalise": False}),
        (CausalConvolutionSpec, {"activation": SiLU()}),
    ],
}


@pytest.mark.in_turn(4)
@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)


@pytest.mark.parametrize("part", ["shared_gate", "shared_expert"])
def test_the_shared_expert_and_its_gate_are_seen(part: str) -> None:
    spec = shrink(preset("qwen1.5-moe-a2.7b").spec)
    weights, ids = telling(spec), ids_for(spec, 2, 20)
    without = {name: torch.zeros_like(w) if f".{part}." in name else w for name, w in weights.items()}
    with torch.no_grad():
        assert (filled(spec, weights)(ids).logits - filled(spec, without)(ids).logits).abs().max() > 1e-2


FAMILIAR = ["mixtral-8x7b", "qwen1.5-moe-a2.7b", "phi3.5-moe"]


@pytest.mark.parametrize("name", FAMILIAR)
def test_fused_files_are_read_as_well_as_split_ones(name: str, tmp_path: Path) -> None:
    """Transformers 5 holds the experts fused and writes each alone, as its older versions did; some tools write them fused."""
    spec = shrink(preset(name).spec)
    model, ids = filled(spec, telling(spec)), ids_for(spec, 2, 9)
    save(model, tmp_path / "split")
    names = load_file(tmp_path / "split" / "model.safetensors")
    assert any(".experts.0." in n for n in names)
    assert not any("gate_up_proj" in n for n in names)
    family, _ = fitting(FAMILIES.values(), spec)
    fused = dict(theirs_of(family.rows(spec), model.state_dict().__getitem__))
    assert any(n.endswith("experts.gate_up_proj") for n in fused)
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "config.json").write_bytes((tmp_path / "split" / "config.json").read_bytes())
    save_file({n: t.contiguous() for n, t in fused.items()}, str(tmp_path / "fused" / "model.safetensors"))
    with torch.no_grad():
        for directory in ("split", "fused"):
            assert same(spec, load(tmp_path / directory)[0](ids).logits, model(ids).logits)


@pytest.mark.parametrize("name", FAMILIAR)
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    names = load_file(file)
    lost = next(n for n in names if ".experts.1." in n)
    save_file({n: t for n, t in names.items() if n != lost}, str(file))
    with pytest.raises(CheckpointError, match=f"missing: {lost.replace('.', '[.]')}$"):
        load(tmp_path / "out")


def config(name: str, **changes: Any) -> dict[str, Any]:
    family, settings = fitting(FAMILIES.values(), shrink(preset(name).spec))
    return {"model_type": family.hf_type, **settings, **changes}


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, r"top_k = 9 must be from 1 to n_experts = 4"),
        ("mixtral-8x7b", {"num_local_experts": 0}, r"n_experts = 0 must be at least 1; the file says num_local"),
        ("mixtral-8x7b", {"num_local_experts": "4"}, r"num_local_experts = '4' must be of type int"),
        ("qwen1.5-moe-a2.7b", {"decoder_sparse_step": -1}, r"decoder_sparse_step = -1 is no number that a model has"),
        ("qwen1.5-moe-a2.7b", {"mlp_only_layers": 3}, r"mlp_only_layers = 3 must be a list of some of the 2 layers"),
        ("qwen1.5-moe-a2.7b", {"use_sliding_window": True}, r"use_sliding_window = True is not computed here"),
        ("qwen1.5-moe-a2.7b", {"layer_types": ["sliding_attention"] * 2}, r"has windows, which are not computed"),
        ("gpt-oss-20b", {"num_experts_per_tok": 0}, r"Router.top_k = 0 must be at least 1"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, r"layer_types = .* must be 2 times"),
        ("phi3.5-moe", {"router_jitter_noise": -1.0}, r"router_jitter_noise = -1.0 is no number that a model has"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_a_line(name: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as error:
        spec_of(FAMILIES, config(name, **changes), "config.json")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("config.json: ")


def test_dense_layers_of_qwens_stand_where_they_should() -> None:
    """decoder_sparse_step 2 makes every second layer sparse, mlp_only_layers makes layer 3 dense; there is no layer 9."""
    given = config(
        "qwen1.5-moe-a2.7b", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3, 9], intermediate_size=20
    )
    family, spec = spec_of(FAMILIES, given, "config.json")
    sparse = [any(isinstance(value, MoESpec) for value in block.nested()) for block in spec.stack.blocks]
    assert sparse == [False, True, False, False, False, True]
    back: ModelSpec = spec_of(FAMILIES, {"model_type": "qwen2_moe", **family.to_config(spec)}, "config.json")[1]
    assert back == spec
    assert any(isinstance(v, GQASpec) and v.bias_query and not v.bias_output for v in spec.nested())
    import transformers

    theirs = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**given))
    assert [type(layer.mlp).__name__ == "Qwen2MoeSparseMoeBlock" for layer in theirs.model.layers] == sparse
