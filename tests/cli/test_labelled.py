"""`train`, `evaluate` and `classify` on labelled text, from files to figures, and what cannot start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer import recipe
from tests.cli.running import answer, refused, run, succeeded
from tests.test_docs import keys_of
from tests.training.labelled import corpus

pytestmark = pytest.mark.usefixtures("_quick")
SIZES = (
    *("--params", "30k", "--vocab", "290", "--tokens", "2048", "--seq-len", "32", "--batch-tokens", "128"),
    *("--lr", "0.003", "--device", "cpu", "--validation", "0.25"),
)


def written(path: Path, kind: str = "classes", n: int = 48) -> Path:
    rows: list[dict[str, Any]] = []
    for row in corpus(kind, n).rows:  # type: ignore[arg-type]
        if kind == "words":
            rows.append({"tokens": row.texts, "labels": row.label})
        else:
            pair = {"text_pair": row.texts[1]} if len(row.texts) > 1 else {}
            rows.append({"text": " ".join(row.texts[:1]), **pair, "label": row.label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbers(results: Any) -> list[float]:
    """All numbers of an answer, in its order."""
    if isinstance(results, dict | list):
        inner = results.values() if isinstance(results, dict) else results
        return [number for each in inner for number in numbers(each)]
    return [results] if isinstance(results, float) else []


@pytest.mark.parametrize(
    ("objective", "kind", "architecture", "named"),
    [
        ("classification", "classes", "bert-base", ("accuracy", "macro_f1", "majority_accuracy")),
        ("regression", "numbers", "gpt2", ("rmse", "pearson", "spearman", "mean_rmse")),
        ("token-classification", "words", "bert-base", ("accuracy", "macro_f1", "majority_accuracy")),
    ],
)
def test_from_a_file_to_figures(
    tmp_path: Path, objective: str, kind: str, architecture: str, named: tuple[str, ...]
) -> None:
    data, out = written(tmp_path / "data.jsonl", kind), tmp_path / "run"
    wanted = ("train", architecture, "--objective", objective, "--data", data, "--out", out, *SIZES)
    first = succeeded(run(*wanted, "--json"))
    told = json.loads(first.stdout)
    assert "in the place of" in first.stderr
    validation = told["validation"]
    assert validation["unigram_loss"] > 0
    assert (validation["perplexity"] is None) == (kind == "numbers")
    evaluated = answer("evaluate", out, "--data", data, "--held-out", "0.25", "--device", "cpu")
    assert (evaluated["examples"], evaluated["cut"]) == (12, 0)
    for name in ("loss", *named):
        assert evaluated[name] == (validation[name] and pytest.approx(validation[name], rel=1e-4)), name
    assert answer(*wanted) == told  # gone on with: nothing is left to do
    if kind != "numbers":
        labels = json.loads((out / "labels.json").read_text())["labels"]
        assert labels == sorted(labels)
    given = ("classify", "--model", out, "--device", "cpu", "--text", "a good cat")
    results = answer(*given)["results"]
    lines = succeeded(run(*given)).stdout.splitlines()
    if kind == "classes":
        (said,) = results
        assert sum(said["probabilities"].values()) == pytest.approx(1)
        assert said["label"] == max(said["probabilities"], key=said["probabilities"].get)
        assert lines == [f"{said['label']}\t{said['probabilities'][said['label']]:.4f}"]
    elif kind == "numbers":
        assert [float(line) for line in lines] == [pytest.approx(results[0]["value"], rel=1e-4)]
    else:
        assert [each["word"] for each in results[0]["words"]] == ["a", "good", "cat"]
        assert lines[-1] == ""
        assert [line.split("\t")[:2] for line in lines[:-1]] == [[w["word"], w["label"]] for w in results[0]["words"]]
    assert {"version", "labels", "results", *results[0]} <= keys_of("classify")
    assert set(evaluated) <= keys_of("evaluate, labelled text")
    converted = tmp_path / "hf"
    succeeded(run("convert", out, converted))
    settings = json.loads((converted / "config.json").read_text())
    assert settings["architectures"][0].endswith(
        "ForTokenClassification" if kind == "words" else "ForSequenceClassification"
    )
    assert settings["pad_token_id"] is not None
    again = answer("classify", "--model", converted, "--device", "cpu", "--text", "a good cat")["results"]
    assert numbers(again) == pytest.approx(numbers(results), abs=1e-6)
    assert json.dumps(again).count('"label"') == json.dumps(results).count('"label"')


def test_files_are_classified_line_by_line(tmp_path: Path) -> None:
    data, out = written(tmp_path / "data.jsonl"), tmp_path / "run"
    succeeded(run("train", "bert-base", "--objective", "classification", "--data", data, "--out", out, *SIZES))
    (tmp_path / "texts.txt").write_text("a good cat\na bad sea\n", encoding="utf-8")
    both = answer("classify", "--model", out, "--data", tmp_path / "texts.txt", "--device", "cpu")
    assert both["labels"] == ["neg", "pos", "so-so"]
    alone = answer("classify", "--model", out, "--text", "a bad sea", "--device", "cpu")["results"][0]
    assert both["results"][1]["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)
    labelled = answer("classify", "--model", out, "--data", data, "--device", "cpu")
    assert len(labelled["results"]) == 48
    model, tokenizer = af.load(out)
    assert tokenizer is not None
    assert af.classify(model, tokenizer, ["a bad sea"])[0].label == alone["label"]

    # Other labels to validate on, in their own file; and a run from these weights on other labels.
    (tmp_path / "odd.jsonl").write_text('{"text": "x y", "label": "neg"}\n{"text": "z", "label": "nega"}\n')
    says = ("odd.jsonl, line 2: the label 'nega' is none of those trained on (did you mean 'neg'?)",)
    refused(run("evaluate", out, "--data", tmp_path / "odd.jsonl", "--device", "cpu"), *says)
    wanted = ("train", "bert-base", "--objective", "classification", "--data", data, *SIZES)
    refused(run(*wanted, "--validation-data", tmp_path / "odd.jsonl", "--out", tmp_path / "b"), *says)
    assert not (tmp_path / "b").exists()
    refused(run("classify", "--model", out), "give either --data, or --text")
    refused(run("classify", "--model", out, "--text", " "), "line 1: the text is empty")
    (tmp_path / "empty.txt").touch()
    refused(run("classify", "--model", out, "--data", tmp_path / "empty.txt"), "empty.txt is empty; give a file")
    refused(
        run("classify", "--model", out, "--text", "cat " * 99, "--device", "cpu"),
        "a row holds 32; split it, or have",
        "--truncate",
    )
    assert (
        len(answer("classify", "--model", out, "--text", "cat " * 99, "--truncate", "--device", "cpu")["results"]) == 1
    )


def test_new_heads_are_named_and_long_texts_counted(tmp_path: Path) -> None:
    data = written(tmp_path / "data.jsonl")
    text = tmp_path / "plain.txt"
    text.write_text("a cat and a dog and an owl saw the sea and the sky and the sun again\n" * 60, encoding="utf-8")
    first = ("--params", "30k", "--vocab", "290", "--tokens", "512", "--seq-len", "32", "--batch-tokens", "256")
    succeeded(run("train", "bert-base", "--data", text, "--out", tmp_path / "mlm", *first, "--device", "cpu"))
    wanted = ("train", tmp_path / "mlm", "--objective", "classification", "--data", data, "--init", tmp_path / "mlm")
    sizes = ("--tokens", "512", "--batch-tokens", "256", "--device", "cpu", "--validation", "0.25")
    said = run(*wanted, "--out", tmp_path / "run", *sizes, "--seq-len", "8", "--truncate")
    succeeded(said)
    assert "texts are cut to 8 tokens (--truncate)" in said.stderr
    assert "not in the given weights, so new: heads.0." in said.stderr
    assert recipe.read(tmp_path / "run" / "recipe.yaml").objective == recipe.Classification(truncate=True)
    refused(run(*wanted, "--out", tmp_path / "c", *sizes, "--seq-len", "8"), "a row holds 8", "--truncate")
    refused(
        run("train", "gpt2", "--data", text, "--truncate", "--out", tmp_path / "d"),
        "--truncate is for examples that a row holds whole",
    )
    refused(
        run("train", "gpt2", "--objective", "classification", "--data", text, "--out", tmp_path / "d", *SIZES),
        "plain.txt is no labelled text; give a file that ends in .jsonl",
    )
    refused(
        run("train", "gpt2", "--objective", "regression", "--data", data, "--out", tmp_path / "d", *SIZES),
        "line 1: the label 'neg' is no number",
    )
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "d").exists()
