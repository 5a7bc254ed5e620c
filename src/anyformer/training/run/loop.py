"""A whole run: what is asked is checked, the model built or restored, trained, validated, saved."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from anyformer import recipe as recipes
from anyformer.disk.run_layout import METRICS
from anyformer.errors import RunFailed, UsageError
from anyformer.model import Transformer, build
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, Recompute, parameters
from anyformer.training.checkpoint.directory import holds_weights, made
from anyformer.training.checkpoint.metrics import MetricsLog, StepMetrics, ValidationMetrics
from anyformer.training.checkpoint.provenance import code_fingerprint
from anyformer.training.checkpoint.saving import SavedCheckpoint, Saving
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.data.feed import Feed, Rows, TrainingData, Validation
from anyformer.training.data.workers import check_workers, prepared
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.baseline import trivial_loss
from anyformer.training.run.checks import check_room, check_run, fits_beside_others
from anyformer.training.run.evaluation import Evaluation, evaluate
from anyformer.training.run.plan import WEIGHT_NBYTES, RunPlan, disk_needed, flops_per_token, sizes, trial
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped, noted_signals
from anyformer.training.run.teaching import fingerprint_of, teacher_of
from anyformer.training.step import Trainer
from anyformer.training.step.device import best_device, compute_dtype, keep_heap, memory_told

Peak = Callable[[torch.dtype, torch.device], float]  # measured FLOPs a second of large matrix products


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run runs: nothing here changes what the weights become, beyond rounding and draws of dropout in other parts."""

    device: torch.device | None = None  # None: the best there is
    compiled: bool = False
    micro_tokens: int | None = None  # places computed at once; None: the batch
    recompute: Recompute = "none"  # what a backward pass makes again instead of keeping it
    workers: int = 0  # processes that prepare rows ahead of the step
    validations: int = 8  # on a sample of the validation text on the way, beside one before each checkpoint
    validation_share: float = 0.025  # of the run's tokens: what one of these reads at most
    save_every: int | None = None  # steps; None: at each validation
    save: Literal["now", "async"] = "now"  # checkpoints are written between two steps, or while steps go on
    keep_last: int = 2
    peak: Peak | None = None
    plan: bool = True  # make a trial first, to say how long it will take
    world: World = ALONE  # the processes that share the run (`cluster.joining.joined`)


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
    return Run(spec, recipe, data, out, init, options, name).go(watcher or Watcher())


