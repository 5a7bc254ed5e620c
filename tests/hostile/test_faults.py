"""A run whose disk fails at any call ends in one line and goes on bit for bit; so does one that lost its power."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from anyformer.disk.atomic import ASIDE
from anyformer.errors import AnyformerError, RunFailed
from anyformer.recipe import Recipe
from anyformer.text import Tokenizer
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, train
from tests.hostile.faulty_disk import Disk, Mode, cut, done, held, standing
from tests.training.killing import corpus, losses, spec, weights
from tests.training.killing import recipe as whole_recipe

STEPS = 4
TOKENIZER = Tokenizer.train(["abcab" * 9], 257)
HOW = RunOptions(device=torch.device("cpu"), save_every=2, validations=0, keep_last=1, plan=False)
MODES: tuple[Mode, ...] = ("no space", "input/output error", "short")
SLICES = 8


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a real disk would take most of the time for, and a hash of all the code."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("anyformer.training.checkpoint.directory.code_fingerprint", lambda: "this")


def recipe() -> Recipe:
    return whole_recipe().but(tokens=STEPS * 64)


def start(out: Path) -> None:
    """Start the run in `out`, or go on with it."""
    data = TextData(corpus(20, 1), corpus(3, 2), TOKENIZER)
    train(spec(), recipe(), data, out=out, options=HOW)


def figures(out: Path) -> tuple[list[tuple[str, ...]], bytes]:
    """All that must be the same, bit for bit."""
    return losses(out), weights(out)


def refusal(out: Path) -> AnyformerError | None:
    """The one line, which names what of the run is meant, with which it ends early; None where it ends well."""
    error = None
    try:
        start(out)
    except AnyformerError as raised:
        error = raised
    assert error is None or (str(out) in str(error) and "\n" not in str(error)), error
    return error


class Whole(NamedTuple):
    """The run whose disk did nothing wrong, from the start and from its middle."""

    figures: tuple[list[tuple[str, ...]], bytes]
    disk: Disk
    half: Path  # after step 3: a checkpoint, and metrics beyond it
    again: Disk  # of going on from there


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folders = [tmp_path_factory.mktemp(name) for name in ("whole", "half", "again")]
    with Disk(folders[0]).entered() as disk:
        start(folders[0] / "run")
    half = folders[1] / "run"
    with Disk(folders[1], at=disk.metrics[3]).entered(), pytest.raises(RunFailed):
        start(half)
    shutil.copytree(half, folders[2] / "run")
    with Disk(folders[2]).entered() as again:
        start(folders[2] / "run")
    assert figures(folders[2] / "run") == figures(folders[0] / "run")
    return Whole(figures(folders[0] / "run"), disk, half, again)


def fails_and_goes_on(folder: Path, whole: Whole, begun: bool, at: int, mode: Mode) -> bool:
    """Whether the fault was felt; in any case the run ends as the one without."""
    folder.mkdir(parents=True)
    out = folder / "run"
    if begun:
        shutil.copytree(whole.half, out)
    with Disk(folder, at, mode).entered() as disk:
        error = refusal(out)
    assert disk.calls > at, "the call was not reached"
    if error is not None:
        start(out)
        assert not [path for path in folder.rglob(f"{ASIDE}*") if "-old-" not in path.name]
    assert figures(out) == whole.figures
    shutil.rmtree(folder)
    return error is not None


def faults(whole: Whole) -> list[tuple[bool, int, Mode]]:
    """Each call of a run and of one that goes on, each way."""
    calls = ((False, whole.disk.calls), (True, whole.again.calls))
    return [(begun, at, mode) for begun, n in calls for at in range(n) for mode in MODES]


def test_some_calls_fail(tmp_path: Path, whole: Whole) -> None:
    chosen = random.Random(0).sample(faults(whole), 24)
    felt = [fails_and_goes_on(tmp_path / str(i), whole, *fault) for i, fault in enumerate(chosen)]
    assert sum(felt) > len(felt) / 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_each_call_fails(tmp_path: Path, whole: Whole, part: int) -> None:
    for i, fault in enumerate(faults(whole)[part::SLICES]):
        fails_and_goes_on(tmp_path / str(i), whole, *fault)


def loses_power(folder: Path, whole: Whole, begun: bool, after: int, seed: int) -> None:
    """The run goes on bit for bit from what is left."""
    events = (whole.again if begun else whole.disk).events[:after]
    node = standing(whole.half) if begun else None
    folder.mkdir(parents=True)
    cut(done(events, node), folder, random.Random(f"{begun} {after} {seed}"))
    start(folder / "run")
    assert figures(folder / "run") == whole.figures
    shutil.rmtree(folder)


def cuts(whole: Whole, seeds: int) -> list[tuple[bool, int, int]]:
    """After each change of the disk, several ways."""
    changes = ((False, len(whole.disk.events)), (True, len(whole.again.events)))
    return [(begun, after, seed) for begun, n in changes for after in range(n + 1) for seed in range(seeds)]


def test_power_is_lost_at_some_moments(tmp_path: Path, whole: Whole) -> None:
    for i, moment in enumerate(random.Random(0).sample(cuts(whole, 4), 24)):
        loses_power(tmp_path / str(i), whole, *moment)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_power_is_lost_at_every_moment(tmp_path: Path, whole: Whole, part: int) -> None:
    for i, moment in enumerate(cuts(whole, 4)[part::SLICES]):
        loses_power(tmp_path / str(i), whole, *moment)


def test_what_is_lost_is_lost(tmp_path: Path, whole: Whole) -> None:
    """Guards the guard: without the syncs, a checkpoint is not what it was, and that is refused by the file's name."""
    events = [event for event in whole.disk.events if event[0] != "fsync"]
    root = done(events)
    refusals = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        held(root, folder, random.Random(seed))
        if refusal(folder / "run") is not None:
            refusals += 1
        else:
            assert figures(folder / "run") == whole.figures
    assert refusals > 5
