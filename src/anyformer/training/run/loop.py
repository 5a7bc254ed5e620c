"""A whole run: what is asked is checked, the model built or restored, trained, validated, saved."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anyformer import recipe as recipes
from anyformer.disk.run_layout import BASE
from anyformer.errors import RunFailed, UsageError
from anyformer.hub import load_into
from anyformer.hub.loading import load_as
from anyformer.model import Transformer, build
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.training.checkpoint.directory import holds_weights, refuse_another
from anyformer.training.checkpoint.job import Job
from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.checkpoint.provenance import code_fingerprint
from anyformer.training.checkpoint.saving import SavedCheckpoint, Saving
from anyformer.training.cluster.world import World
from anyformer.training.data.feed import Feed, Rows, TrainingData, Validation
from anyformer.training.data.workers import check_workers, prepared
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.baseline import trivial_loss
from anyformer.training.run.checks import check_room, check_run, fits_beside_others
from anyformer.training.run.evaluation import Evaluation, evaluate
from anyformer.training.run.options import RunOptions
from anyformer.training.run.plan import RunPlan, plan_of
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped, noted_signals
from anyformer.training.run.teaching import teacher_of
from anyformer.training.run.trial import trial
from anyformer.training.step import Trainer
from anyformer.training.step.device import best_device, compute_dtype, keep_heap, memory_told


@dataclass(frozen=True)
class TrainingResult:
    """The model, metrics and best checkpoint of a run."""

    model: Transformer
    steps: tuple[StepMetrics, ...]
    validations: tuple[ValidationMetrics, ...]
    evaluation: Evaluation | None  # of the whole validation text, after the last step
    flops_per_token: float
    n_params: int
    best: Path | None = None  # the checkpoint that did best on (the same sample of) the validation text

    @property
    def unigram_loss(self) -> float | None:
        """Of the whole validation text, a label, guessed by the frequency of the training labels alone, or by their mean."""
        return next((each.unigram_loss for each in reversed(self.validations) if each.whole), None)

    @property
    def tokens(self) -> int:
        """Predicted in training."""
        return self.steps[-1].tokens if self.steps else 0

    @property
    def seconds(self) -> float:
        """Spent training, without validation and saving."""
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run."""
        return self.tokens / self.seconds if self.seconds else 0.0


def train(
    spec: ModelSpec,
    recipe: Recipe,
    data: TrainingData,
    *,
    out: Path | None = None,
    init: Path | None = None,
    options: RunOptions | None = None,
    watcher: Watcher | None = None,
    name: str | None = None,
) -> TrainingResult:
    """Train a model of `spec` by `recipe` on `data`; with `out`, save there, and go on from what is there already.

    `init` is a directory of weights of the same architecture to start from; `name` is what the run is listed by.
    Raises an AnyformerError of exit status 2 before anything is written, RunFailed afterwards, Stopped at a signal.
    """
    return Run(Job(spec, recipe, data, out, init, name), options or RunOptions()).go(watcher or Watcher())


