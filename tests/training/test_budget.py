"""Budgets of minutes, by a clock of the test's own: what steps take, and nothing else, says how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyformer.errors import UsageError
from anyformer.recipe import of_run
from anyformer.study.budget import in_time
from anyformer.study.compare import ComparisonTask
from anyformer.study.train import prepare_training, train
from anyformer.training.run import RunOptions, budget
from anyformer.training.step import Trainer
from tests.study.test_compare import HOW, RECIPE, SPECS, data  # noqa: F401

SIZES: dict[str, Any] = {"n_params": 20_000, "vocab_size": 300, "batch_tokens": 256, "seq_len": 32}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[bool, float]:
    """Seconds that a step takes, by whether its model ties its tables; the very first step of each run takes an hour."""
    takes, now, real = {True: 0.5, False: 0.5}, [0.0], Trainer.step

    def step(self: Trainer, number: int, batch: Any) -> Any:
        now[0] += 3600 if number == 1 else takes[bool(self.model.spec.heads[0].tied)]
        return real(self, number, batch)

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(budget.time, "perf_counter", lambda: now[0])
    return takes


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} sheep and {n + 1} goats went up the hill.\n" for n in range(300)))
    return path


def test_a_run_gets_the_tokens_that_there_is_time_for(clock: dict[bool, float], text: Path, tmp_path: Path) -> None:
    said: list[str] = []
    options: dict[str, Any] = {**SIZES, "out": tmp_path / "run", "options": RunOptions(plan=False, validations=1)}
    trained = train("llama2-7b", text, minutes=0.1, say=said.append, **options)
    assert len(trained.result.steps) == 10  # 6 s, of which 5.1 are for steps of 0.5 s
    assert "0.1 min: 10 steps of 0.5 s as timed here, 2,560 tokens" in said
    clock |= {True: 0.01, False: 0.01}
    said.clear()
    again = train("llama2-7b", text, minutes=0.1, say=said.append, **options)  # the same command, on a faster machine
    assert [step.loss for step in again.result.steps] == [step.loss for step in trained.result.steps]
    recipe = of_run(tmp_path / "run")
    assert recipe is not None
    assert recipe.tokens == 2560
    assert said[0].endswith("is a run of 2,560 tokens already, whatever --minutes says; give --tokens for more")


def test_what_no_budget_can_be_is_refused(clock: dict[bool, float], text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--minutes and --tokens both say how long to train; give one of them"):
        prepare_training("llama2-7b", text, minutes=1, tokens=1e6, **SIZES)
    clock |= {True: 100.0, False: 100.0}
    with pytest.raises(UsageError, match=r"a step takes 100\.0 s here; give more, or smaller steps"):
        prepare_training("llama2-7b", text, minutes=1, out=tmp_path / "run", say=lambda _: None, **SIZES)
    assert not (tmp_path / "run").exists()


def test_a_comparison_shares_it_among_its_runs(clock: dict[bool, float], data: Any, tmp_path: Path) -> None:  # noqa: F811
    """Each of two architectures runs at three rates and with one seed more; the second's steps take three times as long."""
    clock |= {True: 0.5, False: 1.5}
    asked = ComparisonTask(architectures=SPECS, recipe=RECIPE, seeds=2, learning_rates=(1e-3, 1e-2, 1e-1))
    said: list[str] = []
    found = in_time(2, asked, data, tmp_path, HOW, said.append)
    assert found.recipe.steps == 12  # 102 s for 4 × 0.5 + 4 × 1.5 s a step
    assert found.recipe.but(tokens=RECIPE.tokens) == RECIPE
    assert said == ["2 min: 12 steps a run, 1,536 tokens, as timed here"]
    clock |= {True: 5.0, False: 5.0}
    assert in_time(2, asked, data, tmp_path, HOW, said.append) == found
    assert in_time(4, asked, data, tmp_path, HOW, said.append).recipe.steps == 5
