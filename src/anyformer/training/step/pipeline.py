"""Passes of a model of which each process has some layers, by PyTorch's schedules: a batch goes through in parts.

GPipe: Huang et al. 2019, arXiv:1811.06965; one forward, one backward: Narayanan et al. 2021, arXiv:2104.04473. Every process
makes the whole batch, so that ids, masks and labels stay: what travels is the stream, and what later layers read beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.context import Dropout
from anyformer.layers.cross_entropy import PLAIN, LossOptions
from anyformer.layers.stage import with_loss
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.training.cluster.sharding import device_mesh, last_of_step
from anyformer.training.cluster.world import World
from anyformer.training.data.feed import Rows, parts_of
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Objective
from anyformer.training.step.device import autocast

# Of a part of a batch, by its number, what this process minimises []. Where the layers of another give the losses, they are 0.
Weighed = Callable[[int, Losses], Tensor]


class Pipeline:
    """The stages of a model as one of them sees them. All processes of a stage and of a pipeline make the same calls."""

    def __init__(self, passes: StagePasses, world: World) -> None:
        self.passes, self.stage, self.device = passes, passes.stage, passes.device
        self.group = device_mesh(self.device, world)["pp"].get_group()
        self._schedules: dict[bool, tuple[Any, Any]] = {}  # the last one of each kind, with what it is for

    def backward(self, parts: Sequence[Rows], weighed: Weighed) -> None:
        """Add the gradients of what is minimised of each part to the weights of this process."""
        self._go(parts, weighed, trains=True)

    def passing(self, parts: Sequence[Rows], weighed: Weighed, *, trains: bool) -> None:
        """Make the passes alone, as in training or as in evaluation."""
        with torch.no_grad():
            self._go(parts, weighed, trains=trains, backward=False)

    def losses(self, rows: Rows) -> Losses:
        """Those of some rows, as in evaluation; in all stages but the last they are 0, and have no parts."""
        found: dict[int, Losses] = {}

        def noted(i: int, losses: Losses) -> Tensor:
            found[i] = losses
            return losses.total

        size = -(-len(rows.labels) // self.stage.n_stages)  # a part for each stage, where the rows are enough
        self.passing(parts_of(rows, size), noted, trains=False)
        return _joined([found[i] for i in sorted(found)])

    def _go(self, parts: Sequence[Rows], weighed: Weighed, *, trains: bool, backward: bool = True) -> None:
        size = max(len(rows.labels) for rows in parts)
        shape = (len(parts), size, tuple(field.shape[1:] for field in parts[0]))
        self.passes.begin(parts, size, weighed, trains)
        known, schedule = self._schedules.get(backward, (None, None))
        if known != shape:
            schedule = self._schedule(len(parts), backward)
            self._schedules[backward] = shape, schedule
        which = torch.arange(len(parts))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                schedule.step(part=which, target=which, return_outputs=False)
        except RuntimeError as error:  # the engine's words, around what a pass has raised
            raise error.__cause__ or error from None
        finally:
            schedule._stage.clear_runtime_states()
            self.passes.end()

    def _schedule(self, n: int, backward: bool) -> Any:
        """A schedule of n parts; the engine learns shapes by trying the first of them once more."""
        # It loads the compiler, for schedules of traced models.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        class Summing(PipelineStage):
            """Copies of a stage add up their gradients after the last part alone."""

            def backward_maybe_with_nosync(
                self, backward_type: Any, bwd_kwargs: Any, last_backward: bool = False
            ) -> Any:
                last_of_step(self.submod, last_backward)
                return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)

        stage = Summing(self.passes, self.stage.number, self.stage.n_stages, self.device, group=self.group)
        if not backward:
            return ScheduleGPipe(stage, n)
        kind = Schedule1F1B if n >= self.stage.n_stages else ScheduleGPipe
        return kind(stage, n, loss_fn=lambda loss, which: loss, scale_grads=False)


class StagePasses(nn.Module):
    """This stage's layers as the engine calls them: with what the stage before gave, and the number of a part of the batch."""

    def __init__(
        self,
        model: Transformer,
        objective: Objective[Any],
        precision: Precision,
        dropout: Dropout | None,
        options: LossOptions,
    ) -> None:
        super().__init__()
        stage = model.stack.stage
        assert stage is not None
        self.model, self.objective, self.stage, self.device = model, objective, stage, next(model.parameters()).device
        self.precision: Precision = precision
        self.how = (dropout, options)
        self.end()

    def begin(self, parts: Sequence[Rows], size: int, weighed: Weighed, trains: bool) -> None:
        """Parts of a batch, of at most `size` rows each."""
        self.parts, self.size, self.weighed = parts, size, weighed
        self.dropout, self.options = self.how if trains else (None, PLAIN)

    def end(self) -> None:
        """Hold nothing of the batch any longer."""
        self.parts, self.size, self.weighed, self.dropout, self.options = (), 0, None, None, PLAIN

    def forward(self, *carried: Tensor, part: Tensor) -> Any:
        """What the next stage is given, each [size, …] where a part has fewer rows too; of the last what is minimised []."""
        i, weighed = int(part), self.weighed
        rows = self.parts[i]
        n = len(rows.labels)
        assert weighed is not None
        with autocast(self.precision, self.device):
            asked = self.objective.asked(rows, self.device)
            out = self.model(**asked, dropout=self.dropout, carried=tuple(each[:n] for each in carried))
            if self.stage.last:
                by = LossContext(self.model, self.model.head(), self.device, self.dropout, self.options)
                return weighed(i, self.objective.losses(by, out, rows))
        nothing = torch.zeros(rows.labels.shape, device=self.device)
        loss = weighed(i, Losses(nothing.sum(), nothing, out.notes))
        state, *others = out.carried
        state = with_loss(state, loss) if loss.requires_grad else state
        return tuple(_filled(each, self.size) for each in (state, *others))


def _filled(x: Tensor, size: int) -> Tensor:
    """X [batch, …] with zeros up to so many rows, which the next stage leaves out: the engine has one shape for all parts."""
    return F.pad(x, (*(0, 0) * (x.dim() - 1), 0, size - len(x))).contiguous() if len(x) < size else x.contiguous()


def _joined(parts: Sequence[Losses]) -> Losses:
    """The losses of the parts of some rows as those of all."""
    first, each = parts[0], torch.cat([part.each for part in parts])
    classes = None if first.classes is None else torch.cat([part.classes for part in parts if part.classes is not None])
    summed = {name: [part.parts[name] for part in parts] for name in first.parts}
    more = {}
    for name, these in summed.items():
        right = [one.right for one in these if one.right is not None]
        nats, labels = (torch.stack([getattr(one, field) for one in these]).sum() for field in ("nats", "labels"))
        more[name] = LossPart(nats, labels, torch.stack(right).sum() if right else None)
    return Losses(torch.stack([part.total for part in parts]).sum(), each, (), more, classes)
