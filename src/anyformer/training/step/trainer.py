"""One optimiser step: micro-batches whose gradients add up to that of the whole batch, clipping, the update."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.disk.run_layout import AUXILIARY
from anyformer.errors import UsageError
from anyformer.layers.batch_norm import BatchNormSpec
from anyformer.layers.block import compile_layers
from anyformer.layers.context import Dropout
from anyformer.layers.cross_entropy import LossOptions
from anyformer.layers.router import RouterSpec
from anyformer.model import Transformer
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.spec import ModelSpec, Recompute
from anyformer.text import NOT_PREDICTED
from anyformer.training.cluster.gradients import add_gradients, counted_once, norm_over_stages
from anyformer.training.cluster.refusals import indivisible, refuse_on_mesh
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.data.feed import Rows, parts_of, rows_at
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Objective, Teacher
from anyformer.training.step.adapter import Adapter
from anyformer.training.step.auxiliary import built_beside, kept_at_a_distance
from anyformer.training.step.device import autocast
from anyformer.training.step.memories import NAME as MEMORY
from anyformer.training.step.memories import SegmentMemories, check_passes
from anyformer.training.step.optimizer import clip, optimizer_of, ways_of
from anyformer.training.step.routing import ExpertLoad, Routed, check_router_losses, correct, mixtures_of
from anyformer.training.step.state import check_model_tensors, model_tensors, set_model_tensors

OBJECTIVE = "objective"  # in a checkpoint


class StepResult(NamedTuple):
    """The report of one step."""

    loss: float  # plain cross-entropy, nats a predicted token, before the update
    tokens: int  # predicted
    router_loss: float | None = None  # the routers' losses, weighted; None without any
    load: ExpertLoad | None = None  # of the experts; None without experts
    parts: Mapping[str, float] | None = None  # as `loss`, of what else is predicted, by name; None: nothing
    # of those parts that count it, the share of labels that are the likeliest class
    right: Mapping[str, float] | None = None
    grad_norm: float = math.nan  # before clipping; as the next, not known before the update
    lr: float = math.nan

    @property
    def finite(self) -> bool:
        """Whether the update can be trusted."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Trainer:
    """A model, its optimiser and its recipe, and a second model where the objective asks for one; `step` is one update.

    Every process of the `world` is given the whole batch and computes a share of its rows. Dropout at step s is drawn from
    (seed, s, rank) alone, so that a run that goes on draws what it would have drawn.
    """

    def __init__(
        self,
        model: Transformer,
        recipe: Recipe,
        objective: Objective[Any],
        *,
        micro_tokens: int | None = None,
        compiled: bool = False,
        recompute: Recompute = "none",
        world: World = ALONE,
        teacher: Teacher | None = None,
    ) -> None:
        asked = objective.auxiliary()
        refuse_on_mesh(
            model.spec,
            recipe,
            world,
            tied=asked is not None and bool(asked.tied),
            compiled=compiled,
            beside=asked is not None,
            by_place=objective.by_place,
            one_pass=objective.one_pass,
            writes=objective.writes,
        )
        if micro_tokens is not None and (reason := indivisible(model.spec, recipe)):
            remedy = "leave --micro-tokens out, and make the batch smaller or use --recompute full"
            raise UsageError(f"{reason}; {remedy}")
        if recipe.lora is not None and asked is not None:
            raise UsageError(
                f"{recipe.objective.kind} trains a second model from the start beside this one; leave --lora out"
            )
        check_router_losses(model.spec, recipe)
        if recipe.memory is not None:
            check_passes(recompute, compiled)

        self.model, self.recipe, self.objective, self.world, self.teacher = model, recipe, objective, world, teacher
        self.device, self.micro_tokens = next(model.parameters()).device, micro_tokens or sys.maxsize
        self.before_change: Callable[[], object] = lambda: None  # is called before what a checkpoint holds is changed

        beside = None if asked is None else built_beside(model, asked, recipe.seed, world)
        self.auxiliary, self.disentangled = beside or (None, [])
        self.models = [model] if self.auxiliary is None else [model, self.auxiliary]
        for each in self.models:
            each.recompute = recompute
        if world.cp > 1:
            from anyformer.training.cluster.context_parallel import stretch_rows

            stretch_rows(model, world)
        self.adapter = None if recipe.lora is None else Adapter(model, recipe.lora, recipe.seed)
        self.memories = None if recipe.memory is None else SegmentMemories(model, recipe.memory, recipe.batch_rows)

        self.ways = ways_of(*self.models)
        self.parameters = list(self.ways)
        if world.tp > 1:
            from anyformer.training.cluster.tensor_parallel import keep_gradients_apart

            keep_gradients_apart(self.parameters)
        self.counted = counted_once(model, self.parameters)
        self.optimizer = optimizer_of(recipe.optimizer, model, self.ways)
        self.learning_rate = recipe.learning_rates(model.spec.stack.d_model)
        self.rate_shares = [group["lr"] / self.learning_rate.peak for group in self.optimizer.param_groups]
        # What learns by gradients changes in updates alone; what is kept beside it, a pass may change.
        held = chain(*(each.state_dict(keep_vars=True).values() for each in (self.kept, *self.models[1:])))
        self.untrained = [tensor for tensor in held if not tensor.requires_grad]

        self.options = LossOptions(recipe.label_smoothing, recipe.z_loss)
        self.mixtures = mixtures_of(model)
        self.router_losses = recipe.router.losses if self.mixtures.n_choices else ()
        self.dropout = rates(recipe.dropout, recipe.router.jitter if self.mixtures.n_choices else 0.0)
        if any(_trains_otherwise(each.spec) for each in self.models):
            self.dropout = self.dropout or Dropout()  # a pass with rates, be they 0, is one of training
        self.pipeline = None
        if world.pp > 1:
            from anyformer.training.step.pipeline import Pipeline, StagePasses

            passes = StagePasses(model, objective, recipe.precision, self.dropout, self.options)
            self.pipeline = Pipeline(passes, world)
        self.compiled = compiled
        if compiled:
            for each in (*self.models, *([] if teacher is None else [teacher.model])):
                compile_layers(each)

    @property
    def kept(self) -> nn.Module:
        """What a checkpoint holds: the model, or the adapter on weights that the run's directory holds."""
        return self.model if self.adapter is None else self.adapter

    def step(self, number: int, batch: Rows) -> StepResult:
        """Make update `number`, counted from 1. Unless loss and gradient are finite, the weights stay as they were."""
        if self.untrained:
            self.before_change()
        parts, real = self._micro(batch)
        result = self._update(number, batch, parts, real)
        for _ in range(self.objective.updates - 1):
            if result.finite:
                result = self._update(number, batch, parts, real)
        return result

    def _update(self, number: int, batch: Rows, parts: list[Rows], real: int) -> StepResult:
        reported = self._passes(number, batch, parts, real)
        norm = clip(self.parameters, self.recipe.clip, self.counted, self._norm)
        result = reported()._replace(grad_norm=float(norm), lr=self.learning_rate(number))
        self.before_change()
        if result.finite:
            for group, share in zip(self.optimizer.param_groups, self.rate_shares, strict=True):
                group["lr"] = result.lr * share
            with kept_at_a_distance(self.disentangled):
                self.optimizer.step()
            if result.load is not None and self.recipe.router.correction_speed:
                correct(self.mixtures, result.load, self.recipe.router)
            if self.memories is not None:
                self.memories.advance()
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def gradients(self, number: int, batch: Rows) -> StepResult:
        """Leave the gradient of the mean loss in the weights; what the update makes is not in the report yet."""
        return self._passes(number, batch, *self._micro(batch))()

    def _passes(self, number: int, batch: Rows, micro: list[Rows], real: int) -> Callable[[], StepResult]:
        """What `gradients` does of the parts of a batch, but for the report: who asks for that waits for the device."""
        tokens = int((batch.labels != NOT_PREDICTED).sum())
        over = max(1, tokens)  # a batch without a label has a loss of 0
        whole = self._foreseen(number, micro, real)
        self._draw(number)
        # By the number of a part, which a pipeline may make a pass of twice.
        nats_of, routers, loads, parts = dict[int, Tensor](), dict[int, Tensor](), dict[int, ExpertLoad](), {}

        def weighed(i: int, losses: Losses) -> Tensor:
            nonlocal whole
            total = losses.total / over
            if self.mixtures.n_choices:
                routed = Routed(self.mixtures, losses.notes, self.world)
                loads[i] = routed.load()
                if self.router_losses:
                    whole = whole or self._everywhere(loads, real)
                    router_loss = routed.loss(self.router_losses, whole)
                    routers[i], total = router_loss.detach(), total + router_loss
            nats_of[i], parts[i] = losses.each.sum(), losses.parts
            return total if i < real else total * 0  # others compute rows, and all make the same passes

        if self.pipeline is not None:
            self.pipeline.backward(micro, weighed)
        else:
            for i, rows in enumerate(micro):
                if self.world.sharded:
                    self._share_gradients(i == len(micro) - 1)
                weighed(i, self.losses(rows)).backward()
        add_gradients(self.model, self.parameters, self.world)

        def reported() -> StepResult:
            sums, of_routers = ([each[i] for i in range(real) if i in each] for each in (nats_of, routers))
            nats = torch.stack(sums).cpu().double().sum() if sums else torch.zeros((), dtype=torch.float64)
            router_nats = torch.stack(of_routers).sum() if of_routers else torch.zeros(())
            router_nats = self.world.whole(router_nats)
            found, router_loss = self.world.summed(torch.stack([nats, router_nats.cpu().double()])).tolist()
            means, right = self._means(parts, real)
            return StepResult(
                loss=found / over,
                tokens=tokens,
                router_loss=router_loss if self.router_losses else None,
                load=self._everywhere(loads, real) if loads else None,
                parts=means or None,
                right=right or None,
            )

        return reported

    def settle(self) -> None:
        """Leave no weights gathered that passes without a backward pass have gathered: what is saved is each process's part."""
        if self.world.sharded:
            from anyformer.training.cluster.sharding import settle

            for model in self.models:
                settle(model)

    def _share_gradients(self, last: bool) -> None:
        """Let FSDP2 add gradients up between copies of the model, where there are several, after the last part alone."""
        from anyformer.training.cluster.sharding import last_of_step

        for model in self.models:
            last_of_step(model, last)

    def _micro(self, batch: Rows) -> tuple[list[Rows], int]:
        """(this process's rows in as many parts as those of any other, how many of the parts count).

        Where a process has fewer parts, the batch's first row makes up for them. What the model itself is to say to them is said.
        """
        mine, most = self.world.share(len(batch.labels)), self.world.most(len(batch.labels))
        size = rows_of(batch, self.micro_tokens)
        if self.world.pp > 1:  # so that each stage has a part to compute at once
            size = min(size, -(-most // self.world.pp))
        parts = parts_of(rows_at(batch, mine), size)
        real = len(parts)
        parts += [rows_at(batch, slice(0, 1))] * (-(-most // size) - real)
        if self.objective.writes:
            by = LossContext(self.model, self.model.head(), self.device, self.dropout)
            with self.world.all_weights(self.model), torch.no_grad(), autocast(self.recipe.precision, self.device):
                parts = [self.objective.answered(by, rows) for rows in parts]
        return parts, real

    def _foreseen(self, number: int, parts: list[Rows], real: int) -> ExpertLoad | None:
        """The load of a batch that is computed in parts, for losses that go by it; else None."""
        if (len(parts) == 1 and self.pipeline is None) or not self.router_losses:
            return None
        self._draw(number)
        loads: dict[int, ExpertLoad] = {}

        def noted(i: int, losses: Losses) -> Tensor:
            loads[i] = Routed(self.mixtures, losses.notes, self.world).load()
            return losses.total

        if self.pipeline is not None:
            self.pipeline.passing(parts, noted, trains=True)
        else:
            with torch.no_grad():
                for i, rows in enumerate(parts):
                    noted(i, self.losses(rows))
        return self._everywhere(loads, real)

    def _everywhere(self, loads: Mapping[int, ExpertLoad], real: int) -> ExpertLoad:
        """The load of the whole batch, of which the first `real` ones are this process's."""
        mine = reduce(add, (loads[i] for i in range(real) if i in loads)).numbers() if real else loads[0].numbers() * 0
        return loads[0].of(self.world.summed(mine))

    def _norm(self, norm: Tensor) -> Tensor:
        """The norm of all gradients, of which `norm` is that of this process's."""
        return norm if self.pipeline is None else norm_over_stages(norm, self.device, self.world)

    def _means(
        self, micro: Mapping[int, Mapping[str, LossPart]], real: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """(nats a label of each part, the share that is right of those that count it); a batch without such a label has 0."""
        judged = {name: part.right is not None for name, part in micro[0].items()}
        if self.pipeline is not None:  # which the last stage knows
            judged = self.world.read(judged)[0]
        if not judged:
            return {}, {}
        counts = self.pipeline is None or self.pipeline.stage.last
        sums = torch.zeros(len(judged), 3, dtype=torch.float64)
        for i in range(real if counts else 0):
            each = (micro[i][name].numbers() for name in judged)
            sums += torch.tensor([(nats, n, right or 0) for nats, n, right in each], dtype=torch.float64)
        found = dict(zip(judged, self.world.summed(sums).tolist(), strict=True))
        means = {name: nats / max(1, n) for name, (nats, n, _) in found.items()}
        return means, {name: right / max(1, n) for name, (_, n, right) in found.items() if judged[name]}

    def _draw(self, number: int) -> None:
        """Have what is drawn in a step, by dropout or by a part of one's own, follow from the run's seed and the step alone."""
        torch.manual_seed(self.world.seed(self.recipe.seed, number))

    def losses(self, rows: Rows) -> Losses:
        """The losses of some rows, as they are trained on."""
        options = (self.device, self.dropout, self.options)
        memory = self.memories.of(rows) if self.memories is not None else None
        beside = None
        if self.auxiliary is not None:
            beside = LossContext(self.auxiliary, self.auxiliary.head(), *options)
        with autocast(self.recipe.precision, self.device):
            by = LossContext(self.model, self.model.head(), *options, beside, memory, self.teacher)
            losses = self.objective(by, rows)
        if self.memories is not None and memory is not None:
            self.memories.keep(rows, memory)
        return losses

    def over(self, batches: Iterable[Rows], function: Callable[[LossContext, Rows], Tensor]) -> Tensor:
        """The sum, over batches that the processes share out, of what a function makes of a pass; without gradients."""
        by = LossContext(self.model, self.model.head(), self.device)
        with torch.no_grad(), autocast(self.recipe.precision, self.device):
            found = reduce(add, (function(by, rows) * counts for rows, counts in self.world.dealt(batches)))
        return self.world.summed(found)

    def beside(self) -> dict[str, dict[str, Tensor]]:
        """Tensors that a checkpoint holds beside the model's: an auxiliary model's, the objective's, segment memories."""
        found = {} if self.auxiliary is None else {AUXILIARY: model_tensors(self.auxiliary)}
        found |= {OBJECTIVE: dict(told)} if (told := self.objective.told) else {}
        return found if self.memories is None else found | {MEMORY: self.memories.held}

    def restore_beside(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Bring it to what `beside` returned. Raises CheckpointError for that of another run."""
        if self.auxiliary is not None:
            found = dict(saved.get(AUXILIARY, {}))
            check_model_tensors(self.auxiliary, found)
            set_model_tensors(self.auxiliary, found)
        self.objective.told = saved.get(OBJECTIVE, {})
        if self.memories is not None:
            self.memories.restore(saved.get(MEMORY, {}))


def _trains_otherwise(spec: ModelSpec) -> bool:
    """Whether a pass of training computes something else than one of evaluation, without dropout too."""
    return any(spec.nested(BatchNormSpec)) or any(router.draws for router in spec.nested(RouterSpec))


def rates(dropout: DropoutSpec, router_jitter: float = 0.0) -> Dropout | None:
    """The rates as the model takes them; None where all are 0."""
    if not any(dropout.values().values()) and not router_jitter:
        return None
    return Dropout(**dropout.values(), router_jitter=router_jitter)


def rows_of(batch: Rows, micro_tokens: int) -> int:
    """How many rows of a batch are computed at once: of at most so many places, or one that is longer."""
    return max(1, micro_tokens // max(field[0].size for field in batch))
