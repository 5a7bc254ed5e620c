"""What is refused, with one line each, and what passes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.errors import AnyformerError, CheckpointError
from anyformer.families import preset
from anyformer.hub import load, save
from anyformer.hub.weights import FILE, INDEX
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import dumps
from tests.hub.edits import settings, tensors

LLAMA = shrink(preset("llama2-70b").spec)
GPT2 = shrink(preset("gpt2").spec)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A good Hugging Face directory, to be spoilt."""
    save(build(LLAMA), tmp_path / "model")
    return tmp_path / "model"


def truncate(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def pickled(directory: Path) -> None:
    (directory / FILE).unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x02")


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing there": (lambda d: shutil.rmtree(d), "there is nothing at .*model; give a model's directory"),
    "no config": (lambda d: (d / "config.json").unlink(), "holds neither config.json nor spec.yaml"),
    "broken config": (lambda d: truncate(d / "config.json", 0.5), "config.json is not JSON .*; copy it again"),
    "a list for a config": (lambda d: (d / "config.json").write_text("[]"), "config.json holds no table of settings"),
    "unknown architecture": (
        lambda d: settings(d, model_type="llame", architectures=["Llame"]),
        "model_type 'llame' is not read here; all its settings are those of 'llama': if it computes the same",
    ),
    "no weights": (lambda d: (d / FILE).unlink(), "holds no weights: there is no model.safetensors"),
    "pickles": (pickled, r"holds pickled weights only \(pytorch_model.bin\), .* save_pretrained"),
    "truncated weights": (
        lambda d: truncate(d / FILE, 0.9),
        "model.safetensors is truncated or no safetensors file .*copy",
    ),
    "a stump": (lambda d: truncate(d / FILE, 0.001), "model.safetensors is truncated or no safetensors file"),
    "an empty file": (lambda d: (d / FILE).write_bytes(b""), "model.safetensors is truncated or no safetensors file"),
    "a pointer": (
        lambda d: (d / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
        "it is a pointer; fetch it with `git lfs pull`",
    ),
    "missing": (
        lambda d: tensors(d, lambda held: held.pop("model.norm.weight")),
        "does not hold the tensors of LlamaForCausalLM; missing: model.norm.weight$",
    ),
    "surplus": (
        lambda d: tensors(d, lambda held: held.update({"score.weight": torch.zeros(2), "x": torch.zeros(1)})),
        "does not hold the tensors of LlamaForCausalLM; surplus: score.weight, x$",
    ),
    "both": (
        lambda d: tensors(d, lambda held: held.update({"y": held.pop("lm_head.weight")})),
        "missing: lm_head.weight; surplus: y$",
    ),
    "more layers than tensors": (lambda d: settings(d, num_hidden_layers=4), "missing: model.layers.2.* and 8 more$"),
    "shape": (
        lambda d: tensors(d, lambda held: held.update({"model.norm.weight": torch.zeros(7)})),
        r"does not fit LlamaForCausalLM: model.norm.weight is \[7\], not \[32\]$",
    ),
    "shapes": (
        lambda d: settings(d, num_key_value_heads=4),
        r"model.layers.0.self_attn.k_proj.weight is \[16, 32\], not \[32, 32\], model.layers.0.self_attn.v_proj.weight",
    ),
    "quantised": (
        lambda d: tensors(d, lambda held: held.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)})),
        "model.norm.weight is of type I8, quantised or packed",
    ),
    "a setting unknown": (lambda d: settings(d, sliding_window=4), "sliding_window = 4 is unknown here"),
    "broken tokenizer": (lambda d: (d / "tokenizer.json").write_text("{"), "tokenizer.json is not JSON"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_directory_is_refused_in_one_line(name: str, directory: Path) -> None:
    spoil, message = SPOILT[name]
    spoil(directory)
    with pytest.raises(AnyformerError, match=message) as caught:
        load(directory)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


def test_a_directory_of_models_names_them(directory: Path, tmp_path: Path) -> None:
    for name in "gabcdef":
        (tmp_path / name).mkdir()
        shutil.copy(directory / "config.json", tmp_path / name)
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError) as raised:
        load(tmp_path)
    named = ", ".join(str(tmp_path / name) for name in "abcde")
    assert str(raised.value).endswith(f"its architecture is unknown; give one of the models in it: {named} …")
    with pytest.raises(CheckpointError, match="its architecture is unknown; give that of a model"):
        load(tmp_path / "other")


def test_half_a_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"model.gguf is truncated or no GGUF file .*; copy it again"):
        load(tmp_path / "model.gguf")


def test_a_file_is_refused(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="is a file; give the directory that holds it"):
        load(directory / FILE)
    (graph := directory / "model.onnx").touch()
    with pytest.raises(CheckpointError, match="is a file; give a model's directory or a GGUF file"):
        load(graph)


