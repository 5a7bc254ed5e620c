"""DeepSeek-V3's layers for further tokens in files: named as the released ones, passed over by transformers, never lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.deepseek import predicting_further
from anyformer.families.hf.mapping import fitting, ours_of, their_shapes, theirs_of
from anyformer.hub import load, load_spec, save
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.models import ids_for
from tests.laws.tolerance import close
from tests.laws.weights import filled, telling

N_AHEAD = 2
SPEC = predicting_further(shrink(preset("deepseek-v3").spec), N_AHEAD)
N = SPEC.n_layers
# Of layer 61 in the released files, its experts written once.
RELEASED = {
    "eh_proj.weight": (7168, 14_336),
    "enorm.weight": (7168,),
    "hnorm.weight": (7168,),
    "shared_head.norm.weight": (7168,),
    "input_layernorm.weight": (7168,),
    "post_attention_layernorm.weight": (7168,),
    "self_attn.q_a_proj.weight": (1536, 7168),
    "self_attn.q_a_layernorm.weight": (1536,),
    "self_attn.q_b_proj.weight": (24_576, 1536),
    "self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
    "self_attn.kv_a_layernorm.weight": (512,),
    "self_attn.kv_b_proj.weight": (32_768, 512),
    "self_attn.o_proj.weight": (7168, 16_384),
    "mlp.gate.weight": (256, 7168),
    "mlp.gate.e_score_correction_bias": (256,),
    "mlp.shared_experts.gate_proj.weight": (2048, 7168),
    "mlp.shared_experts.up_proj.weight": (2048, 7168),
    "mlp.shared_experts.down_proj.weight": (7168, 2048),
    **{f"mlp.experts.{i}.{x}_proj.weight": (2048, 7168) for i in range(256) for x in ("gate", "up")},
    **{f"mlp.experts.{i}.down_proj.weight": (7168, 2048) for i in range(256)},
}


def written(spec: ModelSpec, to: Path) -> dict[str, Any]:
    """Save a model and return the tensors in its one file."""
    save(filled(spec, telling(spec)), to)
    return load_file(to / "model.safetensors")


def test_the_files_are_laid_out_as_the_released_ones() -> None:
    spec = preset("deepseek-v3-mtp").spec
    family, config = fitting(FAMILIES.values(), spec)
    assert config["num_nextn_predict_layers"] == 1
    assert family.files is not None
    named = their_shapes(family.files(spec), spec)
    prefix = "model.layers.61."
    assert {n.removeprefix(prefix): shape for n, shape in named.items() if n.startswith(prefix)} == RELEASED
    bare = preset("deepseek-v3").spec
    assert {n: s for n, s in named.items() if not n.startswith(prefix)} == their_shapes(family.files(bare), bare)
    again = {other for row in family.files(spec) for other in row.also if other.startswith(prefix)}
    assert again - {f"{prefix}self_attn.rotary_emb.inv_freq"} == {
        f"{prefix}embed_tokens.weight",
        f"{prefix}shared_head.head.weight",
    }


@pytest.mark.parametrize("filed", [False, True])
def test_rows_go_both_ways(filed: bool) -> None:
    family, weights = FAMILIES["deepseek_v3"], telling(SPEC)
    rows = family.files(SPEC) if filed and family.files else family.rows(SPEC)
    theirs = dict(theirs_of(rows, weights.__getitem__))
    back = dict(ours_of(rows, theirs.__getitem__))
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[n], weights[n]) for n in weights)
    width = SPEC.stack.d_model
    for k in range(N_AHEAD):
        joined = theirs[f"model.layers.{N + k}.eh_proj.weight"]
        assert torch.equal(joined[:, :width], weights[f"ahead.{k}.token.weight"]), "the embedding comes first"
        assert torch.equal(joined[:, width:], weights[f"ahead.{k}.hidden.weight"])
        assert torch.equal(theirs[f"model.layers.{N + k}.enorm.weight"], weights[f"ahead.{k}.norm_token.weight"])
        assert torch.equal(theirs[f"model.layers.{N + k}.hnorm.weight"], weights[f"ahead.{k}.norm_hidden.weight"])


@pytest.fixture
def quiet() -> Iterator[None]:
    """Let transformers not print what it passes over."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.mark.usefixtures("quiet")
