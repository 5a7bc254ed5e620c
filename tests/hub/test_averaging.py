"""The mean of a run's last checkpoints, and of models of one architecture, as `anyformer convert` writes them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import anyformer as af
from anyformer.errors import CheckpointError, UsageError
from anyformer.families import preset
from anyformer.hub import load, save
from anyformer.hub.merging import Mean, Merging
from anyformer.resizing import shrink
from anyformer.text import Tokenizer
from tests.cli.running import run, write_text
from tests.laws.models import randomised

FILE = "model.safetensors"


convert = partial(run, "convert")


def directory(path: Path, name: str, seed: int, dtype: torch.dtype = torch.float32, **how: Any) -> Path:
    save(randomised(shrink(preset(name).spec), seed).to(dtype), path, **how)
    return path


def by_hand(*places: Path) -> dict[str, np.ndarray]:
    """The means of what files hold, in float64, by a library that knows none of ours."""
    each = [load_file(place / FILE) for place in places]
    return {name: np.mean([held[name].astype(np.float64) for held in each], 0).astype(np.float32) for name in each[0]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("trained")
    sizes = ["--params", "100k", "--vocab", "300", "--tokens", "2048", "--seq-len", "32", "--batch-tokens", "256"]
    given = ["--data", str(write_text(there / "text.txt")), "--out", str(there / "run"), *sizes, "--lr", "0.01"]
    assert run("train", "llama2-7b", *given, "--save-every", "1", "--keep", "5").exit_code == 0
    return there / "run"


def test_the_last_checkpoints_of_a_run(trained: Path, tmp_path: Path) -> None:
    held = sorted((trained / "checkpoints").iterdir())
    assert [path.name for path in held[-5:]] == [f"step-{step:08d}" for step in range(4, 9)]
    assert convert(trained, tmp_path / "mean", "--average", "3", "--to", "anyformer").exit_code == 0
    found, expected = load_file(tmp_path / "mean" / FILE), by_hand(*held[-3:])
    assert found.keys() == expected.keys()
    latest = load_file(held[-1] / FILE)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
        assert not np.array_equal(found[name], latest[name]), "the steps moved the weights"
    assert Tokenizer.load(tmp_path / "mean").fingerprint == Tokenizer.load(trained / "tokenizer").fingerprint


def test_a_step_saved_again_counts_once(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    held = sorted((run / "checkpoints").iterdir())
    for again in held[:-2]:
        shutil.rmtree(again)
    shutil.copytree(held[-1], run / "checkpoints" / f"{held[-1].name}.1")
    assert "holds 2 checkpoints, fewer than --average 3" in convert(run, tmp_path / "mean", "--average", "3").output
    assert convert(run, tmp_path / "mean", "--average", "2", "--to", "anyformer").exit_code == 0
    name, value = next(iter(by_hand(*held[-2:]).items()))
    np.testing.assert_array_equal(load_file(tmp_path / "mean" / FILE)[name], value)


@pytest.mark.parametrize("name", ["llama2", "gpt2", "t5-small", "mixtral-8x7b"])
def test_models_of_one_architecture(name: str, tmp_path: Path) -> None:
    """In Hugging Face's form, whose rows join and turn tensors: what transformers' files hold has their mean."""
    each = [directory(tmp_path / f"{seed}", name, seed) for seed in range(3)]
    given = [each[0], tmp_path / "soup", *(part for other in each[1:] for part in ("--with", other))]
    assert convert(*given).exit_code == 0
    found = load_file(tmp_path / "soup" / FILE)
    for tensor, value in by_hand(*each).items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-6, atol=1e-7, err_msg=tensor)
    models = [load(path)[0].state_dict() for path in (*each, tmp_path / "soup")]
    for tensor, held in models[-1].items():
        torch.testing.assert_close(held, sum(other[tensor] for other in models[:-1]) / 3)


def test_a_mean_of_halves_is_rounded_once(tmp_path: Path) -> None:
    each = [directory(tmp_path / f"{seed}", "llama2", seed, torch.bfloat16) for seed in range(3)]
    assert convert(each[0], tmp_path / "soup", "--with", each[1], "--with", each[2]).exit_code == 0
    *models, found = (load(path)[0].state_dict() for path in (*each, tmp_path / "soup"))
    for name, value in found.items():
        assert value.dtype == torch.bfloat16
        assert value.equal(torch.stack([model[name].double() for model in models]).mean(0).to(torch.bfloat16))


def test_a_file_of_the_mean(tmp_path: Path) -> None:
    each = [directory(tmp_path / f"{seed}", "llama2", seed) for seed in range(2)]
    assert convert(each[0], tmp_path / "soup.gguf", "--with", each[1], "--quantise", "f32").exit_code == 0
    assert convert(each[0], tmp_path / "soup", "--with", each[1]).exit_code == 0
    file, soup = (load(path)[0].state_dict() for path in (tmp_path / "soup.gguf", tmp_path / "soup"))
    assert all(file[name].equal(soup[name]) for name in soup)


def test_whole_numbers_have_no_mean() -> None:
    same, other = torch.tensor([1, 2]), torch.tensor([1, 3])
    mean = Merging(Mean(), (1.0, 1.0))
    assert mean.of("table", [same, same.clone()]).equal(same)
    with pytest.raises(CheckpointError, match="table holds whole numbers that differ"):
        mean.of("table", [same, other])


def test_what_has_no_mean_is_refused(trained: Path, tmp_path: Path) -> None:
    first, own = directory(tmp_path / "a", "llama2", 0), directory(tmp_path / "own", "llama2", 1, form="anyformer")
    gpt2 = directory(tmp_path / "gpt2", "gpt2", 0)
    for given, said in (
        ((first, "--with", gpt2), f"{gpt2} is another architecture than {first}: "),
        ((first, "--with", own), f"{own} has its tensors in another form than {first}; bring both into one"),
        ((first, "--average", "2"), f"{first} holds 0 checkpoints, fewer than --average 2; name a run, or train"),
        ((trained, "--average", "6"), f"{trained} holds 5 checkpoints, fewer than --average 6"),
        ((first, "--average", "1"), "'1' is less than 2, the least that is taken here"),
        ((first, "--with", tmp_path / "nowhere"), "there is nothing at"),
    ):
        result = convert(given[0], tmp_path / "out", *given[1:])
        assert (result.exit_code, said in result.output) == (2, True), result.output
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("n", [0, -1])
def test_no_checkpoints_have_no_mean(n: int, trained: Path, tmp_path: Path) -> None:
    """Counted from the other end, -1 would be all but the first."""
    with pytest.raises(UsageError, match=f"--average {n} is no number of checkpoints; give 1 or more"):
        af.convert(trained, tmp_path / "out", average=n)
    assert not (tmp_path / "out").exists()


def test_adapters_are_merged_first(trained: Path, tmp_path: Path) -> None:
    """The mean of products is no product of means."""
    text = write_text(tmp_path / "text.txt")
    given = ["--data", text, "--init", trained, "--lora", "r=2,alpha=4", "--out", tmp_path / "adapted", "--lr", "0.05"]
    sizes = ["--tokens", "1024", "--seq-len", "32", "--batch-tokens", "256", "--save-every", "1"]
    result = run("train", trained, *given, *sizes)
    assert result.exit_code == 0, result.stderr
    assert convert(tmp_path / "adapted", tmp_path / "mean", "--average", "2").exit_code == 0
    assert convert(tmp_path / "adapted", tmp_path / "same", "--average", "2", "--merge").exit_code == 0
    assert (tmp_path / "same" / FILE).read_bytes() == (tmp_path / "mean" / FILE).read_bytes()
    each = []
    for checkpoint in sorted((tmp_path / "adapted" / "checkpoints").iterdir())[-2:]:
        each.append(tmp_path / checkpoint.name)
        assert convert(checkpoint, each[-1], "--merge").exit_code == 0
    found = load_file(tmp_path / "mean" / FILE)
    for name, value in by_hand(*each).items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("role", ["SRC", "--with", "--base"])
def test_any_of_the_models_may_have_an_adapter(role: str, trained: Path, tmp_path: Path) -> None:
    """`--merge` is of all that are named."""
    text = write_text(tmp_path / "text.txt")
    given = ["--data", text, "--init", trained, "--lora", "r=2,alpha=4", "--out", tmp_path / "adapted", "--lr", "0.05"]
    assert run("train", trained, *given, "--tokens", "512", "--seq-len", "32", "--batch-tokens", "256").exit_code == 0
    places = dict.fromkeys(("SRC", "--with", "--base"), trained) | {role: tmp_path / "adapted"}
    told = ["--with", places["--with"], "--base", places["--base"], "--by", "task-arithmetic"]
    result = convert(places["SRC"], tmp_path / "out", *told, "--merge")
    assert result.exit_code == 0, result.output
    assert convert(tmp_path / "adapted", tmp_path / "merged", "--merge").exit_code == 0
    assert convert(trained, tmp_path / "plain").exit_code == 0
    held = {name: load_file(tmp_path / name / FILE) for name in ("out", "merged", "plain")}
    sign = -1 if role == "--base" else 1  # W' + 2 (W - W') is as far on the other side
    for name, value in held["out"].items():
        start = held["plain"][name]
        np.testing.assert_allclose(value, start + sign * (held["merged"][name] - start), atol=1e-6, err_msg=name)
    result = convert(trained, tmp_path / "none", "--with", trained, "--merge")
    assert (result.exit_code, "has no adapter to merge; leave --merge out" in result.output) == (2, True)


def test_other_labels_are_refused(tmp_path: Path) -> None:
    """Rows of a head that tell other labels apart, or the same in another order, have no mean."""
    spec = af.with_classifier(shrink(preset("bert-base").spec), 2)
    for name, labels in {
        "a": ("bad", "good"),
        "same": ("bad", "good"),
        "turned": ("good", "bad"),
        "none": None,
    }.items():
        model = randomised(spec)
        model.labels = labels
        save(model, tmp_path / name, form="anyformer")
    for other, code in (("same", 0), ("none", 0), ("turned", 2)):
        result = convert(tmp_path / "a", tmp_path / f"out-{other}", "--with", tmp_path / other)
        assert result.exit_code == code, result.output
    assert f"{tmp_path / 'turned'} has other labels than {tmp_path / 'a'}: good, bad and bad, good" in result.output
    assert not (tmp_path / "out-turned").exists()


def test_another_tokenizer_is_refused(trained: Path, tmp_path: Path) -> None:
    each = [tmp_path / "one", tmp_path / "other"]
    for path in each:
        assert convert(trained, path).exit_code == 0
    (tmp_path / "text.txt").write_text("another text with words of its own, again and again " * 40)
    told = ["tokenizer", "train", tmp_path / "text.txt", "--out", tmp_path / "tokenizer", "--vocab", "290"]
    assert run(*told).exit_code == 0, run(*told).output
    shutil.copy(tmp_path / "tokenizer" / "tokenizer.json", each[1] / "tokenizer.json")
    result = convert(each[0], tmp_path / "out", "--with", each[1])
    assert (result.exit_code, "has another tokenizer than" in result.output) == (2, True), result.output
