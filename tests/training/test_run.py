"""Whole runs: repeatable, resumable bit for bit, stopped by signals, failed by a loss that is no number."""

import itertools
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.errors import CheckpointError, RunFailed, SpecError, TextError, UsageError
from anyformer.layers import BatchNormSpec
from anyformer.recipe import CausalLM, Constant, CosineDecay, DropoutSpec, Recipe, Warmup
from anyformer.spec import ModelSpec
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.run import Job, Run, RunOptions, TrainingResult, train
from anyformer.training.run import plan as plans
from anyformer.training.run.budget import seconds_a_step
from anyformer.training.run.signals import Stopped
from anyformer.training.step import StepResult, Trainer
from tests.training.crashing import Watching, crashed, hexadecimal
from tests.training.models import VOCAB, decoder
from tests.training.texts import text_data

SPEC = decoder()
RECIPE = Recipe(
    tokens=64 * 24,
    batch_tokens=64,
    seq_len=16,
    dropout=DropoutSpec(residual=0.2),
    schedule=(Warmup(steps=3), CosineDecay()),
)
HOW = RunOptions(device=torch.device("cpu"), save_every=5, validations=3)


@pytest.fixture(scope="module")
def whole() -> TrainingResult:
    return train(SPEC, RECIPE, text_data(), options=HOW)


def test_a_run_repeats_bit_for_bit_and_learns(whole: TrainingResult) -> None:
    torch.manual_seed(99)
    again = train(SPEC, RECIPE, text_data(), options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)
    longer = train(SPEC, RECIPE.but(tokens=64 * 150, schedule=(Constant(),)), text_data(), options=HOW)
    assert longer.evaluation is not None
    assert longer.evaluation.loss < longer.steps[0].loss - 0.5


def test_another_seed_is_another_run(whole: TrainingResult) -> None:
    assert hexadecimal(train(SPEC, RECIPE.but(seed=1), text_data(), options=HOW)) != hexadecimal(whole)