def test_transformers_computes_the_same_and_passes_over_them(tmp_path: Path) -> None:
    """The class knows only the released depth's name, 61; of others it lists what it passed over."""
    model, ids = filled(SPEC, telling(SPEC)), ids_for(SPEC, 2, 11)
    assert save(model, tmp_path / "ours").form == "hf"
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    theirs, said = loaded
    assert not said["missing_keys"]
    assert {name.split(".")[2] for name in said["unexpected_keys"]} == {str(N + k) for k in range(N_AHEAD)}
    with torch.no_grad():
        close(model(ids).logits, theirs(ids).logits)
    theirs.save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["num_nextn_predict_layers"] == N_AHEAD
    back = load(tmp_path / "theirs")[0]
    assert back.spec.ahead == ()
    with torch.no_grad():
        close(back(ids).logits, model(ids).logits)


def test_what_is_saved_is_loaded_with_and_without_the_repeated_tables(tmp_path: Path) -> None:
    tensors, weights = written(SPEC, tmp_path / "ours"), telling(SPEC)
    assert load_spec(tmp_path / "ours" / "config.json").ahead == load(tmp_path / "ours")[0].spec.ahead == SPEC.ahead
    for k in range(N_AHEAD):
        tensors[f"model.layers.{N + k}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"model.layers.{N + k}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, tmp_path / "ours" / "model.safetensors")
    state = load(tmp_path / "ours")[0].state_dict()
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[n], weights[n]) for n in weights)


def test_half_of_them_or_another_table_is_refused(tmp_path: Path) -> None:
    tensors, file = written(SPEC, tmp_path / "ours"), tmp_path / "ours" / "model.safetensors"
    kept = tensors.pop(f"model.layers.{N}.hnorm.weight")
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=rf"missing: model\.layers\.{N}\.hnorm\.weight$"):
        load(tmp_path / "ours")
    other = {f"model.layers.{N}.hnorm.weight": kept, f"model.layers.{N}.shared_head.head.weight": kept.expand(101, -1)}
    save_file({**tensors, **{n: t.contiguous() for n, t in other.items()}}, file)
    with pytest.raises(
        CheckpointError, match=rf"lm_head\.weight and model\.layers\.{N}\.shared_head\.head\.weight dif"
    ):
        load(tmp_path / "ours")


def test_modules_of_another_kind_are_written_as_ours(tmp_path: Path) -> None:
    spec = SPEC.but(ahead=(SPEC.ahead[0].but(norm_token=None),))
    saved = save(filled(spec, telling(spec)), tmp_path / "ours")
    assert saved.form == "anyformer"
    assert "ahead[0].norm_token" in (saved.reason or "")
    assert load(tmp_path / "ours")[0].spec == spec


@pytest.mark.parametrize(("name", "most"), [("glm-5.3-flash", 1), ("ling-3.0-flash", 1), ("step-3.5-flash", 3)])
def test_layers_that_a_class_passes_over_stand_behind_its_last(name: str, most: int, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    tensors = written(spec, tmp_path)
    for k in range(most + 1):
        save_file(
            tensors | {f"model.layers.{spec.n_layers + k}.shared_head.norm.weight": torch.ones(4)},
            tmp_path / "model.safetensors",
        )
        if k < most:
            kept = load(tmp_path)[0].state_dict()
            assert all(torch.equal(kept[name], each) for name, each in filled(spec, telling(spec)).state_dict().items())
        else:
            with pytest.raises(CheckpointError, match=rf"model\.layers\.{spec.n_layers + k}\.shared_head"):
                load(tmp_path)
