"""What stands beside the checkpoints of a run: its name, its tokenizer, its metrics; whole or not at all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.errors import RunFailed
from anyformer.recipe import Recipe
from anyformer.text import Tokenizer
from anyformer.training.checkpoint.listing import list_runs
from anyformer.training.checkpoint.metrics import MetricsLog, StepMetrics, read_metrics
from anyformer.training.data.text import TextData
from anyformer.training.run import Job, Run, RunOptions, train
from tests.hostile.faulty_disk import no_space_left
from tests.training.models import decoder
from tests.training.texts import encoded

RECIPE = Recipe(tokens=64 * 4, batch_tokens=64, seq_len=16)
HOW = RunOptions(device=torch.device("cpu"), save_every=2, plan=False)
TOKENIZER = Tokenizer.train(["abcab" * 9], 257)
DATA = TextData(encoded(60), encoded(7, seed=1), TOKENIZER)


def run(out: Path, **options: Any) -> None:
    train(decoder(vocab=300), RECIPE, DATA, out=out, options=HOW, **options)


def test_a_run_is_listed_by_its_name(tmp_path: Path) -> None:
    run(tmp_path / "a", name="mine")
    run(tmp_path / "b")
    assert {each.name: each.architecture for each in list_runs(tmp_path)} == {"a": "mine", "b": "1 layers of 16"}
    run(tmp_path / "a", name="another name does not make another run")
    assert json.loads((tmp_path / "a" / "run.json").read_text())["architecture"] == "mine"


def test_its_checkpoints_hold_its_metrics(tmp_path: Path) -> None:
    asked = Job(decoder(vocab=300), RECIPE, DATA, tmp_path / "a")
    with Run(asked, replace(HOW, keep_last=3)).saving as saving:
        assert saving.checkpoints is not None
        assert (saving.checkpoints.directory, saving.checkpoints.keep_last) == (tmp_path / "a" / "checkpoints", 3)
    run(tmp_path / "a")
    lines = (tmp_path / "a" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    for step in (2, 4):
        upto = [line for line in lines if json.loads(line)["step"] <= step and not json.loads(line).get("whole")]
        copy = tmp_path / "a" / "checkpoints" / f"step-{step:08d}" / "metrics.jsonl"
        assert copy.read_bytes() == b"".join(upto)


class Killed(BaseException):
    """As little can be done about it as about a signal."""


def test_half_a_tokenizer_is_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Tokenizer, directory: Path) -> None:
        (directory / "tokenizer.json").parent.mkdir(exist_ok=True)
        (directory / "tokenizer.json").write_text('{"half":')
        assert not (tmp_path / "a" / "tokenizer").exists()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", half)
        with pytest.raises(Killed):
            run(tmp_path / "a")
    assert not (tmp_path / "a" / "tokenizer").exists()
    run(tmp_path / "a")  # nothing holds the directory any more
    assert Tokenizer.load(tmp_path / "a" / "tokenizer").fingerprint == TOKENIZER.fingerprint
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "save", no_space_left)
    with pytest.raises(RunFailed, match=r"cannot create the run's directory .*a: No space left on device"):
        run(tmp_path / "a")


def entry(step: int) -> StepMetrics:
    return StepMetrics(
        step=step, tokens=step, flops=1.0, seconds=1.0, loss=float(step), lr=0.1, grad_norm=1.0, tokens_per_second=1.0
    )


def test_metrics_are_cut_back_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.open(0)
    for step in range(1, 5):
        log.add(entry(step))
    log.close()
    before = path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space_left)
        with pytest.raises(RunFailed, match="No space left on device"):
            MetricsLog(path).open(2)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
    again = MetricsLog(path)
    again.open(2)
    again.close()
    assert [each.step for each in read_metrics(path).steps] == [1, 2]
