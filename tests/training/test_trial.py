"""What a pass keeps is told by fewer rows, and refused before it would take more than there is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from anyformer import capacity
from anyformer.errors import UsageError
from anyformer.model import build
from anyformer.recipe import Recipe
from anyformer.spec.cost import Recompute
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run import Job, Run
from anyformer.training.run import trial as trials
from anyformer.training.step import Trainer
from tests.training.test_run import HOW, RECIPE, SPEC, text_data

ROWS, PLACES = 64, 16
GIVEN = RECIPE.but(tokens=ROWS * PLACES * 4, batch_tokens=ROWS * PLACES, seq_len=PLACES)


def run(micro_tokens: int | None = None, given: Recipe = GIVEN, recompute: Recompute = "none") -> Run:
    return Run(Job(SPEC, given, text_data(), None), replace(HOW, micro_tokens=micro_tokens, recompute=recompute))


def kept_by_all() -> int:
    """The bytes of all that a pass over the whole batch saves, storage by storage."""
    trainer = Trainer(build(SPEC), GIVEN, objective_of(GIVEN.objective, SPEC))
    storages: dict[int, torch.UntypedStorage] = {}

    def saved(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x):
        trainer.gradients(1, next(text_data().feed(GIVEN)))
    return sum(each.nbytes() for each in storages.values())


def test_few_rows_tell_what_all_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[float] = []
    monkeypatch.setattr(trials, "refuse_beyond_memory", lambda nbytes, *_: needed.append(nbytes))
    run().plan()
    assert needed == [pytest.approx(kept_by_all(), rel=0.01)]


def test_more_than_is_free_is_refused_with_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    free = kept_by_all() // 2
    monkeypatch.setattr(capacity, "free_nbytes", lambda device=None: free)
    monkeypatch.setattr(trials, "free_nbytes", lambda device=None: free)
    with pytest.raises(
        UsageError, match=rf"^a step of {ROWS} rows at once needs .* are free on cpu; compute it in"
    ) as error:
        run().plan()
    (parts,) = re.findall(r"--micro-tokens (\d+)", str(error.value))
    assert int(parts) == PLACES * 16
    assert run(int(parts)).plan().seconds


def test_layers_made_again_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[float] = []
    monkeypatch.setattr(trials, "refuse_beyond_memory", lambda nbytes, *_: needed.append(nbytes))
    for recompute in ("none", "full"):
        run(recompute=recompute).plan()
    assert needed[1] < 0.7 * needed[0]


def test_where_not_one_row_fits_nothing_of_parts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run()
    monkeypatch.setattr(capacity, "free_nbytes", lambda device=None: 1000)
    monkeypatch.setattr(trials, "free_nbytes", lambda device=None: 1000)
    with pytest.raises(UsageError, match=r"; take shorter rows \(--seq-len\), --recompute full or a smaller model$"):
        made.plan()
