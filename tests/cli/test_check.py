"""`anyformer check`: findings, places in the field, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import anyformer as af
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Everything, LearnedPositionsSpec
from anyformer.spec import Length, ModelSpec
from tests.cli.running import run, succeeded


def written(path: Path, spec: ModelSpec) -> Path:
    path.write_text(af.dumps(spec), encoding="utf-8")
    return path


def test_what_is_found_and_where_it_stands() -> None:
    shown = succeeded(run("check", "gemma2-2b")).stdout
    assert "sdpa cannot cap scores (softcap=50.0)" in " ".join(shown.split())
    assert "keep a ring of the last 4,096 tokens" in shown
    assert "Gemma2ForCausalLM" in shown
    assert shown.count("●") == len(json.loads(succeeded(run("check", "gemma2-2b", "--json")).stdout)["field"])


def test_brackets_are_shown() -> None:
    assert "dense mask [query, key]" in " ".join(succeeded(run("check", "mistral")).stdout.split())


def test_errors_end_with_status_1(tmp_path: Path) -> None:
    spec = changed(af.preset("gpt2").spec, AttentionSpec, mask=Everything())
    spec = changed(spec, LearnedPositionsSpec, n_positions=Length(512))
    result = run("check", written(tmp_path / "wrong.yaml", spec))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "wrong.yaml: the head 'lm' predicts the next token" in result.stderr
    assert result.stderr.rstrip().endswith(", and 1 more")
    assert "512 learned positions" in " ".join(result.stdout.split())
    answer = run("check", tmp_path / "wrong.yaml", "--json")
    found = json.loads(answer.stdout)
    assert (answer.exit_code, found["ok"]) == (1, False)
    assert [f["severity"] for f in found["findings"]][:3] == ["error", "error", "consequence"]


def test_a_config_of_transformers(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": 64, "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = json.loads(succeeded(run("check", tmp_path / "config.json", "--json")).stdout)
    assert found["ok"]
    assert {place["key"]: place["value"] for place in found["field"]}["d_ff_per_d_model"] == 4


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gtp2", None, "did you mean 'gpt2'"),
        ("./nowhere.yaml", None, "there is nothing at nowhere.yaml"),
        ("./broken.yaml", "anyformer: 1\nstack: {d_model: 8}\n", "Stack needs embedding"),
        ("./config.json", '{"model_type": "gpt3"}', "model_type 'gpt3' is not read here"),
    ],
)
def test_what_is_no_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text, encoding="utf-8")
    result = run("check", name)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert says in result.stderr
