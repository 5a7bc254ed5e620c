"""Pairs of runs of text, and prefixes without an encoder, by commands."""

import json
from pathlib import Path

import pytest

import anyformer as af
from anyformer import spec
from anyformer.families.prefix import prefixed
from anyformer.text import Tokenizer
from tests.cli.running import SIZES, answer, refused, run, succeeded

pytestmark = pytest.mark.usefixtures("_quick")
LARGER = tuple(word for option in {**SIZES, "--vocab": "300"}.items() for word in option)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(60):
        lines = [f"{('cat', 'dog', 'owl')[i % 3]} {j} sits on mat {i * 7 % 11}." for j in range(5 + i % 9)]
        (tmp_path / "texts" / f"{i}.txt").write_text(" ".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "texts"


def test_a_pair_of_objectives_in_one_run(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "run"
    given = ("train", "bert-base", "--data", folder, "--out", out, *LARGER, "--objective", "next-sentence")
    told = succeeded(run(*given, "--json"))
    assert "which is added to the architecture" not in told.stderr
    assert json.loads(told.stdout)["objective"] == "NextSentence"
    tokenizer = Tokenizer.load(out / "tokenizer")
    assert {tokenizer.config[role] for role in ("cls_token", "sep_token", "mask_token")} == {"[CLS]", "[SEP]", "<mask>"}
    assert tokenizer.vocab_size <= 300
    evaluated = answer("evaluate", out, "--data", folder, "--held-out", "0.05", "--device", "cpu")
    assert evaluated["loss"] == pytest.approx(json.loads(told.stdout)["validation"]["loss"], rel=1e-6)
    part = evaluated["parts"]["next sentence"]
    assert part["labels"] > 1
    assert part["accuracy"] * part["labels"] == pytest.approx(round(part["accuracy"] * part["labels"]))
    shown = succeeded(run("evaluate", out, "--data", folder, "--held-out", "0.05", "--device", "cpu")).stdout
    assert f"next sentence: {part['loss']:.4f} nats, {part['accuracy']:.1%} right" in shown


def test_a_head_that_is_lacking_is_added_and_said(tmp_path: Path, folder: Path) -> None:
    given = ("--data", folder, *LARGER, "--objective", "sentence-order")
    told = run("train", "roberta-base", *given, "--out", tmp_path / "run")
    assert "SentenceOrder trains a head 'sop', which is added to the architecture" in succeeded(told).stderr
    assert [head.name for head in spec.read(tmp_path / "run" / "spec.yaml").heads] == ["mlm", "sop"]
    again = run("train", "roberta-base", *given, "--out", tmp_path / "run", "--resume")
    assert succeeded(again).stdout == told.stdout


def test_one_document_has_no_other(tmp_path: Path, text: Path) -> None:
    given = ("train", "bert-base", "--data", text, "--out", tmp_path / "run", *LARGER, "--objective", "next-sentence")
    refused(run(*given), "NextSentence takes runs that do not follow from other documents", "use SentenceOrder")
    assert not (tmp_path / "run").exists()


def test_a_decoder_with_a_prefix(tmp_path: Path, text: Path) -> None:
    file, out = tmp_path / "prefix.yaml", tmp_path / "run"
    file.write_text(spec.dumps(prefixed(af.resize(af.preset("llama2"), n_params=60_000, vocab_size=300))))
    refused(
        run("train", "llama2-7b", "--data", text, "--out", out, *LARGER, "--objective", "prefix-lm"), "has a prefix"
    )
    told = answer("train", file, "--data", text, "--out", out, *LARGER)
    assert told["objective"] == "PrefixLM"
    assert answer("evaluate", out, "--data", text, "--held-out", "0.05", "--device", "cpu")["loss"] == pytest.approx(
        told["validation"]["loss"], rel=1e-6
    )
    assert answer("cost", file)["parameters"]["total"] > 1000
    assert succeeded(run("generate", "line 3: the", "--model", out, "--max-new-tokens", "4")).stdout
