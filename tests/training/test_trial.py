"""What a pass keeps is told by fewer rows, and refused before it would take more than there is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import anyformer as af
from anyformer import capacity
from anyformer.errors import UsageError
from anyformer.model import build
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.spec.cost import Recompute
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run import Job, Run
from anyformer.training.run import trial as trials
from anyformer.training.step import Trainer
from tests.laws.memory import Alive
from tests.training.test_run import HOW, RECIPE, SPEC, text_data

ROWS, PLACES = 64, 16
GIVEN = RECIPE.but(tokens=ROWS * PLACES * 4, batch_tokens=ROWS * PLACES, seq_len=PLACES)


def run(
    micro_tokens: int | None = None, given: Recipe = GIVEN, recompute: Recompute = "none", spec: ModelSpec = SPEC
) -> Run:
    return Run(Job(spec, given, text_data(), None), replace(HOW, micro_tokens=micro_tokens, recompute=recompute))


def peak(recompute: Recompute = "none") -> int:
    """The most bytes that a pass over the whole batch makes and has at once."""
    trainer = Trainer(build(SPEC), GIVEN, objective_of(GIVEN.objective, SPEC), recompute=recompute)
    batch = next(text_data().feed(GIVEN))
    with Alive(trainer.model) as alive:
        trainer.gradients(1, batch)
    return alive.peak


def told(monkeypatch: pytest.MonkeyPatch, recompute: Recompute = "none", spec: ModelSpec = SPEC) -> float:
    needed: list[float] = []
    monkeypatch.setattr(trials, "refuse_beyond_memory", lambda nbytes, *_: needed.append(nbytes))
    run(recompute=recompute, spec=spec).plan()
    (found,) = needed
    return found


def test_few_rows_tell_what_all_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what there is at once, buffers of the loss and gradients on their way beside it; never more than that."""
    found = told(monkeypatch)
    assert 0.5 * peak() < found < peak()
    assert told(monkeypatch, "full") < min(0.5 * found, peak("full"))


def test_what_is_made_again_on_the_way_back_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's at a time: reversible layers keep no more where there are more of them."""
    few, many = (af.vary(af.resize(SPEC, n_layers=n), residual="Reversible") for n in (2, 6))
    assert told(monkeypatch, spec=many) < 1.1 * told(monkeypatch, spec=few)


def test_more_than_is_free_is_refused_with_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    free = peak() // 2
    monkeypatch.setattr(capacity, "free_nbytes", lambda device=None: free)
    monkeypatch.setattr(trials, "free_nbytes", lambda device=None: free)
    with pytest.raises(
        UsageError, match=rf"^a step of {ROWS} rows at once needs .* are free on cpu; compute it in"
    ) as error:
        run().plan()
    (parts,) = re.findall(r"--micro-tokens (\d+)", str(error.value))
    assert int(parts) == PLACES * 16
    assert run(int(parts)).plan().seconds


def test_nothing_is_compiled_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    compiled = Run(Job(SPEC, GIVEN, text_data(), None), replace(HOW, compiled=True))
    monkeypatch.setattr(compiled.trainer, "gradients", lambda _, rows: seen.append(len(rows.labels)))
    compiled.plan()
    assert set(seen) == {ROWS}


@pytest.mark.parametrize("divisible", [True, False])
def test_where_parts_are_no_remedy_none_are_named(monkeypatch: pytest.MonkeyPatch, divisible: bool) -> None:
    """Not one row fits, or a step goes by the whole batch, as BatchNorm's does."""
    free = 1000 if divisible else peak() // 2
    made = run(spec=SPEC if divisible else af.vary(SPEC, norm="BatchNorm"))
    monkeypatch.setattr(capacity, "free_nbytes", lambda device=None: free)
    monkeypatch.setattr(trials, "free_nbytes", lambda device=None: free)
    with pytest.raises(
        UsageError, match=r"; take a smaller batch \(--batch-tokens\), shorter rows .* or a smaller model$"
    ):
        made.plan()


def test_a_plan_says_how_often_the_text_is_read() -> None:
    rows = text_data().feed(GIVEN).state()["n_rows"]
    for tokens, said in ((40 * rows * PLACES, "(the text 40 times)"), (3 * rows * PLACES, "(the text 3.0 times)")):
        plan = run(given=GIVEN.but(tokens=tokens, batch_tokens=PLACES)).plan()
        assert plan.epochs == tokens / (rows * PLACES)
        assert said in plan.lines()[0]
    assert "times" not in run(given=GIVEN.but(tokens=rows * PLACES, batch_tokens=PLACES)).plan().lines()[0]
