"""What a user sees in the first hour: numbers, plurals, lists as wide as the terminal, refusals before anything is built."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyformer as af
from anyformer import capacity
from anyformer.cli import history, main, runs
from anyformer.errors import UsageError
from anyformer.screen import console
from anyformer.training.checkpoint.listing import list_runs
from tests.cli.running import SIZES, refused, run, succeeded

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    for module in (history, runs):
        monkeypatch.setattr(module, "console", lambda *_: console(80))


@pytest.mark.usefixtures("narrow")
def test_history_breaks_no_word() -> None:
    found = af.history()
    shown = succeeded(run("history")).stdout
    assert max(map(len, shown.splitlines())) <= 80
    words = set(shown.replace(";", " ").split())
    for entry in found.entries:
        assert {word for cell in entry.cells.values() if cell != "–" for word in cell.split()} <= words, entry.model


@pytest.mark.usefixtures("narrow")
def test_runs_shows_each_name_whole(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = list_runs(trained.parent)
    names = ["terminal", "a-name-of-thirty-characters-in-all", "[red]c"]
    monkeypatch.setattr(
        "anyformer.training.checkpoint.listing.list_runs", lambda _: [replace(one, name=name) for name in names]
    )
    lines = succeeded(run("runs", tmp_path)).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == names
    assert "finished" in lines[1]


def test_what_memory_has_no_room_for_is_not_built(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a dry run and in the real one, of a run's weights, in Python."""
    words = ("train", "llama2-7b", "--data", text, "--vocab", "300", "--device", "cpu", "--out", tmp_path / "out")
    sizes = [word for name in ("--tokens", "--seq-len", "--batch-tokens") for word in (name, SIZES[name])]

    def none(*_: object, **__: object) -> None:
        raise AssertionError("something was allocated")

    with monkeypatch.context() as patch:
        patch.setattr("anyformer.training.run.loop.build", none)
        for more in (["--dry-run"], []):
            result = run(*words, *sizes, "--params", "500B", *more)
            assert result.exit_code == 2
            assert "training a model of this size needs" in result.stderr
            assert "resize it (--params)" in result.stderr
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(capacity, "free_nbytes", lambda device=None: None if str(device) == "meta" else 1000)
    for command in (("generate", "--model", trained, "x"), ("evaluate", trained, "--data", text)):
        refused(run(*command, "--device", "cpu"), "the model in", "needs 0.0 GB of memory", "--dtype")
    with pytest.raises(UsageError, match="a model of this size needs"):
        af.build(af.shrink(af.preset("gpt2")))


def test_a_prompt_comes_from_the_text(text: Path, tmp_path: Path) -> None:
    from anyformer.study.compare import first_words
    from anyformer.training.chosen_recipe import changed
    from anyformer.training.prepare import Sources, held_out_of, read_data

    data, _ = read_data(
        changed("quick", {"seq_len": 32}),
        Sources(str(text)),
        held_out_of("text", 0.05, None),
        vocab_size=300,
        say=lambda _: None,
    )
    said = first_words(data)
    assert said
    assert said in text.read_text()
    assert len(said.split()) <= 3


def test_help_of_every_command_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in main.COMMANDS:
        shown = CliRunner().invoke(main.application, [name, "--help"]).stdout
        assert max(map(len, shown.splitlines())) <= 80, name
