"""`anyformer show`: the card, its numbers, the diagram and the picture; presets, files, directories and runs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import anyformer as af
from anyformer.descriptions import as_svg, as_text
from tests.cli.running import run, succeeded
from tests.hostile.faulty_disk import no_space_left

ROOT = Path(__file__).resolve().parents[2]


def rows(*arguments: object) -> dict[str, dict[str, object]]:
    found = json.loads(succeeded(run("show", *arguments, "--json")).stdout)
    assert found["version"] == 2
    return {row["key"]: row for row in found["card"]}


def test_the_card_and_the_diagram() -> None:
    shown = succeeded(run("show", "gpt2")).stdout
    assert shown.startswith("gpt2")
    assert "FFN dimension" in shown
    assert "3,072" in shown
    assert as_text(af.diagram(af.preset("gpt2"))) in shown
    plain = succeeded(run("show", "gpt2", "--no-diagram")).stdout
    assert shown.startswith(plain)
    assert "┌" not in plain


def test_numbers_of_a_file_a_config_and_a_run(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "spec.yaml").write_text(af.dumps(af.preset("mistral-7b-v0.1").spec), encoding="utf-8")
    assert rows(tmp_path / "spec.yaml")["keys_seen"]["words"] == "window of 4,096"
    config = {"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 4, "n_positions": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = rows(tmp_path / "config.json")
    assert [found[key]["value"] for key in ("n_layers", "d_model", "n_heads", "vocab_size")] == [3, 48, 4, 100]
    assert "tokenizer" not in found
    of_run = rows(trained)
    assert of_run["batch_tokens"]["value"] == 256
    assert of_run["training_seq_len"]["value"] == 32
    assert of_run["n_params"]["value"] == af.parameters(af.load_spec(trained)).total


def test_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "gptj.svg"
    succeeded(run("show", "gptj", "--diagram", file, "--no-diagram"))
    text = file.read_text(encoding="utf-8")
    assert text == as_svg(af.diagram(af.preset("gptj")), "gptj-6b")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    beside = tmp_path / "beside.svg"
    assert succeeded(run("show", "gptj", "--spec", "yaml", "--diagram", beside)).stdout == af.dumps(
        af.preset("gptj").spec
    )
    assert beside.read_text(encoding="utf-8") == text


def test_the_picture_of_the_documentation_is_up_to_date() -> None:
    """Made by `anyformer show deepseek-v3 --diagram docs/deepseek-v3.svg`."""
    wanted = as_svg(af.diagram(af.preset("deepseek-v3")), "deepseek-v3")
    assert (ROOT / "docs" / "deepseek-v3.svg").read_text(encoding="utf-8") == wanted


def test_a_narrow_terminal_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("anyformer.cli.show.console", lambda: Console(width=50, highlight=False))
    shown = " ".join(run("show", "gptj").stdout.split())
    assert "┌" not in shown
    assert "wider than 50 columns; --diagram FILE.svg" in shown


def test_a_disk_that_takes_no_picture_ends_as_any_command_does_that_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyformer.disk.atomic.write_all", no_space_left)
    for command in (("show", "gpt2", "--diagram"), ("plan", "gpt2", "--hardware", "H100", "--write")):
        file = tmp_path / ("gpt2.svg" if command[0] == "show" else "gpt2.yaml")
        result = run(*command, file)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: could not write the ")
        assert result.stderr.endswith(f"{file}: No space left on device; choose another place\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_public_has_no_picture(tmp_path: Path) -> None:
    assert "not public" in succeeded(run("show", "gpt-4")).stdout
    result = run("show", "gpt-4", "--diagram", tmp_path / "x.svg")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "have not published" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gemma3-27", ""), ("no preset 'gemma3-27'", "did you mean 'gemma3-27b'")),
        (("gpt2", "--diagram", "gpt2.gif"), ("--diagram gpt2.gif", "ends in one of these")),
        (("gpt2", "--diagram", "nowhere/gpt2.svg"), ("--diagram nowhere/gpt2.svg: there is no folder nowhere",)),
        (("gpt2", "--diagram", "."), ("ends in one of these",)),
        (("gpt2", "--spec", "yaml", "--json"), ("--spec", "--json", "give one")),
    ],
)
def test_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("show", *filter(None, arguments))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    for words in says:
        assert words in result.stderr
    assert list(tmp_path.iterdir()) == []
