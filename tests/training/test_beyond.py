"""A run goes on beyond the tokens that it was begun with: as if it had been so long from the start, as its schedule says."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anyformer.errors import CheckpointError
from anyformer.hub import load
from anyformer.recipe import Constant, LinearDecay, Recipe, of_run
from anyformer.training.checkpoint.listing import list_runs
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.run import RunOptions, TrainingResult, train
from anyformer.training.run.signals import Stopped
from tests.training.crashing import Watching
from tests.training.test_run import RECIPE, SPEC
from tests.training.texts import text_data

HOW = RunOptions(device=torch.device("cpu"), save_every=4, validations=3, keep_last=9, plan=False)
LEVEL = RECIPE.but(schedule=(Constant(),))


def run(
    recipe: Recipe, out: Path | None = None, watching: Watching | None = None, how: RunOptions = HOW
) -> TrainingResult:
    return train(SPEC, recipe, text_data(), out=out, options=how, watcher=watching)


def test_at_a_level_rate_it_is_the_longer_run_to_the_bit(tmp_path: Path) -> None:
    whole = run(LEVEL)
    for tokens in (64 * 8, 64 * 12, 64 * 24):
        last = run(LEVEL.but(tokens=tokens), tmp_path / "run")
    assert [step.loss.hex() for step in last.steps] == [step.loss.hex() for step in whole.steps]
    mine, other = last.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert last.evaluation == whole.evaluation
    assert last.unigram_loss == whole.unigram_loss
    log = read_metrics(tmp_path / "run")
    assert [entry.step for entry in log.steps] == list(range(1, 25))
    assert [entry.step for entry in log.validations if entry.whole][-1] == 24
    found = of_run(tmp_path / "run")
    assert found is not None
    assert found.tokens == 64 * 24


def test_the_schedule_of_the_longer_run_is_followed_and_said(tmp_path: Path) -> None:
    short = LEVEL.but(tokens=64 * 8, schedule=(LinearDecay(to=0.0),), optimizer=LEVEL.optimizer.but(lr=1.6e-3))
    assert run(short, tmp_path / "run").steps[-1].lr == 0
    same = Watching()  # more tokens, and no step more
    assert len(run(short.but(tokens=64 * 8 - 3), tmp_path / "same").steps) == 8
    assert len(run(short, tmp_path / "same", same).steps) == 8
    assert same.plan.beyond is None
    first, second = Watching(14, lambda: os.kill(os.getpid(), signal.SIGINT)), Watching()
    with pytest.raises(Stopped, match="the same command goes on from there"):
        run(short.but(tokens=64 * 16), tmp_path / "run", first)
    result = run(short.but(tokens=64 * 16), tmp_path / "run", second)
    assert [step.lr for step in result.steps[8:]] == pytest.approx([1e-4 * (16 - n) for n in range(9, 17)])
    said = "to end after step 8; the schedule of 16 steps takes the learning rate from 0 to 0.0007 at step 9"
    assert said in " ".join(first.plan.lines())
    assert second.plan.beyond is None
    (listed,) = list_runs(tmp_path / "run")
    assert (listed.step, listed.steps) == (16, 16)


def test_checkpoints_are_ranked_on_the_sample_that_the_run_was_begun_with(tmp_path: Path) -> None:
    still = LEVEL.but(optimizer=LEVEL.optimizer.but(lr=1e-12))
    for tokens in (64 * 8, 64 * 24):
        run(still.but(tokens=tokens), tmp_path / "run", how=replace(HOW, validation_share=0.1))
    looks = [each.validation_loss for each in read_metrics(tmp_path / "run").validations if not each.whole]
    assert looks == pytest.approx([looks[0]] * len(looks), rel=1e-6)


def test_what_was_saved_before_is_read_as_before(tmp_path: Path) -> None:
    run(LEVEL.but(tokens=64 * 8), tmp_path / "run")
    early = tmp_path / "run" / "checkpoints" / "step-00000008"
    before = load(early)[0].state_dict()
    for tokens in (64 * 12, 64 * 16):
        run(LEVEL.but(tokens=tokens), tmp_path / "run")
        after = load(early)[0].state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
    other = run(LEVEL.but(tokens=64 * 8, seed=1), tmp_path / "other")
    assert other.best is not None
    (tmp_path / "run" / "run.json").write_bytes((tmp_path / "other" / "run.json").read_bytes())
    with pytest.raises(CheckpointError, match="not the one by which"):
        load(early)


def test_fewer_tokens_or_another_recipe_are_refused(tmp_path: Path) -> None:
    for tokens in (64 * 8, 64 * 12):
        run(LEVEL.but(tokens=tokens), tmp_path / "run")
    record = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(CheckpointError, match="tokens is 768 there and 512 here"):
        run(LEVEL.but(tokens=64 * 8), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"z_loss is 0\.0 there and 0\.1 here"):
        run(LEVEL.but(tokens=64 * 16, z_loss=0.1), tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == record
