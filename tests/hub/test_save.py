"""What is written, that it is whole or not at all, and what is refused."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from anyformer.disk.atomic import remove_unfinished
from anyformer.errors import CheckpointError, RunFailed, SpecError, UsageError
from anyformer.families import preset
from anyformer.hub import load, save, weights
from anyformer.hub.weights import FILE, INDEX
from anyformer.layers import FeedForwardSpec, RMSNormSpec
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.text import Tokenizer
from tests.hostile.faulty_disk import no_space_left
from tests.laws.weights import edited

LLAMA = shrink(preset("llama3.1-8b").spec)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["abcab" * 9], 257)
    spec = shrink(preset("gpt2").spec)
    with pytest.raises(CheckpointError, match="the tokenizer has 257 tokens, the model only 101"):
        save(build(spec), tmp_path / "out", tokenizer)
    assert names(tmp_path) == []
    saved = save(build(LLAMA), tmp_path / "new" / "out")
    assert str(saved) == f"{tmp_path / 'new' / 'out'} is a Hugging Face directory"
    assert names(saved.path) == ["config.json", "generation_config.json", "model.safetensors"]
    config = json.loads((saved.path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["rope_theta"], config["rope_scaling"]["factor"], config["num_key_value_heads"]) == (
        500_000.0,
        8.0,
        2,
    )
    with safe_open(str(saved.path / FILE), "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_model_without_a_class_says_why(tmp_path: Path) -> None:
    spec = edited(LLAMA, RMSNormSpec, lambda norm: norm.but(cast="after"))
    with pytest.raises(SpecError, match=r"norm_in.cast = 'after'"):
        save(build(spec), tmp_path / "out", form="hf")
    assert names(tmp_path) == []
    saved = save(build(spec), tmp_path / "out")
    assert saved.form == "anyformer"
    assert "is a directory of ours: no class of transformers computes this model" in str(saved)
    assert str(saved).endswith("norm_in.cast = 'after'")
    assert names(saved.path) == ["model.safetensors", "spec.yaml"]
    assert load(saved.path)[0].spec == spec


def test_layers_that_are_one_module_are_none_of_a_class(tmp_path: Path) -> None:
    """Tiled layers are one value: what all of them hold is shared, which no file of GPT-2's class says."""
    gpt2 = shrink(preset("gpt2").spec)
    layer = gpt2.stack.blocks[0]
    for i, one in enumerate(
        (layer.but(shared="layer"), edited(layer, FeedForwardSpec, lambda feed: feed.but(shared="feed")))
    ):
        spec = gpt2.but(stack=gpt2.stack.but(blocks=(one,) * gpt2.n_layers))
        model = build(spec)
        saved = save(model, tmp_path / str(i))
        assert (saved.form, str(saved.reason).endswith("'")) == ("anyformer", True), saved.reason
        read, _ = load(saved.path)
        assert read.spec == spec
        assert all(torch.equal(a, b) for a, b in zip(read.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("form", ["hf", "anyformer"])
def test_shards_hold_no_more_than_asked(form: str, tmp_path: Path) -> None:
    model = build(LLAMA)
    save(model, tmp_path / "out", form=form, shard_nbytes=20_000)  # type: ignore[arg-type]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files]
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    for file in files:
        with safe_open(str(file), "pt") as opened:
            sizes = [opened.get_tensor(name).nbytes for name in opened.keys()]  # noqa: SIM118
            assert len(sizes) == 1 or sum(sizes) <= 20_000
            assert {name for name, home in index["weight_map"].items() if home == file.name} == set(opened.keys())


@pytest.mark.parametrize("held", ["file", "directory"])
def test_what_is_there_is_not_overwritten(held: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if held == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already and is not empty; give a new directory"):
        save(build(LLAMA), out)
    assert names(tmp_path) == ["out"]
    assert (out if held == "file" else out / "mine").read_text() == "mine"


def test_an_unknown_form_is_not_the_usual_one(tmp_path: Path) -> None:
    form: Any = "safetensors"
    with pytest.raises(UsageError, match="no form 'safetensors' of a directory; there are hf, anyformer, transformers"):
        save(build(LLAMA), tmp_path / "out", form=form)
    assert not names(tmp_path)


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save(build(LLAMA), tmp_path / "out")
    assert load(tmp_path / "out")[0].spec == load(tmp_path / "out")[0].spec


def test_a_disk_that_is_only_read_is_told_by_the_directorys_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows the directory aside, which is made first."""

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(RunFailed) as caught:
        save(build(LLAMA), tmp_path / "out")
    assert str(caught.value) == f"could not write {tmp_path / 'out'}: Read-only file system"


@pytest.mark.parametrize("step", ["hub.weights.save_file", "hub.saving.write_json", "disk.atomic.sync"])
def test_a_full_disk_leaves_nothing(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"anyformer.{step}", no_space_left)
    with pytest.raises(RunFailed, match=r"could not write .*out: .*No space left on device") as caught:
        save(build(LLAMA), tmp_path / "out")
    assert caught.value.exit_status == 1
    assert names(tmp_path) == []


def test_a_kill_in_the_middle_leaves_no_directory_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: object, **options: object) -> None:
        assert not (tmp_path / "out").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("anyformer.hub.weights.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        save(build(LLAMA), tmp_path / "out")
    assert names(tmp_path) == []


def test_others_may_read_the_weights_too(tmp_path: Path) -> None:
    save(build(LLAMA), tmp_path / "out")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    (tmp_path / "plain").write_text("")
    assert modes == {stat.S_IMODE((tmp_path / "plain").stat().st_mode)}


def test_a_loaded_model_can_be_saved_again(tmp_path: Path) -> None:
    """Its tensors lie side by side in one memory map."""
    save(build(LLAMA), tmp_path / "one")
    model, _ = load(tmp_path / "one")
    save(model, tmp_path / "two")
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "two" / FILE).read_bytes()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "two" / FILE).read_bytes()


HOLDING = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def left(path: Path) -> Path:
    """What a kill leaves: files in a hidden directory that nobody holds any more."""
    path.mkdir()
    (path / FILE).write_bytes(b"half of it")
    return path


def test_what_a_killed_process_left_is_removed_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    left(tmp_path / ".tmp-4711-out")
    left(tmp_path / ".tmp-4711-other")
    theirs = left(tmp_path / ".tmp-4712-out")
    command = [sys.executable, "-c", HOLDING, str(theirs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        assert living.stdout.readline() == "held\n"
        save(build(LLAMA), tmp_path / "out")
        assert names(tmp_path) == [".tmp-4711-other", ".tmp-4712-out", "out"]
        living.kill()
    assert load(tmp_path / "out")[0].spec == LLAMA
    (tmp_path / "out").rename(tmp_path / "moved")
    save(build(LLAMA), tmp_path / "out")
    assert names(tmp_path) == [".tmp-4711-other", "moved", "out"]


def test_a_save_that_goes_on_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = weights.save_file

    def at_the_same_time(*arguments: Any, **options: Any) -> None:
        remove_unfinished(tmp_path / "out")
        write(*arguments, **options)

    monkeypatch.setattr(weights, "save_file", at_the_same_time)
    save(build(LLAMA), tmp_path / "out")
    assert names(tmp_path) == ["out"]
