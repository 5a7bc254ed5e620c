"""`diff` and `history`: what they print, as text and as JSON, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from tests.cli.running import run, succeeded


def answer(*arguments: object) -> dict[str, Any]:
    return json.loads(succeeded(run(*arguments, "--json")).stdout)


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(start))


class TestDiff:
    def test_two(self) -> None:
        told = answer("diff", "llama2-7b", "llama3-8b")
        assert (told["version"], told["names"], told["seq_len"]) == (1, ["llama2-7b", "llama3-8b"], 4096)
        assert told["totals"][1]["parameters"] == 8_030_261_248
        assert told["together"]["parameters"] == 8_030_261_248 - 6_738_415_616
        one = told["effects"]["attention"]
        assert (one["measured_in"], one["change"]["parameters"]) == ("a", -32 * 2 * 4096 * 24 * 128)
        assert {key["change"] for key in told["keys"]} == {"reshaped"}

    def test_long_names_are_letters(self) -> None:
        long = "gpt2+activation=SwiGLU+norm=RMSNorm"
        shown = succeeded(run("diff", "gpt2", long)).stdout
        assert shown.startswith(f"A: gpt2\nB: {long}\n\npart ")
        assert line(shown, "norm").split() == "norm LayerNorm (eps 1e-5) RMSNorm (eps 1e-6) −19.2k 0 0 −25".split()  # noqa: SIM905
        assert "A with that one part of B" in shown
        assert answer("diff", "gpt2", long)["names"] == ["gpt2", long]
        assert succeeded(run("diff", "gpt2", "gpt2+norm=RMSNorm")).stdout.startswith("part ")
        many = [f"gpt2+n_layers={n}+norm=RMSNorm+activation=GELU" for n in range(1, 28)]
        assert many[-1] in succeeded(run("diff", *many)).stdout

    def test_the_table(self) -> None:
        shown = succeeded(run("diff", "llama2-7b", "llama3-8b")).stdout
        assert max(map(len, shown.splitlines())) <= 120
        row = line(shown, "attention")
        assert "multi-head" in row
        assert "−805M" in row
        assert "−384 KiB" in row
        assert "~64" in row
        assert "activation" not in shown
        assert "(+19 %)" in line(shown, "parameters")
        assert "activation" in succeeded(run("diff", "llama2-7b", "llama3-8b", "--all")).stdout

    def test_three_side_by_side(self) -> None:
        shown = succeeded(run("diff", "transformer", "llama", "llama2")).stdout
        for part in ("tokenization", "positions", "norm ", "norm placement", "activation", "attention"):
            assert line(shown, part)
        assert max(map(len, shown.splitlines())) <= 120
        assert line(shown, "activation").split()[1:] == ["ReLU", "SwiGLU", "SwiGLU"]
        assert len(answer("diff", "transformer", "llama", "llama2")["totals"]) == 3

    def test_equal_ones(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(af.dumps(af.preset("gpt2").spec), encoding="utf-8")
        for pair in (("gpt2", "gpt2"), (tmp_path / "mine.yaml",) * 2, ("gpt2", tmp_path / "mine.yaml")):
            shown = succeeded(run("diff", *pair)).stdout.split()  # a long path has lines break anywhere
            assert "are equal" in " ".join(shown)

    def test_files_and_configurations(self, tmp_path: Path) -> None:
        spec = af.preset("gpt2").spec
        (tmp_path / "mine.yaml").write_text(af.dumps(spec.but(context=77)), encoding="utf-8")
        told = answer("diff", "gpt2", tmp_path / "mine.yaml")
        assert {row["part"] for row in told["rows"] if row["differs"]} == {"context"}
        assert told["seq_len"] == 77
        sizes = {"n_layer": 6, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        told = answer("diff", "gpt2", tmp_path / "config.json")
        assert {row["part"] for row in told["rows"] if row["differs"]} == {"layers"}

    def test_keys_are_listed_when_asked_for(self) -> None:
        shown = succeeded(run("diff", "gpt2", "gpt2-medium", "--keys")).stdout
        assert "~ stack.blocks.{i}.sublayers.0.norm_in.weight  768 → 1024  i = 0–11" in shown
        assert "+ stack.blocks.{i}.sublayers.0.norm_in.weight  1024  i = 12–23" in shown

    def test_lineage(self) -> None:
        shown = succeeded(run("diff", "gpt2", "llama2-7b", "--lineage")).stdout
        for step in ("gpt2 → gpt3-175b (2020)", "gpt3-175b → llama-65b (2023)", "llama-65b → llama2-7b (2023)"):
            assert step in shown
        told = answer("diff", "gpt2", "llama2-7b", "--lineage")
        assert (told["version"], told["names"], len(told["steps"])) == (1, ["gpt2", "llama2-7b"], 3)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("gpt2",), "two architectures or more"),
            ((), "two architectures or more"),
            (("gpt2", "lama2"), "did you mean"),
            (("gpt2", "gpt-4"), "cannot be built"),
            (("gpt2", "llama", "opt", "--lineage"), "give two, not 3"),
            (("gpt2", "nowhere/spec.yaml"), "there is nothing at nowhere/spec.yaml"),
            (("gpt2", "llama", "--seq-len", "0"), "0"),
            (("llama", "gpt2", "--seq-len", "8192"), "gpt2: seq_len = 8,192 goes beyond the 1,024 learned positions"),
            (("opt", "llama", "gpt2", "--seq-len", "2k"), "gpt2: seq_len = 2,000 goes beyond"),
            (("gpt2", "llama", "--as-variant", "--all", "--seq-len", "8"), "no use for --all and --seq-len"),
            (("gpt2", "llama", "--as-variant", "--lineage"), "no use for --lineage"),
            (("gpt2", "llama", "--lineage", "--keys"), "--lineage has no use for --keys"),
            (("gpt2", "llama", "bert-base", "--keys"), "--keys lists the tensors of two models"),
        ],
    )
    def test_bad_input_is_one_line(self, arguments: tuple[str, ...], said: str) -> None:
        result = run("diff", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1

    def test_a_file_has_no_lineage(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text(af.dumps(af.preset("gpt2").spec), encoding="utf-8")
        result = run("diff", "gpt2", tmp_path / "mine.yaml", "--lineage")
        assert result.exit_code == 2
        assert "presets alone" in result.stderr


class TestHistory:
    def test_text(self) -> None:
        shown = succeeded(run("history", "--since", "2024")).stdout
        assert "gemma2-27b" in shown
        assert "gpt2" not in shown
        assert "[1]" in shown

    def test_json(self) -> None:
        told = answer("history")
        assert told["version"] == 1
        transformer = next(entry for entry in told["entries"] if entry["model"] == "transformer-base")
        assert transformer["cells"]["norm placed"] == "post-norm"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--since", "2099"), "the table ends in"),
            (("--json", "--markdown"), "give one"),
            (("--since", "x"), "x"),
            (("--claims", "--markdown"), "leave out --markdown and --since"),
        ],
    )
    def test_bad_input_is_one_line(self, arguments: tuple[str, ...], said: str) -> None:
        result = run("history", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
