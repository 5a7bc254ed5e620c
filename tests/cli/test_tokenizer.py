"""`tokenizer train --kind`, `compare` and `audit` as typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.tokenizer import KINDS
from anyformer.text import SCHEMES, Tokenizer
from tests.cli.running import answer, refused, run, succeeded

WORDS = "The owl isn't in the U.K. at all. "


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{WORDS}{n} of them sat there.\n" for n in range(60)))
    return path


def test_every_kind_is_offered() -> None:
    assert set(KINDS) == set(SCHEMES)


def test_train_a_kind(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "words"
    told = answer(
        "tokenizer", "train", text, "--kind", "words-treebank", "--vocab", "12", "--special", "<mask>", "--out", out
    )
    own = Tokenizer.load(out)
    assert own.vocab_size == told["vocab_size"] == 15
    assert own.spelling(14) == "<mask>"
    assert 0 < told["unknown_rate"] < 1
    shown = succeeded(
        run("tokenizer", "train", text, "--kind", "words", "--vocab", "9", "--out", tmp_path / "b")
    ).stdout
    assert "% of the tokens unknown" in shown


def test_compare(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    succeeded(run("tokenizer", "train", text, "--vocab", "300", "--out", out))
    names = ("characters", "words-treebank", "words-spacy", out)
    found = answer("tokenizer", "compare", *names, "--data", text, "--vocab", "50", "--example", "isn't the U.K. so?")
    assert [entry["name"] for entry in found["tokenizers"]] == [str(name) for name in names]
    by_name = {entry["name"]: entry for entry in found["tokenizers"]}
    assert by_name["characters"]["bytes_per_token"] == 1.0
    assert by_name[str(out)]["restored_rate"] == 1.0
    splits = found["examples"]["isn't the U.K. so?"]
    assert splits["words-treebank"] == ["is", "n't", "the", "U.K.", "[so]", "[?]"]
    shown = succeeded(run("tokenizer", "compare", *names, "--data", text, "--vocab", "50")).stdout
    assert all(words in shown for words in ("bytes/token", "unknown", "words-spacy", "[fast] | [-]"))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_standard_input_is_utf8_whatever_the_terminal_is(text: Path, tmp_path: Path, encoding: str) -> None:
    succeeded(run("tokenizer", "train", text, "--vocab", "300", "--out", tmp_path / "mine"))

    def encoded(given: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [
            sys.executable,
            "-m",
            "anyformer",
            "tokenizer",
            "encode",
            "--tokenizer",
            str(tmp_path / "mine"),
            "--json",
        ]
        environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
        return subprocess.run(command, input=given, capture_output=True, env=environment, check=False, timeout=120)

    assert json.loads(encoded("Ü".encode()).stdout)["ids"] == Tokenizer.load(tmp_path / "mine").encode("Ü")
    wrong = encoded(b"a\xffb")
    assert wrong.returncode == 2
    assert wrong.stderr == b"error: text that is not UTF-8: byte 0xff at character 1; convert it or remove it\n"


def test_audit(text: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([text.read_text()], 300)
    model = af.build(af.resize(af.preset("llama2-7b"), n_params=40_000, vocab_size=300))
    af.save(model, tmp_path / "model", tokenizer=tokenizer)
    found = answer("tokenizer", "audit", "--model", tmp_path / "model", "--data", text, "--top", "7")
    assert len(found["suspects"]) == 7
    assert found["compared_with"].endswith("tokens that the text never has")
    counted = {suspect["token"]: suspect["count"] for suspect in found["suspects"]}
    ids = tokenizer.encode(text.read_text())
    assert counted == {token: ids.count(token) for token in counted}
    shown = succeeded(run("tokenizer", "audit", "--model", tmp_path / "model", "--top", "3")).stdout
    assert len(shown.splitlines()) == 5


def test_bad_input(text: Path, tmp_path: Path) -> None:
    refused(run("tokenizer", "train", text, "--kind", "wordpeice", "--out", "o"), "'wordpeice'", "wordpiece")
    refused(run("tokenizer", "train", text, "--kind", "bpe", "--min-count", "3", "--out", "o"), "bpe has no min_count")
    refused(run("tokenizer", "compare", "byte-level", "--data", text), "'byte-level'", "did you mean 'byte-level-bpe'")
    refused(run("tokenizer", "compare", "./nowhere", "--data", text), "nowhere", "does not exist")
    refused(run("tokenizer", "audit", "--model", "./nowhere"), "nowhere")
    bare = tmp_path / "bare"
    af.save(af.build(af.resize(af.preset("gpt2"), n_params=40_000, vocab_size=270)), bare)
    refused(run("tokenizer", "audit", "--model", bare), "has no tokenizer beside its weights")