class TestShards:
    @pytest.fixture
    def sharded(self, tmp_path: Path) -> Path:
        save(build(LLAMA), tmp_path / "model", shard_nbytes=20_000)
        return tmp_path / "model"

    def test_a_missing_one_is_named(self, sharded: Path) -> None:
        file = sorted(sharded.glob("*.safetensors"))[1]
        file.unlink()
        with pytest.raises(CheckpointError, match=f"lacks {file.name}, which {INDEX} names"):
            load(sharded)

    def test_a_truncated_one_is_named(self, sharded: Path) -> None:
        file = sorted(sharded.glob("*.safetensors"))[1]
        truncate(file, 0.5)
        with pytest.raises(CheckpointError, match=f"{file.name} is truncated"):
            load(sharded)

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
    def test_a_broken_index_is_named(self, sharded: Path, text: str) -> None:
        (sharded / INDEX).write_text(text)
        with pytest.raises(CheckpointError, match=r"is (no index of weights|not JSON).*; copy it again"):
            load(sharded)

    def test_without_an_index_all_files_are_read(self, sharded: Path) -> None:
        (sharded / INDEX).unlink()
        assert torch.equal(load(sharded)[0].state_dict()["stack.norm.weight"], torch.ones(32))


class TestTiedDuplicates:
    @pytest.fixture
    def tied(self, tmp_path: Path) -> Path:
        save(build(GPT2), tmp_path / "model")
        return tmp_path / "model"

    def test_equal_ones_and_the_masks_of_old_files_pass(self, tied: Path) -> None:
        def old(held: dict[str, torch.Tensor]) -> None:
            held["lm_head.weight"] = held["transformer.wte.weight"].clone()
            held["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
            held["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)

        before = load(tied)[0].state_dict()
        tensors(tied, old)
        assert all(torch.equal(before[n], tensor) for n, tensor in load(tied)[0].state_dict().items())

    def test_names_without_the_prefix_pass(self, tied: Path) -> None:
        def bare(held: dict[str, torch.Tensor]) -> None:
            for name in list(held):
                held[name.removeprefix("transformer.")] = held.pop(name)

        before = load(tied)[0].state_dict()
        tensors(tied, bare)
        assert all(torch.equal(before[n], tensor) for n, tensor in load(tied)[0].state_dict().items())

    def test_the_duplicate_alone_will_do(self, tied: Path) -> None:
        before = load(tied)[0].state_dict()
        tensors(tied, lambda held: held.update({"lm_head.weight": held.pop("transformer.wte.weight")}))
        assert torch.equal(load(tied)[0].state_dict()["shared.tokens.weight"], before["shared.tokens.weight"])

    def test_one_that_differs_is_refused(self, tied: Path) -> None:
        tensors(tied, lambda held: held.update({"lm_head.weight": held["transformer.wte.weight"] + 1}))
        with pytest.raises(
            CheckpointError,
            match=r"wte.weight and lm_head.weight differ, but the configuration has one tensor stand for both",
        ):
            load(tied)


def test_our_own_directory_of_another_model_is_refused(tmp_path: Path) -> None:
    save(build(GPT2), tmp_path / "model", form="anyformer")
    (tmp_path / "model" / "spec.yaml").write_text(dumps(LLAMA))
    with pytest.raises(CheckpointError, match=r"does not hold the tensors of the model; missing: .*; surplus: "):
        load(tmp_path / "model")


def test_mixed_types_are_widened(directory: Path) -> None:
    tensors(directory, lambda held: held.update({"model.norm.weight": torch.ones(32, dtype=torch.float16)}))
    assert {tensor.dtype for tensor in load(directory)[0].state_dict().values()} == {torch.float32}


def test_a_relabelled_directory_is_what_its_class_is(directory: Path) -> None:
    expected, _ = load(directory)
    settings(directory, model_type="mine")
    found, _ = load(directory)
    assert found.spec == expected.spec
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


def test_a_directory_is_read_as_another_type(directory: Path) -> None:
    """Qwen2's class has biases, which the files lack; Mistral's computes the same."""
    expected, _ = load(directory)
    settings(directory, model_type="mine", architectures=None, sliding_window=None)
    found, _ = load(directory, as_type="mistral")
    assert found.spec == expected.spec
    with pytest.raises(CheckpointError, match=r"holds? .*q_proj.bias"):
        load(directory, as_type="qwen2")
    with pytest.raises(CheckpointError, match=r"no model_type 'lama' is read here \(did you mean 'llama'"):
        load(directory, as_type="lama")
    with pytest.raises(CheckpointError, match="give --as llama"):
        load(directory)


@pytest.mark.parametrize("name", ["llama2-70b", "phi3-mini-4k", "gpt2", "t5-small"])
def test_code_of_a_directory_is_passed_over(name: str, tmp_path: Path) -> None:
    """Released directories name their own (Phi-3's do), and it is not run: the type's class is what is read."""
    model = build(shrink(preset(name).spec))
    save(model, tmp_path / "model")
    settings(tmp_path / "model", auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})
    found, expected = load(tmp_path / "model")[0].state_dict(), model.state_dict()
    assert all(found[key].equal(value) for key, value in expected.items())
