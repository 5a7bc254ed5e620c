"""One optimiser step: micro-batches whose gradients add up to that of the whole batch, clipping, the update."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
import torch

from anyformer.layers.batch_norm import BatchNormSpec
from anyformer.layers.router import RouterSpec
from anyformer.layers.tokens import Dropout
from anyformer.model import Transformer
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.spec import Recompute, Spec
from anyformer.text import NOT_PREDICTED
from anyformer.train.cross_entropy import LossOptions
from anyformer.train.device import autocast
from anyformer.train.objectives import Forward, Further, Losses, Objective, Pass, Rows
from anyformer.train.optim import clip, optimizer_of, set_learning_rate
from anyformer.train.routing import Load, Routed, correct, routers_of


class StepResult(NamedTuple):
    """What one step reports."""

    loss: float  # plain cross-entropy, nats a predicted token, before the update
    grad_norm: float  # before clipping
    lr: float
    tokens: int  # predicted
    router_loss: float | None = None  # the routers' losses, weighted; None without any
    load: Load | None = None  # of the experts; None without experts
    further: list[float] | None = (
        None  # as `loss`, of tokens one place after the next, two …; None where none are learnt
    )

    @property
    def finite(self) -> bool:
        """Whether the update can be trusted."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Trainer:
    """A model, its optimiser and its recipe; `step` is one update.

    Dropout at step s is drawn from (seed, s) alone, so that a run that goes on draws what it would have drawn.
    """

    def __init__(
        self,
        model: Transformer,
        recipe: Recipe,
        objective: Objective,
        *,
        micro_tokens: int | None = None,
        compiled: bool = False,
        recompute: Recompute = "none",
    ) -> None:
        self.model, self.recipe, self.objective = model, recipe, objective
        model.recompute = recompute
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = next(model.parameters()).device
        self.optimizer = optimizer_of(model, model.spec, recipe.optimizer)
        self.learning_rate = recipe.learning_rates(model.spec.stack.d_model)
        self.options = LossOptions(recipe.label_smoothing, recipe.z_loss)
        self.routers = routers_of(model)
        self.router_losses = recipe.router.losses if self.routers else ()
        self.dropout = rates(recipe.dropout, recipe.router.jitter if self.routers else 0.0)
        if any(map(_trains_otherwise, model.spec.nested())):
            self.dropout = self.dropout or Dropout()  # a pass with rates, be they 0, is one of training
        self._router_loss: float | None = None
        self._load: Load | None = None
        self._further: list[float] | None = None
        self.micro_tokens = micro_tokens or sys.maxsize
        self.forward: Forward = torch.compile(model) if compiled else model

    def step(self, number: int, batch: Rows) -> StepResult:
        """Make update `number`, counted from 1. Unless loss and gradient are finite, the weights stay as they were."""
        nats, tokens = self.gradients(number, batch)
        router_loss, load = self._router_loss, self._load
        norm = clip(self.parameters, self.recipe.clip)
        lr = self.learning_rate(number)
        result = StepResult(nats / tokens, float(norm), lr, tokens, router_loss, load, self._further)
        if result.finite:
            set_learning_rate(self.optimizer, lr)
            self.optimizer.step()
            if load is not None and self.recipe.router.correction_speed:
                correct(self.routers, load, self.recipe.router)
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def gradients(self, number: int, batch: Rows) -> tuple[float, int]:
        """Leave the gradient of the mean loss in the weights; return (nats, predicted tokens) of the batch."""
        tokens = int((batch.labels != NOT_PREDICTED).sum())
        parts = list(split(batch, self.micro_tokens))
        whole = self._foreseen(number, parts)
        self._draw(number)
        sums, routers, loads, further = [], [], [], []
        for rows in parts:
            losses = self.losses(rows)
            total = losses.total / tokens
            if self.routers:
                routed = Routed(self.routers, losses.notes)
                loads.append(routed.load())
                if self.router_losses:
                    routers.append(routed.loss(self.router_losses, whole or loads[0]))
                    total = total + routers[-1]
            total.backward()
            sums.append(losses.each.sum())
            further.append(losses.further)
        self._load = reduce(add, loads) if loads else None
        self._further = _means(further)
        self._router_loss = float(torch.stack(routers).detach().sum()) if routers else None
        return float(torch.stack(sums).cpu().double().sum()), tokens

    def _foreseen(self, number: int, parts: list[Rows]) -> Load | None:
        """Return the load of a batch that is computed in parts, for losses that go by it; else None."""
        if len(parts) == 1 or not self.router_losses:
            return None
        self._draw(number)
        with torch.no_grad():
            return reduce(add, (Routed(self.routers, self.losses(rows).notes).load() for rows in parts))

    def _draw(self, number: int) -> None:
        if self.dropout is not None:
            torch.manual_seed(_mixed(self.recipe.seed, number))

    def losses(self, rows: Rows) -> Losses:
        """Return the losses of some rows, as they are trained on."""
        with autocast(self.recipe.precision, self.device):
            by = Pass(self.forward, self.model.head(), self.device, self.dropout, self.options)
            return self.objective(by, rows)


def _trains_otherwise(part: Spec) -> bool:
    """Return whether a part computes something else in training, be all rates 0."""
    return isinstance(part, BatchNormSpec) or (isinstance(part, RouterSpec) and part.draws)


def _means(parts: Sequence[Sequence[Further]]) -> list[float] | None:
    """Return nats a label for each distance ahead, over all parts of a batch; a batch without such a label has 0."""
    each = [(sum(float(f.nats) for f in same), sum(int(f.labels) for f in same)) for same in zip(*parts, strict=True)]
    return [nats / max(1, labels) for nats, labels in each] or None


def rates(dropout: DropoutSpec, router_jitter: float = 0.0) -> Dropout | None:
    """Return the rates as the model takes them; None where all are 0."""
    if not any(dropout.values().values()) and not router_jitter:
        return None
    return Dropout(dropout.embedding, dropout.attention, dropout.residual, dropout.activation, router_jitter)


def split(batch: Rows, micro_tokens: int) -> Iterator[Rows]:
    """Yield the batch in parts of whole rows, each of at most `micro_tokens` places where a row is no longer."""
    size = max(1, micro_tokens // max(field.shape[1] for field in batch))
    for start in range(0, len(batch.labels), size):
        yield type(batch)(*(field[start : start + size] for field in batch))


def _mixed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)
