"""Variants where commands take a model: a name with changes, and the name that a diff is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.names import PresetName
from tests.cli.running import SMALL, answer, failed, refused, run, succeeded, write_text


def test_commands_take_variants(tmp_path: Path) -> None:
    name = "llama2+norm=LayerNorm"
    total = 6_738_415_616 + (2 * 32 + 1) * 4096
    assert answer("cost", name)["parameters"]["total"] == total
    assert answer("show", name)["name"] == name
    assert answer("diff", "llama2", name)["names"] == ["llama2-7b", name]
    effect = answer("diff", "llama2", name)["effects"]["norm"]["change"]
    assert effect["parameters"] == total - 6_738_415_616
    assert "error" not in succeeded(run("check", name)).stdout
    (tmp_path / "mine.yaml").write_text(af.dumps(af.preset("gpt2")), encoding="utf-8")
    there = f"{tmp_path / 'mine.yaml'}+norm=RMSNorm"
    assert succeeded(run("show", there, "--spec", "yaml")).stdout == af.dumps(af.load_spec("gpt2+norm=RMSNorm"))


def test_compare_is_one_command(tmp_path: Path) -> None:
    text, names = write_text(tmp_path / "text.txt"), ["llama2", "llama2+norm=LayerNorm", "llama2+activation=GELU"]
    out = tmp_path / "out"
    succeeded(run("compare", *names, "--data", text, "--seeds", "1", *SMALL, "--out", out))
    study = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert [each["architecture"] for each in study["runs"]] == names
    directories = sorted(path.name for path in (out / "runs").iterdir())
    assert sorted(name.rpartition("-lr")[0] for name in directories) == sorted(names)


def test_as_variant() -> None:
    said = succeeded(run("diff", "llama2", "llama2+norm=LayerNorm+mask=SlidingWindow(size=128)", "--as-variant")).stdout
    assert said == "llama2+norm=LayerNorm+mask=Causal&SlidingWindow(size=128)\n"
    said = succeeded(run("diff", "llama2+norm=LayerNorm", "llama2", "--as-variant")).stdout
    assert said == "llama2\n"
    told = answer("diff", "llama2+norm=LayerNorm", "llama2", "--as-variant")
    assert told == {"version": 1, "names": ["llama2", "llama2"], "variant": "llama2"}
    failed(run("diff", "llama2", "transformer", "--as-variant"), "no variant of llama2 is transformer", "stacks")
    refused(run("diff", "llama2", "--as-variant"), "two")


@pytest.mark.parametrize("command", ["show", "cost", "check"])
def test_bad_ones(command: str) -> None:
    refused(run(command, "llama2+nrom=LayerNorm"), "nrom=LayerNorm", "did you mean 'norm'?")
    refused(run(command, "llama9+norm=LayerNorm"), "no preset 'llama9'")
    refused(run(command, "llama2+norm"), "llama2+norm: a change is +ROW=VALUE, as in llama2+norm=…")
    refused(run(command, "llama2+=3"), "llama2+=3: a change is +ROW=VALUE, as in llama2+norm=…")


def test_the_shell_completes_rows() -> None:
    context: object = None
    items = PresetName().shell_complete(context, context, "llama2+pos")  # type: ignore[arg-type]
    assert [item.value for item in items] == ["llama2+positions="]
    items = PresetName().shell_complete(context, context, "llama2+norm=LayerNorm+qk")  # type: ignore[arg-type]
    assert [item.value for item in items] == ["llama2+norm=LayerNorm+qk-norm="]
