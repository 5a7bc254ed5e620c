"""`anyformer train --init`: from a directory of weights to a run, resumed, and back to a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from anyformer.families import preset
from anyformer.hub import load, save
from anyformer.model import build
from anyformer.resizing import resize
from anyformer.text import Tokenizer
from tests.cli.running import run, succeeded

STEPS = ("--seq-len", "32", "--batch-tokens", "256", "--device", "cpu", "--lr", "1e-4")


@pytest.fixture
def given(tmp_path: Path, text: Path, _quick: None) -> Path:
    """Weights with more rows than their tokenizer has tokens, as published ones often have."""
    tokenizer = Tokenizer.train([text.read_text(encoding="utf-8")], 300)
    spec = resize(preset("qwen2.5-0.5b").spec, n_params=60_000, vocab_size=320)
    return save(build(spec, seed=1), tmp_path / "given", tokenizer).path


def test_a_run_from_given_weights_from_end_to_end(given: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("train", given, "--init", given, "--data", text, "--out", out, "--tokens", "1024", *STEPS, "--json")
    done = json.loads(succeeded(run(*command)).stdout)
    evaluated = json.loads(succeeded(run("evaluate", given, "--data", text, "--device", "cpu", "--json")).stdout)
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert first == pytest.approx(evaluated["loss"], rel=0.1)  # of a batch, and of the whole text
    assert done["steps"] == 4
    assert load(out)[0].spec.vocab_size == 320
    assert (out / "tokenizer" / "tokenizer.json").read_bytes() == (given / "tokenizer.json").read_bytes()
    again = json.loads(succeeded(run(*command)).stdout)  # the same command goes on with it, or finds it done
    assert again["validation"]["loss"] == done["validation"]["loss"]
    result = succeeded(run("convert", out, tmp_path / "hf"))
    assert result.stdout == f"{tmp_path / 'hf'} is a Hugging Face directory\n"
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"]) == ("qwen2", 320)


def test_a_preset_of_other_sizes_is_refused_naming_the_field(given: Path, text: Path, tmp_path: Path) -> None:
    result = run(
        "train", "llama2-7b", "--params", "60k", "--init", given, "--data", text, "--out", tmp_path / "r", *STEPS
    )
    assert result.exit_code == 2
    assert f"error: the weights in {given} are of another architecture: " in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_the_tokenizer_of_a_run_is_found_from_its_checkpoint(trained: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "first")
    (checkpoint,) = sorted((tmp_path / "first" / "checkpoints").iterdir())[-1:]
    out = tmp_path / "run"
    succeeded(run("train", trained, "--init", checkpoint, "--data", text, "--out", out, "--tokens", "512", *STEPS))
    assert Tokenizer.load(out / "tokenizer").fingerprint == Tokenizer.load(trained / "tokenizer").fingerprint
