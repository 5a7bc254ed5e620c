"""Checkpoints written while steps go on: those of a run that waits for them, and what goes wrong is told of at the next step."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.disk.seal import sealed
from anyformer.errors import RunFailed
from anyformer.layers import BatchNormSpec, NormSpec, RMSNormSpec
from anyformer.spec import ModelSpec
from anyformer.training.checkpoint import checkpoints
from anyformer.training.checkpoint.behind import Behind
from anyformer.training.checkpoint.checkpoints import CheckpointContent
from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, train
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped
from tests.hostile.faulty_disk import no_space_left
from tests.training import killing

FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors")


class Noting(Watcher):
    """What step the run has come to; it sends a signal after one of them."""

    def __init__(self, signal_at: int | None = None) -> None:
        super().__init__()
        self.at, self.signal_at, self.moved = 0, signal_at, threading.Condition()

    def step(self, metrics: StepMetrics) -> None:
        with self.moved:
            self.at = metrics.step
            self.moved.notify_all()
        if metrics.step == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def wait_for(self, step: int) -> int:
        with self.moved:
            self.moved.wait_for(lambda: self.at >= step, timeout=20)
            return self.at


def run(out: Path, save: str, watcher: Watcher | None = None, spec: ModelSpec | None = None) -> None:
    options = RunOptions(device=torch.device("cpu"), save_every=4, validations=5, save=save, plan=False, keep_last=9)  # type: ignore[arg-type]
    data = TextData(killing.corpus(40, 1), killing.corpus(5, 2), None)
    train(spec or killing.spec(), killing.recipe(), data, out=out, options=options, watcher=watcher)


def held(out: Path) -> dict[str, list[bytes]]:
    return {
        path.name: [(path / name).read_bytes() for name in FILES]
        for path in sorted((out / "checkpoints").glob("step-*"))
    }


@pytest.mark.parametrize("norm", [RMSNormSpec(), BatchNormSpec()], ids=["changed by updates", "changed by passes"])
def test_changes_wait_until_the_copy_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: NormSpec) -> None:
    """However late it is."""
    spec = changed_norm(killing.spec(), norm)
    run(tmp_path / "now", "now", spec=spec)
    copied = Behind._copied

    def late(*given: Any) -> Any:
        threading.Event().wait(0.1)
        return copied(*given)

    monkeypatch.setattr(Behind, "_copied", late)
    run(tmp_path / "behind", "async", spec=spec)
    assert held(tmp_path / "behind") == held(tmp_path / "now")


def changed_norm(spec: ModelSpec, norm: NormSpec) -> ModelSpec:
    return spec.but(stack=spec.stack.but(norm=norm))


@pytest.mark.parametrize("later", [0, 2, 4])
def test_what_is_written_is_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    """However many steps go on before a byte of it is written, up to the next checkpoint."""
    run(tmp_path / "now", "now")
    watcher, waited = Noting(), []
    save_file = checkpoints.save_file

    def late(tensors: dict[str, torch.Tensor], path: Path) -> None:
        step = int(path.parent.name.rpartition("-")[2])
        waited.append(watcher.wait_for(min(step + later, killing.STEPS)) - step)
        save_file(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", late)
    run(tmp_path / "behind", "async", watcher)
    assert held(tmp_path / "behind") == held(tmp_path / "now")
    assert killing.losses(tmp_path / "behind") == killing.losses(tmp_path / "now")
    assert max(waited) >= later, "steps went on meanwhile"
    for path in (tmp_path / "behind" / "checkpoints").iterdir():
        sealed(path)
        assert path.name.startswith("step-")


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing: list[str] = []
    write = checkpoints.Checkpoints.write

    def alone(own: checkpoints.Checkpoints, content: checkpoints.CheckpointContent) -> Path:
        writing.append("begin")
        threading.Event().wait(0.1)
        try:
            return write(own, content)
        finally:
            writing.append("end")

    monkeypatch.setattr(checkpoints.Checkpoints, "write", alone)
    run(tmp_path / "run", "async")
    assert writing == ["begin", "end"] * 5


def test_a_failure_is_told_of_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, failed = Noting(), threading.Event()
    save_file = checkpoints.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if path.parent.name.endswith("08"):
            watcher.wait_for(10)
            failed.set()
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    class Waiting(Noting):
        def step(self, metrics: StepMetrics) -> None:
            watcher.step(metrics)
            super().step(metrics)
            if metrics.step == 10:
                failed.wait(20)
                threading.Event().wait(0.2)

    monkeypatch.setattr(checkpoints, "save_file", full)
    last = Waiting()
    with pytest.raises(
        RunFailed, match=r"cannot save the checkpoint .*step-00000008.*No space left on device; the last good"
    ) as e:
        run(tmp_path / "run", "async", last)
    assert "\n" not in str(e.value)
    assert last.at in (10, 11)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]


def test_the_end_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's checkpoint is there when the run says so, and one that fails then is told of."""
    save_file = checkpoints.save_file

    def slow(tensors: dict[str, torch.Tensor], path: Path) -> None:
        threading.Event().wait(0.2)
        save_file(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", slow)
    with pytest.raises(Stopped, match=r"the last good checkpoint is .*step-00000006"):
        run(tmp_path / "run", "async", Noting(signal_at=6))
    sealed(tmp_path / "run" / "checkpoints" / "step-00000006")

    monkeypatch.setattr(checkpoints, "save_file", no_space_left)
    with pytest.raises(RunFailed, match=r"No space left on device; the last good checkpoint is .*step-00000006"):
        run(tmp_path / "run", "async", Noting(signal_at=7))
    monkeypatch.setattr(checkpoints, "save_file", save_file)
    run(tmp_path / "run", "async")
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == killing.STEPS


def test_a_copy_is_not_written_over_while_it_is_written(tmp_path: Path) -> None:
    gate, seen = threading.Event(), list[float]()

    def write(content: CheckpointContent) -> Path:
        gate.wait(5)
        seen.append(float(content.written["file"]["x"]))
        return content.target

    behind, x = Behind(write), torch.tensor(1.0)
    behind.start(CheckpointContent(tmp_path, 1, None, {"file": {"x": x}}))
    behind.taken()
    threading.Timer(0.2, gate.set).start()
    behind.start(CheckpointContent(tmp_path, 2, None, {"file": {"x": x.add_(1)}}))
    behind.done(wait=True)
    assert seen == [1.0, 2.0]
