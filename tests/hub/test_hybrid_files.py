"""Files of hybrids as they are released: layers that predict further beside the model, older words for kinds of layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families.compose import changed
from anyformer.families.hf.settings import INFINITY
from anyformer.hub import load, save
from anyformer.resizing import shrink
from anyformer.spec import TableSpec
from tests.hub.edits import settings

WEIGHTS = "model.safetensors"


def saved(name: str, at: Path, **changes: Any) -> af.ModelSpec:
    """Save a shrunk preset as its class's directory, with other words in its configuration."""
    spec = shrink(af.preset(name).spec)
    assert save(af.build(spec), at).form == "hf"
    settings(at, **changes)
    return spec


def test_layers_that_predict_further_are_passed_over_and_others_are_not(tmp_path: Path) -> None:
    spec = saved("qwen3-next-80b-a3b", tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({**tensors, "mtp.layers.0.mlp.gate.weight": torch.ones(2)}, tmp_path / WEIGHTS)
    assert load(tmp_path)[0].spec == spec
    save_file({**tensors, "mtplayers.weight": torch.ones(2)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"mtplayers\.weight"):
        load(tmp_path)


def test_files_of_a_tied_model_may_hold_the_head_too(tmp_path: Path) -> None:
    spec = changed(shrink(af.preset("nemotron-h-8b").spec), TableSpec, shared="tokens")
    assert save(af.build(spec), tmp_path).form == "hf"
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({**tensors, "lm_head.weight": tensors["backbone.embeddings.weight"].clone()}, tmp_path / WEIGHTS)
    assert load(tmp_path)[0].spec == spec


def test_older_words_for_layers_mean_the_same(tmp_path: Path) -> None:
    spec = saved("granite-4.0-h-micro", tmp_path / "new")
    older = {"linear_attention": "mamba", "full_attention": "attention"}
    words = [older[word] for word in json.loads((tmp_path / "new" / "config.json").read_text())["layer_types"]]
    assert set(words) == {"mamba", "attention"}
    saved("granite-4.0-h-micro", tmp_path / "old", layer_types=words)
    assert load(tmp_path / "old")[0].spec == load(tmp_path / "new")[0].spec
    saved("granite-4.0-h-micro", tmp_path / "none", layer_types=["conv"] * spec.n_layers)
    with pytest.raises(
        CheckpointError, match=r"layer_types = .* must be [0-9]+ times linear_attention or full_attention"
    ):
        load(tmp_path / "none")


@pytest.mark.parametrize("most", ["Infinity", json.dumps(INFINITY)])
def test_a_bound_may_be_infinite_and_nothing_else(most: str, tmp_path: Path) -> None:
    spec = saved("mamba2-130m", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    text = json.dumps(config | {"time_step_limit": [0.0, "most"]}).replace('"most"', most)
    (tmp_path / "config.json").write_text(text)
    assert load(tmp_path)[0].spec == spec
    (tmp_path / "config.json").write_text(text.replace('"layer_norm_epsilon": 1e-05', f'"layer_norm_epsilon": {most}'))
    with pytest.raises(CheckpointError, match=r"layer_norm_epsilon = .* must be of type float"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(text.replace(most, '"far"'))
    with pytest.raises(CheckpointError, match=r"time_step_limit = .* must be the least and the largest step"):
        load(tmp_path)
