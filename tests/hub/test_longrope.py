"""Directories with longrope, which no preset has, come and go: Phi-3's 128k models and Phi-3.5-MoE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anyformer.families.hf.mapping import computed
from anyformer.hub import convert, load, load_spec, save
from anyformer.layers import LongRoPE, RotarySpec
from tests.laws.tolerance import FLOAT32, close, distance
from tests.laws.weights import filled, telling

N_PAIRS = 8
SHORT = [1.0 + 0.02 * i for i in range(N_PAIRS)]
LONG = [1.1 + 0.9 * i for i in range(N_PAIRS)]
SIZES = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "original_max_position_embeddings": 16,
    "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
DIRECTORIES: dict[str, dict[str, Any]] = {
    "phi3 128k": {
        "model_type": "phi3", "sliding_window": None, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    },
    "phi3 128k, as first released": {
        "model_type": "phi3", "sliding_window": 262144, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG},
    },
    "phi3.5-moe": {
        "model_type": "phimoe", "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True,
        "lm_head_bias": True, "sliding_window": None, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "type": "longrope", "short_factor": SHORT, "long_factor": LONG, "short_mscale": 1.243, "long_mscale": 1.243,
            "original_max_position_embeddings": 16,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("length", [12, 40], ids=["within the original context", "beyond it"])
@pytest.mark.parametrize("name", DIRECTORIES)
def test_import_and_export_keep_the_factors(name: str, length: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES | DIRECTORIES[name]))
    spec = load_spec(tmp_path / "config.json")
    scaling = next(value for value in spec.nested() if isinstance(value, RotarySpec)).scaling
    assert isinstance(scaling, LongRoPE)
    assert (list(scaling.short), list(scaling.long)) == (SHORT, LONG)
    assert (scaling.factor, scaling.original_context) == (16.0, 16)
    model = filled(spec, telling(spec))
    saved = save(model, tmp_path / "out")
    convert(saved.path, tmp_path / "again", hf_type=DIRECTORIES[name]["model_type"])  # a LLaMA computes Phi-3's, too
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["model_type"] == DIRECTORIES[name]["model_type"]
    assert (written["rope_scaling"]["short_factor"], written["rope_scaling"]["long_factor"]) == (SHORT, LONG)
    ours, ids = load(tmp_path / "again")[0], torch.arange(length)[None] % 101
    assert computed(ours.spec) == computed(spec)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(ids).logits
        if name == "phi3.5-moe" and length > SIZES["original_max_position_embeddings"]:  # type: ignore[operator]
            # Its class takes the short factors at every length, which the released code and the paper do not.
            assert distance(ours(ids).logits, logits) > 100 * FLOAT32
            (tmp_path / "again" / "config.json").write_text(json.dumps(written | {"rope_scaling": {
                **written["rope_scaling"], "long_factor": SHORT}}))  # fmt: skip
            ours = load(tmp_path / "again")[0]
        close(ours(ids).logits, logits)
