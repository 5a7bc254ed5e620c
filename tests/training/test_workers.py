"""Rows prepared by other processes: the same rows, the same run, and no process left behind, whatever ends it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.errors import RunFailed, TextError, UsageError
from anyformer.recipe import UL2, CosineDecay, DropoutSpec, FillInTheMiddle, MaskedLM, Recipe, SentenceOrder, Warmup
from anyformer.training.data.feed import Feed
from anyformer.training.data.workers import prepared
from anyformer.training.run import RunOptions, TrainingResult, train
from anyformer.training.run.signals import Stopped
from tests.sample import in_turn
from tests.training import labelled, noisy, texts
from tests.training import test_contrastive as contrastive
from tests.training.crashing import Watching, crashed, hexadecimal
from tests.training.models import decoder
from tests.training.test_pairs import RECIPE as OF_PAIRS
from tests.training.test_pairs import pairs

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = Recipe(tokens=64 * 24, batch_tokens=64, seq_len=16)
BERTS = noisy.plain_tokenizer().with_specials(SentenceOrder.specials, SentenceOrder.roles)
FEEDS: dict[str, Callable[[], Feed]] = {
    "packed": lambda: texts.text_data().feed(SMALL),
    "masked": lambda: noisy.text_data().feed(SMALL.but(objective=MaskedLM(), batch_tokens=128, seq_len=32)),
    "filled": lambda: noisy.text_data().feed(SMALL.but(objective=FillInTheMiddle(), batch_tokens=128, seq_len=32)),
    "mixture": lambda: noisy.text_data().feed(SMALL.but(objective=UL2(), batch_tokens=128, seq_len=32)),
    "pairs": lambda: pairs().feed(OF_PAIRS),
    "sentences": lambda: noisy.text_data(BERTS).feed(
        SMALL.but(objective=SentenceOrder(), batch_tokens=128, seq_len=32)
    ),
    "labelled": lambda: labelled.labelled().feed(labelled.RECIPE),
    "contrasted": lambda: contrastive.data().feed(contrastive.recipe()),
    "segments": lambda: texts.text_data().feed(SMALL.but(memory=8)),
}
RUN = SMALL.but(dropout=DropoutSpec(residual=0.2), schedule=(Warmup(steps=3), CosineDecay()))
HOW = RunOptions(device=torch.device("cpu"), save_every=5, validations=3)
MOST = 45  # batches: more than an epoch of every feed


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture
def nobody_left() -> Any:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", FEEDS)
def test_skipping_is_taking_without_the_rows(kind: str) -> None:
    taken, skipped = FEEDS[kind](), FEEDS[kind]()
    for steps in (0, 1, 7, MOST):
        for _ in range(steps):
            next(taken)
        skipped.skip(steps)
        assert taken.state() == skipped.state()
        assert same(next(taken), next(skipped))


@pytest.mark.parametrize("kind", [kind if i % 3 == 0 else in_turn(kind) for i, kind in enumerate(FEEDS)])
def test_rows_do_not_depend_on_how_many_prepare_them(kind: str, nobody_left: None) -> None:
    alone = FEEDS[kind]()
    first, states = [], []
    for _ in range(MOST):
        first.append(next(alone))
        states.append(dict(alone.state()))
    for workers in (0, 1, 2, 3):
        feed = FEEDS[kind]()
        with prepared(feed, workers) as batches:
            for step in range(10):
                assert same(next(batches), first[step]), (workers, step)
                assert feed.state() == states[step]  # not of what is prepared and not yet taken
        again = FEEDS[kind]()
        again.restore(dict(feed.state()))
        with prepared(again, 3 - workers) as batches:
            assert all(same(next(batches), rows) for rows in first[10:])


class Unpicklable:
    """A feed of step numbers that no other process could be sent."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.step, self.fails_at = 0, fails_at

    def __reduce__(self) -> Any:
        raise AssertionError("it was copied")

    def __next__(self) -> Any:
        if self.step == self.fails_at:
            raise TextError(f"row {self.step} cannot be made")
        self.skip(1)
        return (np.array([[self.step, os.getpid()]]),)

    def skip(self, steps: int) -> None:
        self.step += steps

    def epochs(self, steps: int) -> None:
        """It is read once."""

    def state(self) -> dict[str, int]:
        return {"step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def test_processes_share_what_the_feed_holds_and_take_turns(nobody_left: None) -> None:
    with prepared(Unpicklable(), 2) as batches:
        made = [tuple(next(batches)[0][0].tolist()) for _ in range(8)]
    assert multiprocessing.active_children() == []  # though `batches` is still there
    assert [step for step, _ in made] == list(range(1, 9))
    assert made[0][1] != made[1][1]
    assert os.getpid() not in {process for _, process in made}
    assert all(made[i][1] == made[i % 2][1] for i in range(8))


def test_what_is_wrong_with_rows_is_said_as_without_workers(nobody_left: None) -> None:
    with prepared(Unpicklable(fails_at=3), 2) as batches:
        for _ in range(3):
            next(batches)
        with pytest.raises(TextError, match=r"^row 3 cannot be made$"):
            next(batches)


def test_workers_draw_nothing_from_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = torch.get_rng_state()
    with prepared(FEEDS["packed"](), 2) as batches:
        next(batches)
    assert torch.equal(torch.get_rng_state(), before)
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(decoder(), RUN, texts.text_data(), out=tmp_path_factory.mktemp("whole") / "run", options=HOW)


def with_workers(workers: int) -> RunOptions:
    return RunOptions(device=HOW.device, save_every=HOW.save_every, validations=HOW.validations, workers=workers)


def test_a_run_is_the_same_with_any_number_also_after_crashes(
    whole: TrainingResult, tmp_path: Path, nobody_left: None
) -> None:
    data, out = texts.text_data(), tmp_path / "run"
    at_once = train(decoder(), RUN, data, out=tmp_path / "at once", options=with_workers(2))
    assert hexadecimal(at_once) == hexadecimal(whole)
    for step, workers in ((7, 2), (12, 1)):
        crashed(step, decoder(), RUN, data, out=out, options=with_workers(workers))
    result = train(decoder(), RUN, data, out=out, options=with_workers(3))
    assert hexadecimal(result) == hexadecimal(whole)
    for mine, other in zip(result.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def kill_one() -> None:
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)


def test_a_worker_that_dies_ends_the_run_which_can_go_on(
    whole: TrainingResult, tmp_path: Path, nobody_left: None
) -> None:
    out, data = tmp_path / "run", texts.text_data()
    said = (
        r"^process \d+, which prepares rows, (exited unexpectedly|is killed by signal: Killed); start again with fewer"
    )
    with pytest.raises(RunFailed, match=said):
        train(decoder(), RUN, data, out=out, options=with_workers(2), watcher=Watching(6, kill_one))
    assert hexadecimal(train(decoder(), RUN, data, out=out, options=with_workers(2))) == hexadecimal(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_stops_the_run_alone(
    tmp_path: Path, nobody_left: None, number: signal.Signals
) -> None:
    def everybody() -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, number)
        time.sleep(0.2)
        assert len(multiprocessing.active_children()) == 2
        os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match=f"stopped by {number.name} after step 7"):
        train(
            decoder(),
            RUN,
            texts.text_data(),
            out=tmp_path / "run",
            options=with_workers(2),
            watcher=Watching(7, everybody),
        )