@pytest.mark.parametrize("crashes", [(3,), (5,), (6, 17), (11, 12, 23)], ids=str)
def test_a_run_that_crashed_goes_on_bit_for_bit(
    whole: TrainingResult, tmp_path: Path, crashes: tuple[int, ...]
) -> None:
    out = tmp_path / "run"
    for step in crashes:
        crashed(step, SPEC, RECIPE, text_data(), out=out, options=HOW)
    watching = Watching()
    result = train(SPEC, RECIPE, text_data(), out=out, options=HOW, watcher=watching)
    assert watching.plan.done == crashes[-1] // 5 * 5 - (5 if crashes[-1] % 5 == 0 else 0)
    assert hexadecimal(result) == hexadecimal(whole)
    assert result.evaluation == whole.evaluation
    for mine, other in zip(result.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    log = read_metrics(out)
    assert [entry.step for entry in log.steps] == list(range(1, 25))
    assert [entry.loss for entry in log.steps] == [entry.loss for entry in whole.steps]
    assert [entry.tokens for entry in log.steps] == [entry.tokens for entry in whole.steps]


def test_half_a_line_of_metrics_is_forgotten(whole: TrainingResult, tmp_path: Path) -> None:
    out = tmp_path / "run"
    crashed(13, SPEC, RECIPE, text_data(), out=out, options=HOW)
    text = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(text[:-40])
    assert hexadecimal(train(SPEC, RECIPE, text_data(), out=out, options=HOW)) == hexadecimal(whole)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_first(whole: TrainingResult, tmp_path: Path, number: signal.Signals, status: int) -> None:
    out = tmp_path / "run"
    before = signal.getsignal(number)
    with pytest.raises(
        Stopped, match=rf"stopped by {number.name} after step 7; the last good checkpoint is .*step-00000007"
    ) as caught:
        train(
            SPEC, RECIPE, text_data(), out=out, options=HOW, watcher=Watching(7, lambda: os.kill(os.getpid(), number))
        )
    assert caught.value.exit_status == status
    assert signal.getsignal(number) == before
    watching = Watching()
    result = train(SPEC, RECIPE, text_data(), out=out, options=HOW, watcher=watching)
    assert watching.plan.done == 7
    assert hexadecimal(result) == hexadecimal(whole)


def test_what_has_run_is_not_run_again(whole: TrainingResult, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(SPEC, RECIPE, text_data(), out=out, options=HOW)
    watching = Watching()
    again = train(SPEC, RECIPE, text_data(), out=out, options=HOW, watcher=watching)
    assert watching.losses == []
    assert hexadecimal(again) == hexadecimal(whole)
    assert again.evaluation == whole.evaluation
    text = (out / "metrics.jsonl").read_text().splitlines()
    assert sum("whole" in line and json.loads(line)["whole"] for line in text) == 1


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer.step

    def poisoned(self: Trainer, number: int, batch: Any) -> StepResult:
        result = real(self, number, batch)
        return result._replace(loss=float("nan")) if number == 12 else result

    monkeypatch.setattr(Trainer, "step", poisoned)
    out = tmp_path / "run"
    with pytest.raises(
        RunFailed, match=r"the loss is not finite at step 12; the last good checkpoint is .*step-00000010"
    ):
        train(SPEC, RECIPE, text_data(), out=out, options=HOW)
    with pytest.raises(RunFailed, match="nothing is saved"):
        train(SPEC, RECIPE, text_data(), options=HOW)


def test_a_divergent_run_fails_by_itself() -> None:
    hot = RECIPE.but(optimizer=RECIPE.optimizer.but(lr=1e30), clip=None)
    with pytest.raises(RunFailed, match="is not finite at step"):
        train(SPEC, hot, text_data(), options=HOW)


@pytest.mark.parametrize("validations", [0, 1])
def test_weights_that_the_last_step_blows_up_fail_the_run(
    tmp_path: Path, validations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss was of the weights before; what a sample of the validation text shows is not saved as a good checkpoint."""
    real = Trainer.step

    def blown(self: Trainer, number: int, batch: Any) -> StepResult:
        result = real(self, number, batch)
        if number == 24:
            next(self.model.parameters()).data.fill_(float("nan"))
        return result

    monkeypatch.setattr(Trainer, "step", blown)
    options, out = replace(HOW, validations=validations, save_every=12), tmp_path / "run"
    with pytest.raises(RunFailed, match=r"the validation loss is not finite after step 24; .* try a lower learning"):
        train(SPEC, RECIPE, text_data(), out=out, options=options)
    assert bool(list(out.glob("**/step-00000024"))) == (validations == 0)


@pytest.mark.parametrize("plan", [False, True])
def test_memory_that_runs_out_is_said_so(monkeypatch: pytest.MonkeyPatch, plan: bool) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_passes", full)
    with pytest.raises(RunFailed, match="out of memory; take fewer tokens at once"):
        train(SPEC, RECIPE, text_data(), options=replace(HOW, plan=plan))
    with pytest.raises(RunFailed, match="out of memory; take fewer tokens at once"):
        seconds_a_step(Job(SPEC, RECIPE, text_data()), HOW)


@pytest.mark.parametrize("micro_tokens", [16, 48])
def test_micro_batches_change_nothing(whole: TrainingResult, micro_tokens: int) -> None:
    plain = RECIPE.but(dropout=DropoutSpec())
    options = RunOptions(device=torch.device("cpu"), validations=0, micro_tokens=micro_tokens, plan=False)
    parts, at_once = (train(SPEC, plain, text_data(), options=h) for h in (options, HOW))
    for mine, other in zip(parts.steps, at_once.steps, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-5)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"spec": decoder(vocab=VOCAB - 1)},
        UsageError,
        f"a vocabulary of {VOCAB - 1}, smaller than the tokenizer's {VOCAB}",
    ),
    ({"spec": decoder(learned_positions=15)}, UsageError, "sequences of 16 tokens go beyond the model's 15 learned"),
    ({"recipe": RECIPE.but(schedule=(Warmup(steps=24), CosineDecay()))}, SpecError, "leaves no step for CosineDecay"),
    ({"recipe": RECIPE.but(batch_tokens=16_000, schedule=(Constant(),))}, TextError, "less than one batch of 1000"),
]


@pytest.mark.parametrize(("changed", "kind", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
def test_what_cannot_start_writes_nothing(
    tmp_path: Path, changed: dict[str, Any], kind: type[Exception], says: str
) -> None:
    out = tmp_path / "run"
    given = {"spec": SPEC, "recipe": RECIPE, **changed}
    with pytest.raises(kind, match=says) as caught:
        train(given["spec"], given["recipe"], text_data(), out=out, options=HOW)
    assert getattr(caught.value, "exit_status", None) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_another_architecture_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(SPEC, RECIPE, text_data(), out=out, options=HOW)
    assert SPEC.stack.norm is not None
    other = SPEC.but(stack=SPEC.stack.but(norm=SPEC.stack.norm.but(eps=1e-3)))
    with pytest.raises(CheckpointError, match=r"another spec: .*eps"):
        train(other, RECIPE, text_data(), out=out, options=HOW)


def test_a_full_disk_is_seen_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UsageError, match="are free; choose another --out"):
        train(SPEC, RECIPE, text_data(), out=tmp_path / "run", options=HOW)
    assert list(tmp_path.iterdir()) == []


def test_how_much_room_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a need of 2.4 MB and 2.4 MB that are free nobody knows what to do."""
    needed = plans.disk_needed(1_200_000, 1, tmp_path)
    monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: type("Usage", (), {"free": needed - 500}))
    with pytest.raises(UsageError, match=r"need 2.4 MB, 500 bytes more than are free; choose another --out"):
        plans.disk_needed(1_200_000, 1, tmp_path)


def test_a_begun_run_asks_for_room_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    train(SPEC, RECIPE, text_data(), out=out, options=HOW)
    monkeypatch.setattr(plans.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UsageError, match="are free; make room, then start again"):
        train(SPEC, RECIPE.but(tokens=2 * RECIPE.tokens), text_data(), out=out, options=HOW)


def test_a_run_can_start_from_weights(whole: TrainingResult, tmp_path: Path) -> None:
    first = tmp_path / "first"
    train(SPEC, RECIPE, text_data(), out=first, options=HOW)
    second = train(SPEC, RECIPE.but(dropout=DropoutSpec()), text_data(), init=first, options=HOW)
    assert second.steps[0].loss < whole.steps[0].loss - 0.05
    with pytest.raises(CheckpointError, match=r"the weights in .* are of another architecture: "):
        train(decoder(vocab=VOCAB + 1), RECIPE, text_data(), init=first, options=HOW)


def test_the_plan_is_right_where_it_can_be(whole: TrainingResult) -> None:
    options = RunOptions(device=torch.device("cpu"), peak=lambda dtype, device: 1e12)
    plan = Run(Job(SPEC, RECIPE, text_data()), options).plan()
    assert plan.n_params == sum(p.numel() for p in whole.model.parameters())
    assert (plan.steps, plan.done, plan.disk_nbytes, plan.peak_flops) == (24, 0, 0, 1e12)
    assert plan.seconds is not None
    assert (
        1 / 30 < plan.seconds / whole.seconds < 30
    )  # a machine that is busy with other work is told apart from a wrong unit
    assert plan.memory_nbytes is not None
    assert plan.memory_nbytes > 12 * plan.n_params


def test_no_share_is_told_of_a_peak_that_a_step_passes() -> None:
    known, wrong = (
        RunOptions(device=torch.device("cpu"), plan=False, peak=lambda *_, peak=peak: peak) for peak in (1e15, 1.0)
    )
    shares = [step.share_of_peak for step in train(SPEC, RECIPE, text_data(), options=known).steps]
    assert all(share is not None and 0 < share < 1 for share in shares)
    assert {step.share_of_peak for step in train(SPEC, RECIPE, text_data(), options=wrong).steps} == {None}


@pytest.mark.parametrize("spec", [SPEC, SPEC.but(stack=SPEC.stack.but(norm=BatchNormSpec()))], ids=["", "BatchNorm"])
def test_a_trial_leaves_no_trace(spec: ModelSpec) -> None:
    recipe = RECIPE.but(tokens=64 * 8)
    tried, untried = (train(spec, recipe, text_data(), options=replace(HOW, plan=plan)) for plan in (True, False))
    assert hexadecimal(tried) == hexadecimal(untried)


def test_metrics_add_up(whole: TrainingResult) -> None:
    from anyformer.spec import Place, Workload

    per_token = 3 * SPEC.cost(Place(), Workload(batch=1, query=16)).flops / 16
    for before, after in itertools.pairwise(whole.steps):
        assert after.step == before.step + 1
        assert 0 < after.tokens - before.tokens <= 64
        assert after.seconds > before.seconds
        assert after.flops == pytest.approx(after.tokens * per_token)
    # Three looks, one before each checkpoint, and the whole text at the end.
    assert [v.step for v in whole.validations] == [5, 8, 10, 15, 16, 20, 24, 24]
    assert [v.whole for v in whole.validations] == [False] * 7 + [True]
    assert whole.evaluation is not None
    assert whole.validations[-1].validation_loss == whole.evaluation.loss
    assert (whole.tokens, whole.seconds) == (whole.steps[-1].tokens, whole.steps[-1].seconds)


@pytest.mark.parametrize(("steps", "looks"), [(5, 5), (8, 8), (15, 8), (31, 8)])
def test_no_more_validations_than_are_asked_for(steps: int, looks: int) -> None:
    options = RunOptions(device=torch.device("cpu"), plan=False)
    result = train(SPEC, RECIPE.but(tokens=64 * steps), text_data(), options=options)
    assert [each.whole for each in result.validations] == [False] * looks + [True]


def test_the_objective_is_the_recipes() -> None:
    assert isinstance(RECIPE.objective, CausalLM)
    from anyformer.recipe import Seq2Seq

    with pytest.raises(UsageError, match="Seq2Seq does not go with this architecture"):
        train(SPEC, RECIPE.but(objective=Seq2Seq()), text_data(), options=HOW)