class Run:
    """One run while it lasts: made, it is sure to begin; what `train` raises before anything is written is raised here."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        data: TrainingData,
        out: Path | None = None,
        init: Path | None = None,
        options: RunOptions | None = None,
        name: str | None = None,
    ) -> None:
        options = options or RunOptions()
        check_run(spec, recipe, data)
        check_workers(options.workers)
        device = options.device or best_device()
        self.world = world = options.world.chosen(fits_beside_others(spec, recipe, device, options.world))
        if world.size > 1:
            world.agree(_identity(spec, recipe, data, options, world))
        own = out is not None and world.once(lambda: holds_weights(out))
        if recipe.lora is not None and init is None and not own:
            raise UsageError("an adapter (--lora) is put on given weights; name their directory (--init)")
        self.recipe, self.options, self.watcher = recipe, options, Watcher()
        self.feed, self.validation, self.data = data.feed(recipe), data.validation(recipe), data
        keep_heap()
        teacher = teacher_of(spec, recipe, data, device)
        behind = options.save == "async"
        check_room(spec, recipe, device, world)
        self.model, self.fresh = _built(spec, recipe.seed, device, world, None if own else init, data.labels or None)
        self.trainer = Trainer(
            self.model,
            recipe,
            objective_of(recipe.objective, spec),
            micro_tokens=options.micro_tokens,
            compiled=options.compiled,
            recompute=options.recompute,
            world=world,
            teacher=teacher,
        )
        adapter = self.trainer.adapter
        if adapter is not None and self.fresh:
            raise UsageError(
                f"--lora trains maps of given weights alone, and {init} lacks {', '.join(self.fresh)}; train without --lora first"
            )
        self.n_params, self.n_beside, saved = sizes(self.trainer)
        self.n_taught = 0 if teacher is None else parameters(teacher.model.spec).total
        once = WEIGHT_NBYTES * self.n_params if adapter is not None else 0
        saves = out is not None and world.leads and made(out) < recipe.steps
        self.disk_nbytes = disk_needed(saved, options.keep_last + 1, out, once) if saves and out else 0
        beside = self.trainer.auxiliary and self.trainer.auxiliary.spec
        read = {"teacher": fingerprint_of(teacher.model)} if teacher and out and world.leads else {}
        self.saving = Saving(
            out, spec, recipe, data, init, options.keep_last, name, beside, world, adapter, behind, read
        )
        self.trainer.before_change = self.saving.taken
        self.saved = SavedCheckpoint()
        self.log = MetricsLog(out / METRICS if out and world.leads else None)
        self.flops_per_place = flops_per_token(spec, data.load(recipe), self.trainer.objective, adapter, teacher)
        self.flops_per_token = self.flops_per_place / data.predicted_share(recipe)  # that is predicted
        self.steps = recipe.steps
        # Processes that share a machine's cores cannot each have its peak.
        self.peak = options.peak(compute_dtype(recipe.precision), device) if options.peak and world.size == 1 else None

    def go(self, watcher: Watcher) -> TrainingResult:
        """Restore, train, validate."""
        self.watcher = watcher
        with self.saving:
            self.saved = self.saving.restore(self.trainer, self.feed)
            if not self.saved.step:
                self.trainer.objective.begin(self.recipe, self.data, self.trainer.over)
            # However far the run goes on: losses of samples of other sizes would rank no checkpoints.
            share = int(self.saving.begun().tokens * self.options.validation_share)
            self.sampled = max(self.recipe.batch_tokens, share)
            workers = self.options.workers if self.saved.step < self.steps else 0
            with memory_told(), prepared(self.feed, workers) as batches:
                return self._train(batches)

    def _train(self, batches: Feed | Iterator[Rows]) -> TrainingResult:
        plan = self.plan()
        validate_every = -(-self.steps // (self.options.validations or 1))
        try:
            self.watcher.begin(plan)
            self.saving.open(self.log, self.saved)
            with noted_signals() as received:
                for step in range(self.saved.step + 1, self.steps + 1):
                    self._step(step, batches)
                    self.saving.look()
                    due = step == self.steps or step % (self.options.save_every or validate_every) == 0
                    if due or step % validate_every == 0:
                        self._validate_sample()
                    # All stop after the same step, whichever were told to, or know that there is no saving.
                    told = signal.NSIG if self.saving.failed else next(iter(received), 0)
                    if (stopping := self.world.largest(told)) or due:
                        self.saving.save(self.saved, self.trainer, self.feed, self.log)
                    if stopping and step < self.steps:
                        self.saving.look(wait=True)
                        name = signal.Signals(stopping).name
                        more = "; the same command goes on from there" if self.saving.out is not None else ""
                        raise Stopped(f"stopped by {name} after step {step:,}; {self.saving.says()}{more}", stopping)
            self.saving.look(wait=True)
            evaluation = self._validate_whole()
            if self.trainer.adapter is not None:
                self.trainer.adapter.merge()
        finally:
            self.log.close()
            self.watcher.end()
        return TrainingResult(
            self.model,
            tuple(self.log.steps),
            tuple(self.log.validations),
            evaluation,
            self.flops_per_token,
            self.n_params,
            self.saving.best(),
        )

    def foreseen(self) -> RunPlan:
        """The plan of a run that is not begun here: its directory, where there is one, is read and left as it is."""
        self.saved = self.saving.foreseen()
        with memory_told():
            return self.plan()

    def plan(self) -> RunPlan:
        """The plan of the steps that are still to come."""
        seconds = memory = None
        done, adapter = self.saved.step, self.trainer.adapter
        if self.options.plan and done < self.steps:
            state = self.feed.state()
            seconds, memory = trial(self.trainer, next(self.feed))
            self.feed.restore(dict(state))
            seconds *= self.steps - done
        return RunPlan(
            n_params=self.n_params,
            n_beside=self.n_beside,
            n_taught=self.n_taught,
            n_adapted=None if adapter is None else sum(p.numel() for p in adapter.parameters()),
            beyond=self._beyond(done),
            unadapted=() if adapter is None else adapter.left_out(),
            mesh=str(self.world.mesh) if self.world.size > 1 else None,
            steps=self.steps,
            done=done,
            tokens=self.recipe.tokens,
            flops_per_token=self.flops_per_place,
            device=str(self.trainer.device),
            precision=self.recipe.precision,
            disk_nbytes=self.disk_nbytes,
            seconds=seconds,
            memory_nbytes=memory,
            peak_flops=self.peak,
            fresh=self.fresh,
        )

    def _beyond(self, done: int) -> str | None:
        """How the learning rate goes on where the run goes beyond what it was; None of any other run, or once it has."""
        former = self.saving.former()
        if former is None or not done <= former.steps < self.steps:
            return None
        before, after = (each.learning_rates(self.model.spec.stack.d_model) for each in (former, self.recipe))
        was = f"from {before(done):.3g} " if done else ""
        return (
            f"it was to end after step {former.steps:,}; the schedule of {self.steps:,} steps takes the learning rate {was}"
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
        )
        self.saved = SavedCheckpoint(step, tokens, seconds_all)
        self.log.add(metrics)
        self.watcher.step(metrics)

    def _diverged(self, what: str) -> RunFailed:
        return RunFailed(f"the {what}; {self.saving.says()}; try a lower learning rate, a longer warm-up or clipping")

    def _validate_sample(self) -> None:
        """Read a sample of the validation text: what ranks the checkpoint of this step, if there is one."""
        if self.validation is not None and self.options.validations:
            self._validated(self._evaluate(self.validation, self.sampled).loss, False)

    def _validate_whole(self) -> Evaluation | None:
        if self.validation is None:
            return None
        evaluation = self._evaluate(self.validation)
        if not any(entry.whole and entry.step == self.steps for entry in self.log.validations):
            known = evaluation.frequency_loss
            trivial = trivial_loss(self.recipe, self.data, self.validation) if known is None else known
            self._validated(evaluation.loss, True, trivial)
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

    def _validated(self, loss: float, whole: bool, unigram: float | None = None) -> None:
        s = self.saved
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
        )
        self.log.add(metrics)
        self.watcher.validation(metrics)
        self.saved = replace(s, validation_loss=loss)


def _built(
    spec: ModelSpec, seed: int, device: torch.device, world: World, init: Path | None, labels: tuple[str, ...] | None
) -> tuple[Transformer, tuple[str, ...]]:
    """(the model as a run starts with it, the names of tensors that `init` lacks); of one that processes share, a part."""
    if world.sharded and init is None:
        from anyformer.training.cluster.sharding import built

        model = built(spec, seed, device, world)
        model.labels = labels
        return model, ()
    model = build(spec, seed, device=device)
    model.labels = labels
    fresh: tuple[str, ...] = ()
    if init is not None:
        from anyformer.hub import load_into

        fresh = tuple(load_into(model, init))
    if world.sharded:
        from anyformer.training.cluster.sharding import shard

        model = shard(model, device, world)
    return model, fresh


def _identity(spec: ModelSpec, recipe: Recipe, data: TrainingData, options: RunOptions, world: World) -> dict[str, str]:
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
        "specification": spec.key,
        "recipe": recipes.dumps(recipe, "json"),
        "data": data.fingerprint,
        "mesh": str(world.mesh),
        "options": str(how),
    }
