"""MXFP4: each code of four bits, each scale, whole files of gpt-oss; other quantisations are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from anyformer.errors import AnyformerError, CheckpointError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.gpt_oss import gpt_oss
from anyformer.hub import convert, load, load_spec, save
from anyformer.hub.mxfp4 import unpacked
from anyformer.hub.weights import FILE
from anyformer.layers import GQASpec, SlidingWindow
from anyformer.spec import Length, TableSpec, Vocab, Width, Window
from tests.hub.edits import settings
from tests.laws.weights import filled, telling

PACKED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def test_every_code_and_every_scale() -> None:
    """A plain loop over the format's definition: sign, exponent of bias 1, mantissa; without an exponent subnormal."""
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | codes.flip(0) << 4).expand(1, 256, 1, 16)  # low: 0 … 15, high: 15 … 0
    scales = torch.arange(256, dtype=torch.uint8).view(1, 256, 1)
    found = unpacked(blocks, scales, torch.float64)[0]
    for scale in range(256):
        for code in range(16):
            sign, exponent, mantissa = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
            value = sign * ((1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2)
            for place in (2 * code, 2 * (15 - code) + 1):
                number = found[scale, place].item()
                if scale == 255:
                    assert number != number  # the one scale that is no number
                elif abs(value * 2.0 ** (scale - 127)) < 2.0**128:
                    assert number == value * 2.0 ** (scale - 127), (scale, code)
                else:
                    assert number == sign * float("inf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tensors_are_those_of_transformers(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 24, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(90, 140, (3, 24, 2), dtype=torch.uint8, generator=generator)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    ours = unpacked(blocks, scales, dtype)
    assert ours.dtype == dtype
    assert torch.equal(ours.transpose(1, 2), theirs)


def packed(directory: Path) -> dict[str, Tensor]:
    """Save a small gpt-oss as it is released; return what transformers makes of its experts."""
    spec = gpt_oss(n_layers=2, n_experts=4, top_k=2, d_model=64, d_ff=32, n_heads=4, n_kv_heads=2)
    spec = changed(changed(spec, GQASpec, head_dim=Width(16)), SlidingWindow, size=Window(4))
    spec = changed(spec, TableSpec, rows=Vocab(101)).but(context=Length(256))
    save(filled(spec, telling(spec)).to(torch.bfloat16), directory)
    generator = torch.Generator().manual_seed(1)
    tensors, expected = load_file(directory / FILE), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        n_experts, d_in, d_out = tensors.pop(name).shape
        shape = (n_experts, d_out, d_in // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 126, shape, dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expected[name] = convert_moe_packed_tensors(blocks, scales)
    (directory / FILE).unlink()
    save_file(tensors, directory / FILE)
    # As the released files have it: two settings twice, by another name.
    settings(directory, quantization_config=PACKED, experts_per_token=2, initial_context_length=4096)
    return expected


def test_released_files_are_read_and_written_plain(tmp_path: Path) -> None:
    expected = packed(tmp_path / "released")
    assert load_spec(tmp_path / "released" / "config.json") == load_spec(tmp_path / "released")
    convert(tmp_path / "released", tmp_path / "plain")
    written = load_file(tmp_path / "plain" / FILE)
    assert len(expected) == 4
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    first, last = (load(tmp_path / name)[0] for name in ("released", "plain"))
    assert {p.dtype for p in first.parameters()} == {torch.bfloat16}
    for (name, tensor), other in zip(first.state_dict().items(), last.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name
    (gate,) = [t for n, t in first.state_dict().items() if ".0.sublayers.1." in n and n.endswith("gate.weight")]
    assert torch.equal(gate, expected["model.layers.0.mlp.experts.gate_up_proj"][..., 0::2].transpose(1, 2))


@pytest.mark.parametrize("lost", ["_scales", "_blocks"])
def test_half_a_tensor_is_refused_by_name(tmp_path: Path, lost: str) -> None:
    packed(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / FILE)
    del tensors[f"model.layers.1.mlp.experts.down_proj{lost}"]
    (tmp_path / "m" / FILE).unlink()
    save_file(tensors, tmp_path / "m" / FILE)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.experts\.down_proj") as caught:
        load(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_blocks_of_another_size_are_refused(tmp_path: Path) -> None:
    packed(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / FILE)
    name = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    tensors[name] = tensors[name][..., :8].contiguous()
    (tmp_path / "m" / FILE).unlink()
    save_file(tensors, tmp_path / "m" / FILE)
    with pytest.raises(
        CheckpointError, match=r"gate_up_proj_blocks is \[4, 64, 2, 8\] .*; MXFP4 has \[experts, out, n"
    ):
        load(tmp_path / "m")


@pytest.mark.parametrize("section", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "fp8"}, {"bits": 4}, "4bit"])
def test_other_quantisations_are_refused_by_method(tmp_path: Path, section: Any) -> None:
    packed(tmp_path / "m")
    settings(tmp_path / "m", quantization_config=section)
    method = section.get("quant_method") if isinstance(section, dict) else None
    for read in (load, load_spec, lambda path: convert(path, tmp_path / "out")):
        with pytest.raises(AnyformerError, match=f"quantization_config has quant_method {method!r}") as caught:
            read(tmp_path / "m")
        assert caught.value.exit_status == 2
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("experts_per_token", 3), ("initial_context_length", 2048)])
def test_what_is_said_twice_must_be_the_same(tmp_path: Path, name: str, value: int) -> None:
    packed(tmp_path / "m")
    settings(tmp_path / "m", **{name: value})
    with pytest.raises(CheckpointError, match=f"{name} = {value} is not computed here; only"):
        load(tmp_path / "m")


def test_the_released_configuration_is_the_preset(tmp_path: Path) -> None:
    """config.json of openai/gpt-oss-120b, settings that change no number left out."""
    config = {
        "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "max_position_embeddings": 131072,
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "num_local_experts": 128, "output_router_logits": False, "pad_token_id": 199999, "quantization_config": PACKED,
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
                         "original_max_position_embeddings": 4096},
        "swiglu_limit": 7.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 201088,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found, known = load_spec(tmp_path / "config.json"), preset("gpt-oss-120b").spec
    assert (found.stack, found.heads) == (known.stack, known.heads)
