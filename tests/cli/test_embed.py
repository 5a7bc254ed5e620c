"""`train --objective contrastive`, `evaluate` of it, `embed`: small, in this process; and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import anyformer
from anyformer.recipe import Contrastive, Recipe, dumps
from tests.cli.running import SIZES, everything, run, succeeded
from tests.training.test_contrastive import pairs

SMALL = tuple(word for option in {**SIZES, "--vocab": "300", "--batch-tokens": "160"}.items() for word in option)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    for i, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(f"{pair[i]}\n" for pair in pairs(200, 5).pairs))
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory, files: tuple[Path, Path], _quick: None) -> Path:
    out = tmp_path_factory.mktemp("sentences") / "run"
    options = ("--objective", "contrastive", "--lr", "3e-3", "--json")
    result = succeeded(
        run("train", "bert-base", "--source", files[0], "--target", files[1], "--out", out, *options, *SMALL)
    )
    assert "Contrastive trains a head 'embedding', in the place of 'mlm', 'nsp'" in result.stderr
    told = json.loads(result.stdout)
    assert told["objective"] == "Contrastive"
    assert told["validation"]["loss"] < told["validation"]["unigram_loss"]
    assert told["validation"]["bits_per_byte"] is None
    assert 0 < told["validation"]["accuracy"] <= told["validation"]["mrr"] <= 1
    return out


def test_an_evaluation_finds_what_the_run_found(sentences: Path, files: tuple[Path, Path]) -> None:
    given = ("--source", files[0], "--target", files[1], "--held-out", "0.05")
    told = json.loads(succeeded(run("evaluate", sentences, *given, "--json")).stdout)
    assert set(told) == {
        "version",
        "objective",
        "loss",
        "chance_loss",
        "batch_pairs",
        "accuracy",
        "mrr",
        "pairs",
        "cut",
    }
    assert told["pairs"] == 10
    assert told["loss"] < told["chance_loss"] <= np.log(told["batch_pairs"]) + 1e-6
    plain = succeeded(run("evaluate", sentences, *given)).stdout
    assert f"{told['loss']:.4f} nats a pair" in plain
    assert f"{told['accuracy']:.1%} right" in plain


def test_what_was_set_aside_is_read_in_the_batches_of_training(files: tuple[Path, Path], tmp_path: Path) -> None:
    for file in files:
        first, rest = file.read_text().split("\n", 1)
        (tmp_path / file.name).write_text(f"{' '.join([first] * 3)}\n{rest}")  # longer than any that is set aside
    given: dict[str, Any] = {name: tmp_path / name for name in ("source", "target")}
    sizes: dict[str, Any] = {"n_params": 6e4, "vocab_size": 300, "tokens": 320, "batch_tokens": 160, "seq_len": 64}
    run = anyformer.train(
        "bert-base", **given, objective="contrastive", out=tmp_path / "run", device="cpu", validation=0.2, **sizes
    )
    found = anyformer.evaluate(tmp_path / "run", **given, held_out=0.2, device="cpu")
    assert run.result.evaluation is not None
    assert found.loss == pytest.approx(run.result.evaluation.loss, abs=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_lines_become_rows_of_a_file(sentences: Path, files: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"vectors{suffix}"
    told = json.loads(succeeded(run("embed", "--model", sentences, "--data", files[0], "--out", out, "--json")).stdout)
    found = torch.from_numpy(np.load(out)) if suffix == ".npy" else load_file(out)["embeddings"]
    model, tokenizer = anyformer.load(sentences)
    assert tokenizer is not None
    lines = files[0].read_text().splitlines()
    torch.testing.assert_close(found, anyformer.embed(model, tokenizer, lines))
    assert (told["texts"], told["width"], told["cut"], told["pool"]) == (200, found.shape[1], 0, "MeanTokens")
    assert told["similarities"] is None


def test_a_few_texts_are_compared(sentences: Path) -> None:
    texts = ("two five", "zwei funf", "nine")
    given = [word for text in texts for word in ("--text", text)]
    told = json.loads(succeeded(run("embed", "--model", sentences, *given, "--json")).stdout)
    model, tokenizer = anyformer.load(sentences)
    assert tokenizer is not None
    vectors = anyformer.embed(model, tokenizer, texts)
    np.testing.assert_allclose(told["similarities"], (vectors @ vectors.T).numpy(), atol=1e-6)
    shown = succeeded(run("embed", "--model", sentences, *given)).stdout
    assert f"{told['similarities'][0][1]:.3f}" in shown
    assert "zwei funf" in shown


def test_a_run_goes_where_sentence_transformers_reads_it(sentences: Path, tmp_path: Path) -> None:
    succeeded(run("convert", sentences, tmp_path / "hf"))
    assert (tmp_path / "hf" / "modules.json").is_file()
    given = ("--text", "one two", "--text", "eins zwei", "--json")
    ours, theirs = (succeeded(run("embed", "--model", place, *given)).stdout for place in (sentences, tmp_path / "hf"))
    np.testing.assert_allclose(json.loads(ours)["similarities"], json.loads(theirs)["similarities"], atol=1e-6)


def test_a_trained_encoder_is_where_sentences_begin(sentences: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """From weights with other heads, and from those of a run of its own kind."""
    given = (
        "--source",
        files[0],
        "--target",
        files[1],
        "--objective",
        "contrastive",
        "--tokens",
        "160",
        "--batch-tokens",
        "160",
    )
    masked = ("train", "bert-base", "--data", files[0], *SMALL, "--tokens", "320", "--out", tmp_path / "masked")
    succeeded(run(*masked, "--batch-tokens", "320"))
    for begin in (tmp_path / "masked", sentences):
        out = tmp_path / f"from-{begin.name}"
        succeeded(run("train", begin, "--init", begin, *given, "--out", out, "--seq-len", "32", "--device", "cpu"))
        assert [head.name for head in anyformer.load_spec(out).heads] == ["embedding"]


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "nothing": ((), "give either --data, or --text"),
    "no out": (("--data", "LINES"), "--out is missing"),
    "an ending": (("--text", "a", "--out", "v.txt"), "vectors go into a .safetensors or an .npy file"),
    "no folder": (("--data", "LINES", "--out", "none/v.npy"), "there is no folder none; make it first"),
    "a blank line": (("--data", "BLANK", "--out", "v.npy"), "line 2: there is no text"),
    "an empty file": (("--data", "EMPTY", "--out", "v.npy"), "EMPTY is empty; give a file with a text a line"),
    "a blank text": (("--text", " "), "text 1 is blank"),
    "a long text": (("--text", "one " * 100), "tokens long, beyond the 32 that are read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, says = BAD[case]
    for name, content in {"LINES": "one\n", "BLANK": "one\n\ntwo\n", "EMPTY": ""}.items():
        Path(name).write_text(content)
    before = everything(tmp_path)
    result = run("embed", "--model", sentences, *given)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--micro-tokens", "64"), "fewer negatives"),
        (
            ("--batch-tokens", "16"),
            "one alone has nothing to be told apart from; make the batch larger (--batch-tokens)",
        ),
        (("--seq-len", "4"), "tokens long, and a row has 4"),
        (("--validation-data", "SOURCE"), "use --validation-source and --validation-target"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    given: tuple[str, ...], says: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    options = [str(files[0]) if word == "SOURCE" else word for word in given]
    pair = ("--source", files[0], "--target", files[1], "--objective", "contrastive", *SMALL)
    result = run("train", "bert-base", *pair, *options, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert says in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_translation_model_is_not_asked_for_vectors_and_the_reverse(
    sentences: Path, files: tuple[Path, Path]
) -> None:
    result = run("evaluate", sentences, "--source", files[0], "--target", files[1], "--bleu")
    assert result.exit_code == 2
    assert "makes vectors of texts" in result.stderr


@pytest.mark.usefixtures("_quick")
def test_a_recipes_own_objective_is_kept(files: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dumps(Recipe(objective=Contrastive(temperature=0.5), tokens=320, batch_tokens=160, seq_len=32)))
    given = (
        "--source",
        files[0],
        "--target",
        files[1],
        "--recipe",
        recipe,
        "--params",
        "60k",
        "--vocab",
        "300",
        "--device",
        "cpu",
    )
    succeeded(run("train", "gpt2", *given, "--out", tmp_path / "run"))
    assert "temperature: 0.5" in (tmp_path / "run" / "recipe.yaml").read_text()
