"""Reformer's files and transformers' class, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from anyformer.errors import CheckpointError
from anyformer.families import PRESETS
from anyformer.families.hf import FAMILIES
from anyformer.families.hf.mapping import computed, fitting, spec_of
from anyformer.families.reformer import reformer
from anyformer.hub import load, save
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, parameters
from tests.laws.models import randomised
from tests.reformer_directions import draw_in_float32

# As the released files say it, with what they say of nothing (from memory).
CRIME_AND_PUNISHMENT: dict[str, Any] = {
    "model_type": "reformer", "architectures": ["ReformerModelWithLMHead"], "attention_head_size": 64,
    "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"], "axial_norm_std": 1.0, "axial_pos_embds": True,
    "axial_pos_embds_dim": [64, 192], "axial_pos_shape": [512, 1024], "chunk_size_feed_forward": 0, "chunk_size_lm_head": 0,
    "eos_token_id": 2, "feed_forward_size": 512, "hash_seed": None, "hidden_act": "relu", "hidden_dropout_prob": 0.05,
    "hidden_size": 256, "initializer_range": 0.02, "intermediate_size": 3072, "is_decoder": True, "layer_norm_eps": 1e-12,
    "local_attention_probs_dropout_prob": 0.05, "local_attn_chunk_length": 64, "local_num_chunks_after": 0,
    "local_num_chunks_before": 1, "lsh_attention_probs_dropout_prob": 0.0, "lsh_attn_chunk_length": 64,
    "lsh_num_chunks_after": 0, "lsh_num_chunks_before": 1, "max_position_embeddings": 524_288, "num_attention_heads": 2,
    "num_buckets": [64, 128], "num_chunks_after": 0, "num_chunks_before": 1, "num_hashes": 1, "num_hidden_layers": 6,
    "output_past": True, "pad_token_id": 0, "sinusoidal_pos_embds": False, "vocab_size": 320,
}  # fmt: skip


UNUSED = "lm_head.bias"  # of transformers 5.24's class, whose decoder has a bias of its own


def small(layers: str = "local lsh", **sizes: Any) -> ModelSpec:
    return reformer(layers, 2, 24, 3, 32, head_dim=10, vocab_size=61, shape=(4, 12), narrow=8, chunks=(4, 8), **sizes)


def test_the_released_configuration_is_the_preset() -> None:
    family, spec = spec_of(FAMILIES, CRIME_AND_PUNISHMENT, "config.json")
    assert computed(spec) == computed(PRESETS["reformer-crime-and-punishment"].spec)
    assert spec.context == 524_288
    assert family.hf_type == "reformer"


def test_enwik8_has_the_parameters_of_the_class() -> None:
    spec = PRESETS["reformer-enwik8"].spec
    _, settings = fitting(FAMILIES.values(), spec)
    with torch.device("meta"):
        theirs = transformers.ReformerModelWithLMHead(transformers.ReformerConfig(**settings))
    assert parameters(spec).total == sum(p.numel() for name, p in theirs.named_parameters() if name != UNUSED)


@pytest.fixture(autouse=True)
def _directions(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_in_float32(monkeypatch)


@torch.no_grad()
@pytest.mark.parametrize(
    "spec",
    [
        small(n_hashes=2, n_buckets=(4, 2)),
        small("local"),
        small("lsh", n_buckets=(4,)),
        shrink(PRESETS["reformer-enwik8"].spec),
    ],
    ids=["both kinds", "local only", "hashed only", "enwik8, small"],
)
def test_directories_go_both_ways(spec: ModelSpec, tmp_path: Path) -> None:
    model = randomised(spec)
    save(model, tmp_path / "ours")
    kind: Any = transformers.ReformerModelWithLMHead
    theirs, said = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.randint(0, spec.vocab_size, (2, 29), generator=torch.Generator().manual_seed(0))
    # In float64: theirs has a token that is alone in all rounds by logarithms of sums near e^-100000, which float32 tells apart
    # by 0.008.
    expected = theirs.eval().double()(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(model.double()(ids).logits, expected, rtol=0, atol=1e-9 * expected.abs().max().item())
    theirs.float().save_pretrained(tmp_path / "theirs")
    back, _ = load(tmp_path / "theirs")
    assert torch.equal(back.double()(ids).logits, model(ids).logits)


@pytest.mark.parametrize("held", [{"lm_head.bias": 1.0}, {"lm_head.bias": 2.0, "lm_head.decoder.bias": 1.0}])
def test_the_bias_of_files_of_each_version_is_added(held: dict[str, float], tmp_path: Path) -> None:
    """Version 4 writes the class's own alone, which its decoder shares; from 5.24 on only the decoder's is added."""
    spec = small()
    save(build(spec, seed=0), tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    weights = load_file(file)
    del weights["lm_head.bias"], weights["lm_head.decoder.bias"]
    save_file(weights | {name: torch.full((61,), value) for name, value in held.items()}, file)
    assert load(tmp_path / "a")[0].state_dict()["heads.0.bias"].tolist() == [1.0] * 61


def test_what_the_class_cannot_say_is_refused() -> None:
    assert fitting(FAMILIES.values(), small())[0].hf_type == "reformer"
    for changes, says in (
        ({"is_decoder": False}, "is_decoder"),
        ({"attn_layers": ["local", "global"]}, "attn_layers"),
        ({"axial_pos_embds_dim": [64, 64]}, r"axial_pos_embds_dim .* whose sum is hidden_size = 256"),
        ({"axial_pos_shape": [512, 10.5]}, "axial_pos_shape"),
        ({"num_hidden_layers": 4}, "num_hidden_layers"),
    ):
        with pytest.raises(CheckpointError, match=says):
            spec_of(FAMILIES, CRIME_AND_PUNISHMENT | changes, "config.json")


def test_learned_positions_are_read() -> None:
    config = CRIME_AND_PUNISHMENT | {"axial_pos_embds": False, "max_position_embeddings": 64}
    _, spec = spec_of(FAMILIES, config, "config.json")
    assert build(spec, seed=0)(torch.zeros(1, 5, dtype=torch.long)).logits.shape == (1, 5, 320)
    assert fitting(FAMILIES.values(), spec)[1]["axial_pos_embds"] is False