class Run:
    """One run while it lasts: made, it is sure to begin; what `train` raises before anything is written is raised here."""

    def __init__(self, job: Job, options: RunOptions) -> None:
        self.job, self.recipe, self.options, self.watcher = job, job.recipe, options, Watcher()
        check_run(job.spec, job.recipe, job.data)
        check_workers(options.workers)
        device = options.device or best_device()
        self.world = options.world.chosen(fits_beside_others(job.spec, job.recipe, device, options.world))
        if self.world.size > 1:
            self.world.agree(_identity(job, options, self.world))
        init = _given_weights(job, self.world)

        self.feed, self.validation = job.data.feed(job.recipe), job.data.validation(job.recipe)
        keep_heap()
        teacher = teacher_of(job.spec, job.recipe, job.data, device)
        check_room(job.spec, job.recipe, device, self.world)
        self.model, fresh = _built(job, init, device, self.world)
        self.trainer = Trainer(
            self.model,
            job.recipe,
            objective_of(job.recipe.objective, job.spec, job.data.tokenizer),
            micro_tokens=options.micro_tokens,
            compiled=options.compiled,
            recompute=options.recompute,
            world=self.world,
            teacher=teacher,
        )

        self.saving = Saving(job, self.trainer, self.feed, keep_last=options.keep_last, behind=options.save == "async")
        self.saved = SavedCheckpoint()
        epochs = self.feed.epochs(self.recipe.steps)
        self.planned = plan_of(job, self.trainer, options.keep_last, fresh, epochs)
        self.flops_per_token = self.planned.flops_per_token / job.data.predicted_share(job.recipe)  # that is predicted
        self.peak = None
        if options.peak is not None and self.world.size == 1:  # those that share a machine's cores cannot each have it
            self.peak = options.peak(compute_dtype(job.recipe.precision), device)

    def go(self, watcher: Watcher) -> TrainingResult:
        """Restore, train, validate."""
        self.watcher = watcher
        with self.saving:
            self.saved = self.saving.restore()
            if not self.saved.step:
                self.trainer.objective.begin(self.recipe, self.job.data, self.trainer.over)
            # However far the run goes on: losses of samples of other sizes would rank no checkpoints.
            share = int(self.saving.begun().tokens * self.options.validation_share)
            self.sampled = max(self.recipe.batch_tokens, share)
            workers = self.options.workers if self.saved.step < self.recipe.steps else 0
            with memory_told(), prepared(self.feed, workers) as batches:
                return self._train(batches)

    def _train(self, batches: Feed | Iterator[Rows]) -> TrainingResult:
        plan, steps, log = self.plan(), self.recipe.steps, self.saving.log
        validate_every = -(-steps // (self.options.validations or 1))
        try:
            self.watcher.begin(plan)
            self.saving.open(self.saved)
            with noted_signals() as received:
                for step in range(self.saved.step + 1, steps + 1):
                    self._step(step, batches)
                    self.saving.look()
                    due = step == steps or step % (self.options.save_every or validate_every) == 0
                    if due or step % validate_every == 0:
                        self._validate_sample()
                    # All stop after the same step, whichever were told to, or know that there is no saving.
                    told = signal.NSIG if self.saving.failed else next(iter(received), 0)
                    if (stopping := self.world.largest(told)) or due:
                        self.saving.save(self.saved)
                    if stopping and step < steps:
                        self.saving.look(wait=True)
                        name = signal.Signals(stopping).name
                        more = "; the same command goes on from there" if self.saving.out is not None else ""
                        raise Stopped(f"stopped by {name} after step {step:,}; {self.saving.says()}{more}", stopping)
            self.saving.look(wait=True)
            evaluation = self._validate_whole()
            if self.trainer.adapter is not None:
                self.trainer.adapter.merge()
        finally:
            log.close()
            self.watcher.end()
        return TrainingResult(
            self.model,
            tuple(log.steps),
            tuple(log.validations),
            evaluation,
            self.flops_per_token,
            plan.n_params,
            self.saving.best(),
        )

    def foreseen(self) -> RunPlan:
        """The plan of a run that is not begun here: its directory, where there is one, is read and left as it is."""
        self.saved = self.saving.foreseen()
        with memory_told():
            return self.plan()

    def plan(self) -> RunPlan:
        """The plan of the steps that are still to come."""
        done = self.saved.step
        plan = replace(self.planned, done=done, beyond=self._beyond(done), peak_flops=self.peak)
        if not self.options.plan or done >= plan.steps:
            return plan
        state = self.feed.state()
        seconds, memory = trial(self.trainer, next(self.feed))
        self.feed.restore(dict(state))
        return replace(plan, seconds=seconds * (plan.steps - done), memory_nbytes=memory)

    def _beyond(self, done: int) -> str | None:
        """How the learning rate goes on where the run goes beyond what it was; None of any other run, or once it has."""
        former, steps = self.saving.former(), self.recipe.steps
        if former is None or not done <= former.steps < steps:
            return None
        before, after = (each.learning_rates(self.job.spec.stack.d_model) for each in (former, self.recipe))
        was = f"from {before(done):.3g} " if done else ""
        return (
            f"it was to end after step {former.steps:,}; the schedule of {steps:,} steps takes the learning rate {was}"
            f"to {after(done + 1):.3g} at step {done + 1:,}"
        )

    def _step(self, step: int, batches: Feed | Iterator[Rows]) -> None:
        start = time.perf_counter()
        result = self.trainer.step(step, next(batches))
        seconds = time.perf_counter() - start
        if not result.finite:
            what = "gradient" if math.isfinite(result.loss) else "loss"
            raise self._diverged(f"{what} is not finite at step {step:,}")
        tokens, seconds_all = self.saved.tokens + result.tokens, self.saved.seconds + seconds
        rate = result.tokens / seconds
        reached = rate * self.flops_per_token
        if self.peak is not None and reached > self.peak:
            self.peak = None  # it was measured while the machine was busy, and shares of it say nothing
        metrics = StepMetrics(
            step=step,
            tokens=tokens,
            flops=tokens * self.flops_per_token,
            seconds=seconds_all,
            loss=result.loss,
            lr=result.lr,
            grad_norm=result.grad_norm,
            tokens_per_second=rate,
            share_of_peak=reached / self.peak if self.peak else None,
            router_loss=result.router_loss,
            expert_load_max=result.load.busiest if result.load else None,
            expert_load_entropy=result.load.entropy if result.load else None,
            expert_dropped=result.load.dropped_share if result.load else None,
            parts=result.parts,
            right=result.right,
        )
        self.saved = SavedCheckpoint(step, tokens, seconds_all)
        self.saving.log.add(metrics)
        self.watcher.step(metrics)

    def _diverged(self, what: str) -> RunFailed:
        return RunFailed(f"the {what}; {self.saving.says()}; try a lower learning rate, a longer warm-up or clipping")

    def _validate_sample(self) -> None:
        """Read a sample of the validation text: what ranks the checkpoint of this step, if there is one."""
        if self.validation is not None and self.options.validations:
            self._validated(self._evaluate(self.validation, self.sampled), False)

    def _validate_whole(self) -> Evaluation | None:
        if self.validation is None:
            return None
        evaluation = self._evaluate(self.validation)
        if not any(entry.whole and entry.step == self.recipe.steps for entry in self.saving.log.validations):
            known = evaluation.frequency_loss
            trivial = trivial_loss(self.recipe, self.job.data, self.validation) if known is None else known
            self._validated(evaluation, True, trivial)
        return evaluation

    def _evaluate(self, validation: Validation, most_tokens: int | None = None) -> Evaluation:
        by = self.trainer
        return evaluate(
            self.model,
            by.objective,
            validation,
            precision=self.recipe.precision,
            most_tokens=most_tokens,
            auxiliary=by.auxiliary,
            world=self.world,
            pipeline=by.pipeline,
        )

    def _validated(self, evaluation: Evaluation, whole: bool, unigram: float | None = None) -> None:
        s, loss = self.saved, evaluation.loss
        if not math.isfinite(loss):
            raise self._diverged(f"validation loss is not finite after step {s.step:,}")
        metrics = ValidationMetrics(
            step=s.step,
            tokens=s.tokens,
            flops=s.tokens * self.flops_per_token,
            seconds=s.seconds,
            validation_loss=loss,
            whole=whole,
            unigram_loss=unigram,
            answers=[answer._asdict() for answer in evaluation.sample] or None,
        )
        self.saving.log.add(metrics)
        self.watcher.validation(metrics)
        self.saved = replace(s, validation_loss=loss)


def _given_weights(job: Job, world: World) -> Path | None:
    """The directory of weights that a run starts from, its own base where it has an adapter; None where there is none to read.

    Raises UsageError for an adapter on none, CheckpointError where it would be that of another run.
    """
    out, adapts = job.out, job.recipe.lora is not None
    if out is None or not world.once(lambda: holds_weights(out)):
        if adapts and job.init is None:
            raise UsageError("an adapter (--lora) is put on given weights; name their directory (--init)")
        return job.init
    if not adapts:
        return None
    world.once(lambda: refuse_another(out, job.spec, job.recipe))
    return out / BASE


def _built(job: Job, init: Path | None, device: torch.device, world: World) -> tuple[Transformer, tuple[str, ...]]:
    """(the model as a run starts with it, the names of tensors that `init` lacks); of one that processes share, a part.

    Raises what `load_into` does, and `load_as` for what an adapter is put on.
    """
    if (lora := job.recipe.lora) is not None and init is not None:
        return load_as(job.spec, init, lora.packing, device, job.data.labels or None), ()
    seed, fresh = job.recipe.seed, ()
    if world.sharded and init is None:
        from anyformer.training.cluster.sharding import built

        model = built(job.spec, seed, device, world)
    else:
        model = build(job.spec, seed, device=device)
    if init is not None:
        fresh = tuple(load_into(model, init))
        if world.sharded:
            from anyformer.training.cluster.sharding import shard

            model = shard(model, device, world)
    model.labels = job.data.labels or None
    return model, fresh


def _identity(job: Job, options: RunOptions, world: World) -> dict[str, str]:
    """What all processes of a run must have alike."""
    how = (
        options.micro_tokens,
        options.recompute,
        options.compiled,
        options.validations,
        options.save_every,
        options.save,
    )
    return {
        "version": f"anyformer {code_fingerprint()}, torch {torch.__version__}",
        "specification": job.spec.key,
        "recipe": recipes.dumps(job.recipe, "json"),
        "data": job.data.fingerprint,
        "mesh": str(world.mesh),
        "options": str(how),
    }
