"""Every option of every command, given what no one should give: status 0, or one line and status 2."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from anyformer.cli.main import COMMANDS
from tests.cli.running import run

pytestmark = [pytest.mark.usefixtures("_quick"), pytest.mark.filterwarnings("ignore")]
VALUES = (
    *("nan", "9" * 5000, "1" * 19, "a\0b", "\udcff", "-1", "0", "-inf", "1e400", "9999999999", "0.5", "", "١٢"),
    *("x" * 100_000, "[red]\x1b[2J"),
)
# What each needs beside the option: a model and a text that make it short, or ones that are not there.
NEEDED = {
    "train": ("m.yaml", "--data", "no.txt", "--dry-run"), "compare": ("m.yaml", "--data", "no.txt"),
    "evaluate": ("no", "--data", "no.txt"), "generate": ("--model", "no", "the"), "convert": ("no", "out"),
    "classify": ("--model", "no", "--text", "a"), "embed": ("--model", "no", "--text", "a"), "verify": (".",),
    "plan": ("m.yaml", "--hardware", "8xH100", "--mesh", "dp=8"), "diff": ("m.yaml", "gpt2"), "runs": (".",),
    "inspect": ("no", "--data", "no.txt"), "tokenizer train": ("no.txt", "--out", "tok"),
    "tokenizer encode": ("--tokenizer", "no", "--text", "a"),
    "tokenizer compare": ("words", "--data", "no.txt"), "tokenizer audit": ("--model", "no"),
    **dict.fromkeys(("chat", "serve"), ("no",)),
    **dict.fromkeys(("show", "check", "cost", "study"), ("m.yaml",)),
    **dict.fromkeys(("history", "presets"), ()), "completion": ("bash",),
}  # fmt: skip
NOT_RUN = {"calibrate", "profile"}  # they measure


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = importlib.import_module(f"anyformer.cli.{name}").command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        elif name not in NOT_RUN:
            yield name, command


def test_every_command_is_tried() -> None:
    assert {name for name, _ in commands()} == set(NEEDED)


@pytest.mark.parametrize("values", [VALUES[:5], pytest.param(VALUES[5:], marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_option_ends_in_a_status(
    name: str, command: click.Command, values: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyformer as af

    monkeypatch.chdir(tmp_path)
    Path("m.yaml").write_text(af.dumps(af.shrink(af.preset("llama2-7b"))), encoding="utf-8")
    before = os.listdir()
    options = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag]
    for option in options:
        for value in values:
            result = run(*name.split(), *NEEDED[name], f"{option.opts[-1]}={value}")
            said = (option.name, value[:20], result.stderr[:300])
            assert result.exception is None or isinstance(result.exception, SystemExit), said
            no = name == "plan" and result.exit_code == 1 and not result.stderr  # it does not fit
            assert result.exit_code in (0, 2) or no, said
            if result.exit_code == 2:
                assert result.stderr.startswith("error: "), said
                assert result.stderr.count("\n") == 1, said
                assert len(result.stderr) < 2200, said
                assert "\x1b" not in result.stderr, said
            written = set(os.listdir()) - set(before)
            assert not written, (said, written)