KILLED = """
import multiprocessing, os, signal, torch
from anyformer.training.data.workers import prepared
from tests.training.test_workers import Unpicklable
from tests.sample import in_turn
class Large(Unpicklable):
    def __next__(self):
        return (super().__next__()[0], bytes(10**6))  # more than a pipe holds, so that workers wait to hand it over
with prepared(Large(), 2) as batches:
    next(batches)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_when_the_run_is_killed(tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:  # a pipe would wait for all of them
        done = subprocess.run(
            [sys.executable, "-c", KILLED], stdout=out, stderr=err, env=os.environ | {"PYTHONPATH": path}
        )
    assert (done.returncode, (tmp_path / "err").read_text()) == (-signal.SIGKILL, "")
    workers = [int(word) for word in (tmp_path / "out").read_text().split()]
    assert len(workers) == 2
    end = time.monotonic() + 10
    while left := [process for process in workers if alive(process)]:
        if time.monotonic() > end:
            for process in left:
                os.kill(process, signal.SIGKILL)
            pytest.fail("they live on")
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # what nobody waits for stays listed in some containers


def test_numbers_and_machines_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"workers=-1 is no number of processes; give 0 or more"):
        train(decoder(), RUN, texts.text_data(), out=tmp_path / "run", options=with_workers(-1))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match=r"needs processes that can be forked, which darwin has not; leave it out"):
        train(decoder(), RUN, texts.text_data(), out=tmp_path / "run", options=with_workers(2))
    assert not (tmp_path / "run").exists()
