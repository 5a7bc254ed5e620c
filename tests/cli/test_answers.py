"""Answers kept on disk: the second is the first, byte for byte, without PyTorch; whatever it depends on makes it anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from anyformer.cli import answers
from anyformer.disk import cache
from anyformer.spec import dumps
from tests.cli.running import refused, run, succeeded

ROOT = Path(__file__).parents[2]
QUESTIONS = [
    ("show", "gpt2"),
    ("show", "gpt2", "--json"),
    ("show", "gpt2", "--spec", "yaml"),
    ("cost", "gpt2", "--seq-len", "64"),
    ("cost", "gpt2", "--seq-len", "64", "--device", "H100", "--json"),
    ("diff", "gpt2", "llama2-7b"),
    ("diff", "gpt2", "llama2-7b", "--json"),
    ("check", "gpt2"),
    ("check", "gpt2", "--json"),
    ("plan", "gpt2", "--hardware", "H100"),
    ("plan", "gpt2", "--hardware", "H100", "--json"),
]


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the answers, empty."""
    monkeypatch.delenv("ANYFORMER_NO_CACHE")
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "answers"


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were not answered from disk."""
    found: list[str] = []
    recorded = answers._recorded

    def noted(run: Any, question: Any) -> int:
        found.append(run.func.__module__)
        return recorded(run, question)

    monkeypatch.setattr(answers, "_recorded", noted)
    return found


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_the_second_answer_is_the_first(words: tuple[str, ...], kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = succeeded(run(*words))
    assert len(list(kept.iterdir())) == 1
    monkeypatch.setattr(answers, "_recorded", lambda *_: pytest.fail("it was worked out again"))
    second = succeeded(run(*words))
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)
    assert first.stdout


def narrow(console: Callable[..., Any], columns: int) -> Callable[..., Any]:
    return lambda width=columns: console(columns)


def twice(*words: object) -> tuple[Result, Result]:
    return run(*words), run(*words)


def test_the_second_answer_imports_no_torch(kept: Path) -> None:
    """A process of its own; the text is laid out by the same code as at first."""
    code = "import sys; from anyformer.cli.main import application\ntry: application.main(sys.argv[1:])\nfinally: "
    code += "print('torch' in sys.modules, 'anyformer.families' in sys.modules, file=sys.stderr)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ANYFORMER_CACHE": str(kept.parent)}

    def once() -> tuple[str, str]:
        words = [sys.executable, "-c", code, "show", "gpt2"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    (first, heavy), (second, light) = once(), once()
    assert (heavy, light) == ("True True\n", "False False\n")
    assert first == second


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize(
    "words", [("cost", "gpt2"), ("show", "t5-base"), ("diff", "gpt2", "llama2-7b"), ("check", "gpt2")]
)
def test_it_is_laid_out_for_the_terminal_at_hand(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anyformer.cli import answers, terminal

    succeeded(run(*words))
    for module in (answers, terminal):
        monkeypatch.setattr(module, "console", narrow(terminal.console, columns))
    for name in ("show", "cost", "diff", "check"):
        monkeypatch.setattr(f"anyformer.cli.{name}.console", narrow(terminal.console, columns))
    again = succeeded(run(*words)).stdout
    monkeypatch.setenv("ANYFORMER_NO_CACHE", "1")
    assert again == succeeded(run(*words)).stdout


def test_a_status_is_part_of_the_answer(worked_out: list[str]) -> None:
    first, second = twice("plan", "llama3.1-405b", "--hardware", "L4", "--json")
    assert (first.exit_code, second.exit_code, len(worked_out)) == (1, 1, 1)
    assert first.stdout == second.stdout


def test_options_are_part_of_the_question(worked_out: list[str]) -> None:
    lengths = [json.loads(run("cost", "gpt2", "--seq-len", n, "--json").stdout)["seq_len"] for n in (64, 65, 64)]
    assert (lengths, len(worked_out)) == ([64, 65, 64], 2)


def test_a_file_read_as_another_type_is_another_question(tmp_path: Path, worked_out: list[str]) -> None:
    file = tmp_path / "config.json"
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
    }
    file.write_text(json.dumps({"model_type": "llama", **sizes}), encoding="utf-8")
    ways = ((), ("--as", "qwen2"), ("--as", "llama"), ())
    found = [
        json.loads(run("cost", file, "--seq-len", "64", "--json", *way).stdout)["parameters"]["total"] for way in ways
    ]
    assert found[0] == found[2] == found[3] == found[1] - 2 * 3 * 64  # Qwen2's biases
    assert len(worked_out) == 3


def test_a_changed_file_is_read_again(tmp_path: Path, worked_out: list[str]) -> None:
    from anyformer.families import preset

    file, totals = tmp_path / "mine.yaml", []
    for name in ("gpt2", "gpt2", "gpt2-medium", "gpt2"):
        file.write_text(dumps(preset(name).spec), encoding="utf-8")
        totals.append(json.loads(run("cost", file, "--seq-len", "64", "--json").stdout)["parameters"]["total"])
    assert totals == [124_439_808, 124_439_808, 354_823_168, 124_439_808]
    assert len(worked_out) == 2


def test_a_changed_device_file_is_read_again(tmp_path: Path, worked_out: list[str]) -> None:
    file, hours = tmp_path / "mine.yaml", []
    for peak in (1e12, 2e12, 2e12):
        device = {"name": "mine", "source": "", "memory_nbytes": 1e11, "nbytes_per_second": 1e12}
        file.write_text(json.dumps({**device, "peak_flops_per_second": {"float32": peak}}), encoding="utf-8")
        words = ("plan", "gpt2", "--hardware", f"1x{file}", "--tokens", "1B", "--json")
        hours.append(json.loads(succeeded(run(*words)).stdout)["hours"])
    assert hours[0] > 1.5 * hours[1] == 1.5 * hours[2]
    assert len(worked_out) == 2


@pytest.mark.parametrize("law", ["mylaw", "mylaw:own"])
def test_a_changed_file_of_a_bare_name_is_read_again(
    law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked_out: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for beta in (0.3, 0.4, 0.4):
        own = {"E": 1.5, "A": 400.0, "B": 400.0, "alpha": 0.3, "beta": beta}
        Path("mylaw").write_text(json.dumps({"laws": {"own": own}}), encoding="utf-8")
        words = ("plan", "gpt2", "--hardware", "8xH100", "--law", law, "--json")
        found.append(succeeded(run(*words)).stdout)
    assert found[0] != found[1] == found[2]
    assert len(worked_out) == 2


def test_changed_code_answers_afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worked_out: list[str]) -> None:
    package = tmp_path / "anyformer" / "cli"
    package.mkdir(parents=True)
    monkeypatch.setattr(answers, "__file__", str(package / "answers.py"))
    for text in ("x = 1", "x = 1", "x = 12", "x = 12"):
        if not (package / "part.py").exists() or (package / "part.py").read_text() != text:
            (package / "part.py").write_text(text)
        run("show", "gpt2")
    assert len(worked_out) == 2
    monkeypatch.setattr(answers, "__version__", "another")
    run("show", "gpt2")
    assert len(worked_out) == 3


@pytest.mark.parametrize("damage", ["", "{}", "\xff\xfe", "cut", "changed", "another question"])
def test_a_damaged_answer_is_worked_out_again(damage: str, kept: Path, worked_out: list[str]) -> None:
    first = run("show", "gpt2")
    (file,) = kept.iterdir()
    held = file.read_text(encoding="utf-8")
    if damage == "another question":  # whole, but not of this question
        run("show", "gpt2-medium")
        (other,) = set(kept.iterdir()) - {file}
        file.write_bytes(other.read_bytes())
        worked_out.clear()
        worked_out.append("")
    else:
        file.write_text(
            {"cut": held[:-9], "changed": held.replace("gpt2", "gpt9")}.get(damage, damage), encoding="latin-1"
        )
    assert run("show", "gpt2").stdout == first.stdout
    assert len(worked_out) == 2
    assert file.read_text(encoding="utf-8") == held


def test_the_oldest_answers_go(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        cache.remember("answers", i, "x" * 100)
        (new,) = set(kept.iterdir()) - {*kept.glob("seen-*")}
        os.utime(new, (i, i))
        new.rename(kept / f"seen-{i}")
    monkeypatch.setattr(cache, "MOST_NBYTES", 600)
    cache.remember("answers", 5, "x" * 100)
    assert sorted(path.name for path in kept.glob("seen-*")) == ["seen-3", "seen-4"]
    assert cache.recall("answers", 5) == "x" * 100


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "file" / "below"))
    assert run("show", "gpt2").stdout == succeeded(run("show", "gpt2")).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("show", "gpt2", "--import", "{own}"),  # whose parts may be anything
        ("show", "gpt2", "--diagram", "{folder}/picture.svg"),  # writes
        ("plan", "gpt2", "--hardware", "H100", "--write", "{folder}/recipe.yaml"),
        ("show", "{folder}/run"),  # a directory: more than one file decides
        ("cost", "gpt2", "--device", "this"),  # this machine may be measured anew
        ("cost", "gpt5"),  # refused
    ],
    ids=" ".join,
)
def test_what_depends_on_more_is_not_kept(words: tuple[str, ...], tmp_path: Path, kept: Path) -> None:
    from anyformer.families import preset

    (tmp_path / "mine_own.py").write_text("x = 1")
    for name in ("picture.svg", "recipe.yaml"):  # there already, so that they could be taken for files that are read
        (tmp_path / name).touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.yaml").write_text(dumps(preset("gpt2").spec), encoding="utf-8")
    run(*(word.format(own=tmp_path / "mine_own.py", folder=tmp_path) for word in words))
    assert not kept.exists()


def test_no_cache_is_asked_for(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setenv("ANYFORMER_NO_CACHE", "1")
    succeeded(run("show", "gpt2"))
    assert not kept.exists()


def test_errors_are_told_each_time() -> None:
    for result in twice("cost", "gpt2", "--seq-len", "0"):
        refused(result, "--seq-len")
