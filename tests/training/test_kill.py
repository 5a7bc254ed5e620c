"""A run killed at any moment and started again gives the same losses and weights, bit for bit."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from anyformer.disk.seal import sealed
from anyformer.errors import CheckpointError
from tests.training.killing import SAVES, Fault, Moment, losses, names, start, weights

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 60.0
Save = Literal["now", "async"]


class Whole(NamedTuple):
    """The run that nobody killed."""

    losses: list[tuple[str, ...]]
    weights: bytes
    names: list[str]
    trace: list[tuple[str, str]]  # (part, call) of all calls that change the disk
    seconds: float


def finish(out: Path, fault: Fault | None = None, trace: Path | None = None, save: Save = "now") -> int | None:
    process = start(out, fault, trace, save)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"  # for the server, which is started once
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.training.killing"])
    folder = tmp_path_factory.mktemp("whole")
    assert finish(folder / "a" / "warm") == 0
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    started = time.monotonic()
    assert finish(folder / "b" / "run", trace=folder / "trace.json") == 0
    seconds = time.monotonic() - started
    trace = [(part, call) for part, call in json.loads((folder / "trace.json").read_text())]
    out = folder / "b" / "run"
    return Whole(losses(out), weights(out), names(out), trace, seconds)


def faults(whole: Whole, part: str) -> list[tuple[str, Fault]]:
    """Before and after each call of one part, and in the middle of each write."""
    calls = [call for where, call in whole.trace if where == part]
    moments: tuple[Moment, ...] = ("before", "middle", "after")
    each = [(call, Fault(part, i, moment)) for i, call in enumerate(calls) for moment in moments]
    return [(call, fault) for call, fault in each if fault.moment != "middle" or call == "write"]


def pruning(whole: Whole) -> str:
    """The first save that deletes an old checkpoint: it makes every kind of call."""
    return next(part for part, call in whole.trace if part.startswith("save") and call == "rmdir")


def good_checkpoints(out: Path) -> list[str]:
    good = []
    for path in sorted((out / "checkpoints").glob("step-*")):
        sealed(path)
        good.append(path.name)
    return good


def kill_and_go_on(out: Path, fault: Fault, whole: Whole, save: Save = "now") -> None:
    # "middle" of a file is the system's own signal, at a given byte
    assert finish(out, fault, save=save) in (-signal.SIGKILL, -signal.SIGXFSZ), f"{fault} was not reached"
    if fault.part.startswith("save"):
        number = int(fault.part.split()[1])
        assert len(good_checkpoints(out)) >= min(number - 1, 2), f"{fault} took a former checkpoint along"
    assert finish(out, save=save) == 0
    same(out, whole, fault)


def same(out: Path, whole: Whole, what: object) -> None:
    assert losses(out) == whole.losses, what
    assert weights(out) == whole.weights, what
    extra = set(names(out)) - set(whole.names)
    # The last save killed while it deletes an old checkpoint leaves that one, whole: nothing is saved after it. A random
    # kill may fall there too.
    assert all("/checkpoints/step-" in name for name in extra), what
    assert set(whole.names) <= set(names(out)), what
    assert not extra or not isinstance(what, Fault) or what.part == f"save {SAVES}", what
    if extra:
        good_checkpoints(out)


def test_the_whole_run_is_one(whole: Whole) -> None:
    """Guards the guard: the calls are seen, and there is a loss for each step."""
    calls = Counter(call for part, call in whole.trace if part == pruning(whole))
    assert calls["write"] == 6  # three files of tensors, the state, the metrics, the manifest
    assert calls["fsync"] == 9  # each of them, the directory, the one above, and that again without the oldest
    assert calls["rename"] == 2  # into place, and the oldest out of sight
    assert calls["unlink"] == 6
    assert len(whole.losses) >= 20
    assert len(set(whole.losses)) == len(whole.losses)
    assert not any(".tmp-" in name for name in whole.names)


def test_killed_at_each_call_of_a_save(whole: Whole, tmp_path: Path) -> None:
    chosen = faults(whole, pruning(whole))
    # What is after one call is before the next: all moments are in the slow one.
    for i, (call, fault) in enumerate(chosen):
        if call == "rename" or fault.moment in ("before", "middle"):
            kill_and_go_on(tmp_path / str(i) / "run", fault, whole)


def test_killed_while_it_writes_behind_the_steps(whole: Whole, tmp_path: Path) -> None:
    """Half a file, all files, a name: what the thread was at when the process went, steps on."""
    chosen = [fault for call, fault in faults(whole, pruning(whole)) if call in ("write", "rename")]
    for i, fault in enumerate(chosen[:: len(chosen) // 6]):
        kill_and_go_on(tmp_path / str(i) / "run", fault, whole, "async")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, SAVES + 1))
def test_killed_at_each_moment_of_what_is_written_behind_the_steps(whole: Whole, tmp_path: Path, number: int) -> None:
    for i, (_, fault) in enumerate(faults(whole, f"save {number}")):
        kill_and_go_on(tmp_path / str(i) / "run", fault, whole, "async")


def test_killed_before_the_first_checkpoint(whole: Whole, tmp_path: Path) -> None:
    chosen = [fault for _, fault in faults(whole, "begin")]
    spread = [chosen[i * (len(chosen) - 1) // 5] for i in range(6)]
    for i, fault in enumerate(spread):
        kill_and_go_on(tmp_path / str(i) / "run", fault, whole)


def test_killed_at_random(whole: Whole, tmp_path: Path) -> None:
    """Six kills, each going on with what the one before has left; then to the end."""
    draw = random.Random(0)
    kills = alive = 0
    while kills < 6:
        alive += 1
        out = tmp_path / str(alive) / "run"
        for _ in range(3):
            process = start(out)
            process.join(draw.uniform(0.0, whole.seconds))
            process.kill()  # whether or not it has just ended by itself, which only its exit code tells
            process.join(PATIENCE_SECONDS)
            kills += process.exitcode == -signal.SIGKILL
        assert finish(out) == 0
        same(out, whole, f"random, run {alive}, {kills} kills")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, SAVES + 1))
def test_killed_at_each_moment_of_each_call_of_each_save(whole: Whole, tmp_path: Path, number: int) -> None:
    for i, (_, fault) in enumerate(faults(whole, f"save {number}")):
        kill_and_go_on(tmp_path / str(i) / "run", fault, whole)


@pytest.mark.slow
def test_killed_at_each_moment_of_the_beginning(whole: Whole, tmp_path: Path) -> None:
    for i, (_, fault) in enumerate(faults(whole, "begin")):
        kill_and_go_on(tmp_path / str(i) / "run", fault, whole)


def test_verify_sees_what_a_kill_would_leave(whole: Whole, tmp_path: Path) -> None:
    """Guards the guard: a checkpoint cut short is no good one."""
    out = tmp_path / "run"
    assert finish(out) == 0
    last = max((out / "checkpoints").glob("step-*"))
    file = last / "optimizer.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="truncated"):
        good_checkpoints(out)
