"""Checkpoints in parts, written while steps go on: those of a run that waits for them; what fails is told of, and ends all."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from anyformer.disk.seal import sealed
from anyformer.errors import RunFailed
from anyformer.training.checkpoint import shards
from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.cluster.world import World
from anyformer.training.run.progress import Watcher
from tests.hostile.faulty_disk import no_space_left
from tests.training import killing
from tests.training.cluster.processes import Processes, processes
from tests.training.cluster.runs import ran
from tests.training.cluster.test_faults import Launched, check_all_gone, checkpoints, losses, steps_made

write = shards.write


class Noting(Watcher):
    """What step the run has come to."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.moved = 0, threading.Condition()

    def step(self, metrics: StepMetrics) -> None:
        with self.moved:
            self.at = metrics.step
            self.moved.notify_all()

    def wait_for(self, step: int) -> int:
        with self.moved:
            self.moved.wait_for(lambda: self.at >= step, timeout=20)
            return self.at


def late(world: World, mesh: str, out: Path, mixture: bool) -> int:
    """Saved behind the steps, each part after two steps more; the most steps that went on before one was written."""
    watcher, waited = Noting(), []

    def slow(directory: Path, tensors: Mapping[str, Tensor], group: Any = None) -> None:
        step = int(str(directory.parent).rpartition("step-")[2][:8])
        waited.append(watcher.wait_for(min(step + 2, killing.STEPS)) - step)
        write(directory, tensors, group)

    shards.write = slow
    try:
        ran(world, mesh, out, None, False, watcher, mixture, "async")
    finally:
        shards.write = write
    return max(waited)


def held(out: Path) -> dict[str, dict[str, list[float]]]:
    """The numbers of each part of the model and the optimiser, by file and name: DCP writes names in any order."""
    found = {}
    for part in sorted((out / "checkpoints").glob("step-*/*/*.safetensors")):
        sealed(part.parent.parent)
        found[part.relative_to(out).as_posix()] = {name: x.flatten().tolist() for name, x in load_file(part).items()}
    return found


@pytest.mark.parametrize(
    ("mesh", "mixture"),
    [
        ("fsdp=2", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("tp=2", False), ("cp=2", False), ("fsdp=2,ep=2", True))
        ),
    ],
)
def test_what_is_written_is_what_was_there(two: Processes, tmp_path: Path, mesh: str, mixture: bool) -> None:
    two(ran, mesh, tmp_path / "now", None, False, None, mixture)
    assert min(two(late, mesh, tmp_path / "behind", mixture)) >= 2, "steps went on meanwhile"
    found = held(tmp_path / "behind")
    assert len(found) == 2 * 2 * len(checkpoints(tmp_path / "now")), "of each, model and optimiser of two processes"
    assert found == held(tmp_path / "now")
    assert losses(tmp_path / "behind") == losses(tmp_path / "now")


def full(world: World, out: Path) -> tuple[str, int]:
    """What a run says whose second checkpoint one rank cannot write, and the step at which it says so."""

    def failing(directory: Path, tensors: Mapping[str, Tensor], group: Any = None) -> None:
        if "step-00000008" in str(directory) and world.rank == 1:
            monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", no_space_left)
        try:
            write(directory, tensors, group)
        except OSError:
            if world.rank == 0:  # which is told of it when the other has long gone on
                watcher.wait_for(watcher.at + 1)
            known.set()
            raise

    class Slow(Noting):
        """Rank 1 knows of it two steps before the next checkpoint."""

        def step(self, metrics: StepMetrics) -> None:
            super().step(metrics)
            if world.rank == 1 and metrics.step == 10:
                assert known.wait(20)

    known, watcher = threading.Event(), Slow()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(shards, "write", failing)
        with pytest.raises(RunFailed) as caught:
            ran(world, "fsdp=2", out, None, False, watcher, False, "async")
    return str(caught.value), watcher.at


def test_a_failure_is_told_of_before_the_next_checkpoint(tmp_path: Path) -> None:
    """On all processes, and the former one stands."""
    out = tmp_path / "run"
    with processes(2) as pool:  # of its own: what a failure leaves is nobody else's
        found = pool(full, out)
        assert len({step for _, step in found}) == 1, "all end after the same step, whichever knew first"
        for said, step in found:
            assert "cannot save the checkpoint" in said
            assert "No space left on device (rank 1)" in said
            assert "the last good checkpoint is " in said
            assert 8 <= step < 12
    assert checkpoints(out) == [4]
    assert not list(out.rglob(".tmp-*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_it_goes_on(tmp_path: Path, two: Processes, seed: int) -> None:
    """A rank is killed while parts of a checkpoint may be being written, again and again."""
    two(ran, "fsdp=2", tmp_path / "unbroken")
    out, draw, status, lives = tmp_path / "run", random.Random(seed), 1, 0
    while status:
        step = steps_made(out) + draw.randint(1, 6)
        run = Launched(out, "kill", draw.randrange(2), step, limit=20, save="async")
        status, said = run.end()
        lives += 1
        assert status == 0 or len(said) == 1, run.said
        check_all_gone(run.workers())
        checkpoints(out)
    assert lives > 1
    of_steps = [
        {row[0]: row for row in losses(each) if row[-1].startswith("lr")} for each in (out, tmp_path / "unbroken")
    ]
    assert of_steps[0] == of_steps[1]
