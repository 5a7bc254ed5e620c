"""The command `anyformer convert`."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from anyformer.errors import CheckpointError, UsageError
from anyformer.families import preset
from anyformer.hub import convert as convert_to
from anyformer.hub import load, save
from anyformer.model import build
from anyformer.resizing import resize, shrink
from tests.cli.running import run

GPT2 = shrink(preset("gpt2").spec)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save(build(GPT2), tmp_path / "ours", form="anyformer")
    return tmp_path / "ours"


convert = partial(run, "convert")


def test_ours_becomes_hugging_faces_and_back(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "hf")
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'hf'} is a Hugging Face directory\n")
    result = convert(tmp_path / "hf", tmp_path / "back", "--to", "anyformer")
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'back'} is a directory of ours\n")
    file = "model.safetensors"
    assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()


def test_the_type_is_changed(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "half", "--dtype", "bfloat16").exit_code == 0
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert str(next(load(tmp_path / "half")[0].parameters()).dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("target", "option", "most"),
    [
        ("half", "--dtype=float16", 1e5),
        ("half.gguf", "--quantise=f16", 1e5),
        ("q8.gguf", "--quantise=q8_0", 1e7),
        ("q4.gguf", "--quantise=q4_0", 1e6),
    ],
)
def test_numbers_beyond_the_type_are_refused(tmp_path: Path, target: str, option: str, most: float) -> None:
    """Just within they are written, and nothing is left of what is not."""
    spec, source = resize(preset("llama2").spec, d_model=64, n_layers=2, vocab_size=64), tmp_path / "ours"
    model = build(spec, seed=0)
    weight = model.get_parameter("stack.blocks.0.sublayers.0.branches.0.mixer.projection.k.weight")
    for value, status in ((most, 2), (most / 2, 0)):
        weight.data[0, 0] = value
        save(model, source, form="anyformer")
        result = convert(source, tmp_path / target, option)
        assert result.exit_code == status, result.output
        if status:
            assert "beyond 65504; take another dtype" in result.stderr
            assert result.stderr.count("\n") == 1
            assert not (tmp_path / target).exists()
        shutil.rmtree(source)
    if target == "half":
        model.to(torch.float32)
        weight.data[0, 0] = most
        save(model, source, form="anyformer")
        with pytest.raises(CheckpointError, match="take another dtype"):
            load(source, dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_a_type_that_is_not_read_is_not_written(source: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    for call in (lambda: convert_to(source, tmp_path / "hf", dtype=dtype), lambda: load(source, dtype=dtype)):
        with pytest.raises(UsageError, match=f"weights of {dtype} are not read; give torch.float64 or torch.float32"):
            call()
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(("size", "nbytes"), [("20kb", 20_000), ("0.02M", 20_000), ("5GB", 5_000_000_000)])
def test_files_hold_what_is_asked(source: Path, tmp_path: Path, size: str, nbytes: int) -> None:
    assert convert(source, tmp_path / "hf", "--shard-size", size).exit_code == 0
    files = list((tmp_path / "hf").glob("*.safetensors"))
    sizes = [
        file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little") for file in files
    ]  # less headers
    assert len(files) == 1 if sum(sizes) <= nbytes else max(sizes) <= nbytes < sum(sizes)


def test_another_class_is_written_where_it_is_named(tmp_path: Path) -> None:
    save(build(shrink(preset("llama2-7b").spec)), tmp_path / "model")
    assert convert(tmp_path / "model", tmp_path / "out", "--class", "phi3").exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Phi3ForCausalLM"]
    assert convert(tmp_path / "out", tmp_path / "back").exit_code == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "phi3"  # its own is kept


def test_a_model_without_a_class_is_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    save(build(shrink(preset("transformer-lm").spec)), tmp_path / "lm")
    result = convert(tmp_path / "lm", tmp_path / "hf", "--to", "hf")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no class of transformers computes this model; ")
    assert not (tmp_path / "hf").exists()
    assert "is a directory of ours: no class of transformers" in convert(tmp_path / "lm", tmp_path / "copy").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "error: there is nothing at nowhere; give a model's directory\n"),
        (["SOURCE", "SOURCE"], "exists already and is not empty; give a new directory\n"),
        (["SOURCE", "out", "--to", "gguf"], "'gguf' is not one of 'hf', 'anyformer'"),
        (["SOURCE", "out", "--shard-size", "0"], "'0' is less than 1, the least that is taken here"),
        (["SOURCE", "out", "--shard-size", "5 apples"], "'5 apples' is not read here as a whole number of bytes"),
        (["SOURCE", "out", "--class", "gpt"], "error: no class of transformers has the model_type 'gpt' here"),
        (["SOURCE", "out", "--class", "llama"], "the nearest, LlamaForCausalLM"),
        (["SOURCE", "out", "--class", "gpt2", "--to", "anyformer"], "is only for Hugging Face's form"),
        (["SOURCE", "out", "--dtype", "int8"], "'int8' is not one of 'float32', 'bfloat16', 'float16'"),
    ],
)
def test_what_cannot_start_is_status_2_and_one_line(source: Path, arguments: list[str], message: str) -> None:
    result = convert(*(source if a == "SOURCE" else a for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
