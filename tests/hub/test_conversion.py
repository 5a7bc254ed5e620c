"""Conversion reads and writes tensor by tensor: the memory it needs is a file's, and no number changes on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.errors import CheckpointError, RunFailed, SpecError, UsageError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import spec_of, their_shapes
from anyformer.hub import SavedDirectory, convert, load, save
from anyformer.hub.weights import FILE, INDEX
from anyformer.resizing import shrink
from tests.hub.edits import settings
from tests.laws.weights import filled, telling

SRC = Path(__file__).resolve().parents[2] / "src"
MB = 10**6
SHARD = 20 * MB
SIZES = {
    "llama": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 8},
    "mixtral": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
    },
}
WATCHED = """
import sys, torch
from anyformer.hub import convert
def kb(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
torch.set_num_threads(1)
small, source, target, form, *others = sys.argv[1:]
convert(small, target + "-warm", form=form, others=[small for _ in others])
before = kb("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
convert(source, target, form=form, others=others, shard_nbytes=%d)
print(1000 * (kb("VmHWM") - before))
"""


def held(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a directory's safetensors files."""
    found: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(str(file), "pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return found


def big(directory: Path, hf_type: str, **changes: Any) -> int:
    """Write a checkpoint of many files that each hold 10 MB or one tensor; return its bytes."""
    directory.mkdir(parents=True)
    config = {"model_type": hf_type, "vocab_size": 1000, "tie_word_embeddings": False, **SIZES[hf_type], **changes}
    (directory / "config.json").write_text(json.dumps(config))
    family, spec = spec_of(FAMILIES, config, "config")
    shapes = their_shapes((family.files or family.rows)(spec), spec)
    generator, shard, total = torch.Generator().manual_seed(0), {}, 0
    for i, (name, shape) in enumerate(shapes.items()):
        shard[name] = torch.empty(shape).normal_(generator=generator)
        total += shard[name].nbytes
        if sum(tensor.nbytes for tensor in shard.values()) > 10 * MB or i + 1 == len(shapes):
            save_file(shard, directory / f"part-{i:05d}.safetensors")
            shard = {}
    return total


def peak_nbytes(source: Path, target: Path, small: Path, form: str, *others: Path) -> int:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc here to read a process's peak memory from")
    command = [sys.executable, "-c", WATCHED % SHARD, *map(str, (small, source, target, form, *others))]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("hf_type", SIZES)
def test_memory_is_that_of_a_file_not_of_the_model(tmp_path: Path, hf_type: str) -> None:
    """There, where experts are stacked into one tensor of ours, and back, where they are taken apart again."""
    total = big(tmp_path / "model", hf_type)
    big(tmp_path / "small", hf_type, num_hidden_layers=1, intermediate_size=32)
    assert total > 9 * SHARD
    allowed = 2 * SHARD + 20 * MB
    there = peak_nbytes(tmp_path / "model", tmp_path / "ours", tmp_path / "small", "anyformer")
    assert there < allowed
    back = peak_nbytes(tmp_path / "ours", tmp_path / "hf", tmp_path / "small", "hf")
    assert back < allowed
    first, last = held(tmp_path / "model"), held(tmp_path / "hf")
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    index = json.loads((tmp_path / "ours" / INDEX).read_text())
    assert index["metadata"]["total_size"] == total
    assert (
        len(set(index["weight_map"].values())) == len(list((tmp_path / "ours").glob("*.safetensors"))) >= total / SHARD
    )
    assert all(file.stat().st_size < SHARD + MB for file in (tmp_path / "ours").glob("*.safetensors"))


@pytest.mark.slow
def test_memory_of_two_models_is_less_than_one_takes(tmp_path: Path) -> None:
    total, _ = (big(tmp_path / name, "llama") for name in "ab")
    big(tmp_path / "small", "llama", num_hidden_layers=1, intermediate_size=32)
    assert total > 10 * SHARD
    assert peak_nbytes(tmp_path / "a", tmp_path / "mean", tmp_path / "small", "hf", tmp_path / "b") < 9 * SHARD


# Fused and split, turned and interleaved, experts alone and stacked, latents, tied tables.
KINDS = (
    "gpt2",
    "phi3-mini-4k",
    "falcon-40b",
    "mixtral-8x7b",
    "qwen2-57b-a14b",
    "gpt-oss-20b",
    "deepseek-v3",
    "gemma2-2b",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_there_and_back_changes_no_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    spec = shrink(preset(name).spec)
    model = filled(spec, telling(spec)).to(dtype)
    save(model, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ours", form="anyformer", shard_nbytes=30_000)
    convert(tmp_path / "ours", tmp_path / "back", shard_nbytes=50_000)
    convert(tmp_path / "hf", tmp_path / "copy", shard_nbytes=40_000)
    state = model.state_dict()
    ours = load(tmp_path / "ours")[0].state_dict()
    assert all(torch.equal(state[n], tensor) and tensor.dtype == dtype for n, tensor in ours.items())
    first = held(tmp_path / "hf")
    for other in ("back", "copy"):
        found = held(tmp_path / other)
        assert found.keys() == first.keys()
        assert all(torch.equal(first[n], tensor) and tensor.dtype == dtype for n, tensor in found.items())
        config = json.loads((tmp_path / other / "config.json").read_text())
        assert config == json.loads((tmp_path / "hf" / "config.json").read_text())


def llama(tmp_path: Path, name: str = "llama2-7b") -> Path:
    spec = shrink(preset(name).spec)
    save(filled(spec, telling(spec)), tmp_path / "model")
    return tmp_path / "model"


def test_each_tensor_keeps_its_own_type_or_all_get_another(tmp_path: Path) -> None:
    directory = llama(tmp_path)
    tensors = {n: t.half() if n.endswith("proj.weight") else t.bfloat16() for n, t in held(directory).items()}
    (directory / FILE).unlink()
    save_file(tensors, directory / FILE)
    settings(directory, dtype="bfloat16")
    convert(directory, tmp_path / "kept")
    assert {n: t.dtype for n, t in held(tmp_path / "kept").items()} == {n: t.dtype for n, t in tensors.items()}
    assert json.loads((tmp_path / "kept" / "config.json").read_text())["dtype"] == "bfloat16"
    convert(directory, tmp_path / "cast", dtype=torch.float32)
    assert all(torch.equal(t, tensors[n].float()) for n, t in held(tmp_path / "cast").items())
    assert json.loads((tmp_path / "cast" / "config.json").read_text())["dtype"] == "float32"


class TestClasses:
    def test_a_class_that_fits_stays(self, tmp_path: Path) -> None:
        """A Mistral without a window is a LLaMA; unless that is asked for it is still called a Mistral."""
        directory = llama(tmp_path)
        file = directory / "config.json"
        config = json.loads(file.read_text())
        config.pop("attention_bias", None)
        config.pop("mlp_bias", None)
        file.write_text(json.dumps(config | {"model_type": "mistral", "sliding_window": None}))
        saved = convert(directory, tmp_path / "same")
        assert isinstance(saved, SavedDirectory) and saved.form == "hf"  # noqa: PT018
        assert json.loads((tmp_path / "same" / "config.json").read_text())["model_type"] == "mistral"
        convert(directory, tmp_path / "other", hf_type="llama")
        written = json.loads((tmp_path / "other" / "config.json").read_text())
        assert (written["model_type"], written["architectures"]) == ("llama", ["LlamaForCausalLM"])
        first, last = held(directory), held(tmp_path / "other")
        assert all(torch.equal(first[n], last[n]) for n in first)

    def test_separate_matrices_become_fused_ones(self, tmp_path: Path) -> None:
        directory = llama(tmp_path)
        convert(directory, tmp_path / "fused", hf_type="phi3", shard_nbytes=10_000)
        first, last = held(directory), held(tmp_path / "fused")
        parts = [first[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv"]
        assert torch.equal(last["model.layers.0.self_attn.qkv_proj.weight"], torch.cat(parts))
        ids = torch.arange(12)[None]
        with torch.no_grad():
            assert torch.equal(load(directory)[0](ids).logits, load(tmp_path / "fused")[0](ids).logits)

    def test_one_that_does_not_compute_it_is_refused_naming_the_field(self, tmp_path: Path) -> None:
        directory = llama(tmp_path, "gemma2-2b")
        with pytest.raises(
            SpecError, match=r"no class of transformers computes this model; the nearest, LlamaForCausalLM"
        ):
            convert(directory, tmp_path / "out", hf_type="llama")
        with pytest.raises(SpecError, match=r"model_type 'lama' here \(did you mean 'llama'\?\)"):
            convert(directory, tmp_path / "out", hf_type="lama")
        with pytest.raises(UsageError, match=r"\(llama\) is only for Hugging Face's form"):
            convert(directory, tmp_path / "out", form="anyformer", hf_type="llama")
        assert not (tmp_path / "out").exists()


def full_after(calls: int) -> Iterator[None]:
    for _ in range(calls):
        yield
    raise OSError(28, "No space left on device")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.hub import weights

    directory, write, room = llama(tmp_path), weights.save_file, full_after(2)

    def until_full(*arguments: Any, **options: Any) -> None:
        next(room)
        write(*arguments, **options)

    monkeypatch.setattr(weights, "save_file", until_full)
    with pytest.raises(RunFailed, match="No space left on device"):
        convert(directory, tmp_path / "out", shard_nbytes=10_000)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_source_that_lacks_a_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    directory = llama(tmp_path)
    tensors = held(directory)
    (directory / FILE).unlink()
    save_file({n: t for n, t in tensors.items() if n != "model.norm.weight"}, directory / FILE)
    with pytest.raises(CheckpointError, match=r"missing: model\.norm\.weight$"):
        convert(directory, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
