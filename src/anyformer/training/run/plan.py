"""The needs of a run, said before it starts: time from a trial on this machine, memory, disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from anyformer.amounts import count, counted, duration, gigabytes, prefixed
from anyformer.disk.run_layout import BASE, CHECKPOINTS
from anyformer.errors import UsageError
from anyformer.spec import Cost, ModelSpec, Place, Workload, parameters, tensors
from anyformer.training.checkpoint.directory import made
from anyformer.training.checkpoint.job import Job
from anyformer.training.objectives.objective import Objective, Teacher
from anyformer.training.run.trial import kept_of
from anyformer.training.step import Trainer
from anyformer.training.step.adapter import Adapter
from anyformer.training.step.optimizer import kept_nbytes

WEIGHT_NBYTES = 4  # a parameter, float32


@dataclass(frozen=True)
class RunPlan:
    """A run before it starts. `seconds` is None where no trial was made."""

    n_params: int
    steps: int
    done: int  # steps made in an earlier part of the run
    tokens: int  # places, as in the recipe
    flops_per_token: float  # of a place
    device: str
    precision: str
    disk_nbytes: int  # 0: nothing is saved
    seconds: float | None = None  # for the steps still to make
    memory_nbytes: int | None = None
    peak_flops: float | None = None  # measured, a second
    fresh: tuple[str, ...] = ()  # tensors that given weights lack: those of a new head
    n_taught: int = 0  # parameters of the teacher
    n_beside: int = 0  # parameters of what is trained beside the model, without those that they share
    n_adapted: int | None = None  # parameters of an adapter, which are trained in the place of the model's
    beyond: str | None = None  # of a run that goes on beyond what it was: how its learning rate goes on
    unadapted: tuple[str, ...] = ()  # kinds of parts with matrices that an adapter cannot be put on, among its targets
    mesh: str | None = None  # how processes share the run; None: it is one
    epochs: float | None = None  # how often the text is read in all; None of several texts

    def lines(self) -> list[str]:
        """It in words."""
        beside = f" and {count(self.n_beside)} beside the model" if self.n_beside else ""
        beside += f" and a teacher of {count(self.n_taught)}" if self.n_taught else ""
        size = (
            f"{count(self.n_params)} parameters{beside}, {counted(self.steps, 'step')}, {counted(self.tokens, 'token')}"
        )
        if self.epochs is not None and self.epochs > 1:
            size += f" (the text {self.epochs:,.{1 if self.epochs < 10 else 0}f} times)"
        where = self.device + (f", mesh {self.mesh}" if self.mesh else "")
        lines = [f"{size}, {prefixed(self.flops_per_token, 'FLOP')} a token, {self.precision} on {where}"]
        needs = [f"about {duration(self.seconds)}"] if self.seconds is not None else []
        if self.memory_nbytes is not None:
            needs.append(f"{gigabytes(self.memory_nbytes)} of memory{' a process' if self.mesh else ''}")
        needs.append(f"{gigabytes(self.disk_nbytes)} of disk" if self.disk_nbytes else "no disk")
        new = [f"not in the given weights, so new: {', '.join(self.fresh)}"] if self.fresh else []
        new += [self.beyond] if self.beyond else []
        if self.n_adapted is not None:
            stay = ", ".join(("embeddings", "heads", *self.unadapted))
            why = "so tokens that the weights never met, be it the end of an answer, are hardly learnt"
            new.append(f"an adapter of {count(self.n_adapted)} parameters is trained; {stay} stay as they are, {why}")
        going_on = f"goes on after step {self.done:,}; " if self.done else ""
        return [*lines, *new, f"{going_on}needs {', '.join(needs)}"]


def plan_of(job: Job, trainer: Trainer, keep_last: int, fresh: tuple[str, ...], epochs: float | None) -> RunPlan:
    """The plan of a run from its start, without a trial. Raises UsageError where the disk has no room for its checkpoints."""
    recipe, adapter, teacher, world = job.recipe, trainer.adapter, trainer.teacher, trainer.world
    n_params, n_beside, saved = sizes(trainer)
    disk_nbytes = 0
    if job.out is not None and world.leads and made(job.out) < recipe.steps:
        base = WEIGHT_NBYTES * n_params if adapter is not None else 0
        disk_nbytes = disk_needed(saved, keep_last + 1, job.out, base)
    return RunPlan(
        n_params=n_params,
        n_beside=n_beside,
        n_taught=0 if teacher is None else parameters(teacher.model.spec).total,
        n_adapted=None if adapter is None else sum(p.numel() for p in adapter.parameters()),
        unadapted=() if adapter is None else adapter.left_out(),
        mesh=str(world.mesh) if world.size > 1 else None,
        steps=recipe.steps,
        done=0,
        tokens=recipe.tokens,
        flops_per_token=flops_per_token(job.spec, job.data.load(recipe), trainer.objective, adapter, teacher),
        device=str(trainer.device),
        precision=recipe.precision,
        disk_nbytes=disk_nbytes,
        fresh=fresh,
        epochs=epochs,
    )


def flops_per_token(
    spec: ModelSpec,
    load: Workload,
    objective: Objective[Any] | None = None,
    adapter: Adapter | None = None,
    teacher: Teacher | None = None,
) -> float:
    """The FLOPs of training on one token, forward once and backward twice, masked pairs not counted.

    Those of what an objective trains beside the model, and of a teacher's answers, are among them. A decoder reads in one row
    with what it writes what an encoder would read. Weights under an adapter get no gradients, which is one of the two products
    of a backward pass. What a model writes it reads on the way (`answering_flops`).
    """
    beside = objective.auxiliary_flops(load) if objective is not None else 0
    beside += _forward(teacher.model.spec, load).flops if teacher is not None else 0
    forward = _forward(spec, load)
    learnt = 3 * forward.flops
    if adapter is not None:
        numel = sum(p.numel() for p in adapter.parameters())
        without_weights = sum(forward.get(term, 0) for term in ("scores", "values"))
        learnt = 2 * forward.flops + without_weights + 6 * numel * load.tokens
    updates = 1 if objective is None else objective.updates
    read = 0 if objective is None else objective.answering_flops(forward.flops, load)
    return (updates * (learnt + beside) + read) / load.tokens


def _forward(spec: ModelSpec, load: Workload) -> Cost:
    read = load if spec.encoder is not None else replace(load, query=load.query + load.memory, memory=0)
    return spec.cost(Place(), read) + spec.cost_ahead(Place(), read)


def sizes(trainer: Trainer) -> tuple[int, int, int]:
    """The parameters of the model, of what is trained beside it and not shared, and the bytes of a checkpoint."""
    kept = sum(nbytes for _, nbytes in kept_of(trainer))
    if (adapter := trainer.adapter) is not None:
        adapted = sum(p.numel() for p in adapter.parameters())
        return sum(p.numel() for p in adapter.base().values()), 0, WEIGHT_NBYTES * adapted + kept
    if trainer.pipeline is not None:  # a process has some of the layers
        spec = trainer.objective.spec
        n = sum(weight.numel for _, weight in tensors(spec, Place()))
        return n, 0, WEIGHT_NBYTES * n + kept_nbytes(spec, trainer.recipe.optimizer)
    model = {id(p): p.numel() for p in trainer.model.parameters()}
    held = {id(p): p.numel() for p in trainer.auxiliary.parameters()} if trainer.auxiliary is not None else {}
    own = sum(numel for key, numel in held.items() if key not in model)
    memory = sum(held.nbytes for held in trainer.memories.held.values()) if trainer.memories is not None else 0
    saved = WEIGHT_NBYTES * (sum(model.values()) + sum(held.values())) + kept + memory
    return sum(model.values()), own, saved


def disk_needed(one: int, kept: int, out: Path, once: int = 0) -> int:
    """The bytes that a run takes at most beside what is there: so many checkpoints `kept` of `one` each, with another being
    written, and `once` those of what is written once. Raises UsageError if fewer are free.
    """
    saved = ((out / name).rglob("*") for name in (CHECKPOINTS, BASE))
    there = sum(path.stat().st_size for path in chain.from_iterable(saved) if path.is_file())
    needed = max(one, one * (kept + 1) + once - there)
    place = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        remedy = "make room, then start again" if there else "choose another --out"
        raise UsageError(
            f"checkpoints in {out} need {gigabytes(needed)}, {gigabytes(needed - free)} more than are free; {remedy}"
        )
    return needed
