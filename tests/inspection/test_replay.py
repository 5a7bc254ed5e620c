"""Passes that take what comes before a change from a whole pass are the passes that compute all of it, to the bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.inference.judging import goal_of, judging
from anyformer.inference.opened import opened
from anyformer.inspection.effects import Change, judged, of_layers
from anyformer.inspection.replay import Replay
from anyformer.inspection.sites import Sites, watched, without_branch, without_layers
from anyformer.inspection.subject import subject
from anyformer.layers.block import Branch
from anyformer.model import build
from anyformer.spec import ModelSpec
from anyformer.training.prepare import Sources
from anyformer.training.run.evaluation import evaluate
from tests.inspection.looked_at import ROW, TEXT, small, tokenizer
from tests.laws.models import every_preset

IDS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))


@every_preset
def test_a_pass_that_is_replayed_up_to_a_change_is_the_one_that_is_computed(spec: ModelSpec) -> None:
    """Of every layer that is passed over and every branch that is silent: lent keys, choices, streams side by side, encoders."""
    model, sites = build(spec).eval(), Sites.of(spec)
    ids = IDS % spec.vocab_size
    given = {} if spec.encoder is None else {"decoder_input_ids": ids}
    at = {site.path: i for i, site in enumerate(sites.layers)}
    changes: list[Change] = [
        Change(i, partial(without_layers, model, range(i, end)))
        for i in range(len(at))
        for end in {i, i + 1, len(at)}  # i: all of the pass behind it is as it was
    ]
    changes += [Change(at[site.of_layer], partial(without_branch, model, i)) for i, site in enumerate(sites.branches)]
    replay = Replay(model)
    with torch.no_grad(), replay.keep():
        model(ids, **given)
    for first, changed in changes:
        with torch.no_grad():
            with changed():
                computed = model(ids, **given)
            entered: list[int] = []
            see = partial(_note, entered)
            with replay.until(first), changed(), watched(model, Branch, see):
                replayed = model(ids, **given)
        assert torch.equal(computed.last_hidden_state, replayed.last_hidden_state)
        assert all(torch.equal(computed.outputs[name], replayed.outputs[name]) for name in computed.outputs)
        assert all(at[sites.branches[i].of_layer] >= first for i in entered)  # and none before is computed


def _note(to: list[int], number: int, *_: object) -> None:
    to.append(number)


def test_branches_behind_a_layer_that_is_passed_over_keep_their_numbers() -> None:
    model, seen = small("llama3-8b", n_layers=3), list[int]()
    with torch.no_grad(), without_layers(model, [1]), watched(model, Branch, partial(_note, seen)):
        model(IDS)
    assert seen == [0, 1, 4, 5]


@pytest.mark.parametrize(("name", "memory"), [("llama3-8b", None), ("llama3-8b", 8), ("qwen3-next-80b-a3b", 8)])
def test_losses_are_those_of_evaluations_one_by_one(name: str, memory: int | None, tmp_path: Path) -> None:
    """In several batches, and where segments see those before, which each change makes others of."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT * (80 if memory is None else 4), encoding="utf-8")
    model, given = small(name, n_layers=4), Sources(path)
    found = opened(model, tokenizer(), device=None, dtype=None)
    judge = judging(found, goal_of(found, given), given, seq_len=ROW, memory=memory)
    changes = {i: Change(i, partial(without_layers, model, [i])) for i in range(4)}
    changes |= {4 + i: Change(i // 2, partial(without_branch, model, i)) for i in range(4)}
    labels, losses = judged(model, judge, 10_000, changes)

    def evaluation() -> Any:
        return evaluate(model, judge.objective, judge.validation, most_tokens=10_000)

    assert labels == evaluation().tokens > (4096 if memory is None else 5 * ROW)
    assert losses.pop(None) == pytest.approx(evaluation().loss, rel=1e-12)
    for key, change in changes.items():
        with change.made():
            assert losses[key] == pytest.approx(evaluation().loss, rel=1e-12)


def test_layers_that_are_computed_grow_by_half_the_square_of_their_number(tmp_path: Path) -> None:
    """One pass of all, and for each layer those behind it without its two branches, without itself; and of ends none."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    n, model, calls = 6, small("llama3-8b", n_layers=6), [0]

    def see(module: Any, given: Any) -> None:
        calls[0] += 1

    for branch in (each for each in model.modules() if isinstance(each, Branch)):
        branch.register_forward_pre_hook(see)
    with subject(model, Sources(path), tokenizer=tokenizer(), seq_len=ROW) as one:
        of_layers(model, one.judging, one.sites, 64)
    without_branches = sum(2 * 2 * (n - i) for i in range(n))
    without_layer = sum(2 * (n - i - 1) for i in range(n))
    assert calls[0] == 2 * n + without_branches + without_layer
