"""One way to train on a mesh: what it holds on each device, and how long its step takes.

Memory: Rajbhandari et al. 2019 (arXiv:1910.02054) and Korthikanti et al. 2022 (arXiv:2205.05198): the sequence is cut where
matrices are. Time: the roofline of each device's share, then what is sent. Tensor and context traffic waits for nobody and
adds to the arithmetic; traffic of experts runs beside it, and of that of data a share; both add only where they take longer. A
pipeline of p stages and m micro-batches is idle for (p - 1) / (v m) of the time (1F1B with v stretches of layers on each
device, Narayanan et al. 2021, arXiv:2104.04473, section 2.2), and holds up to p + (p - 1) / v micro-batches' activations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch

from anyformer.costs.hardware.devices import Device, Efficiency
from anyformer.costs.hardware.mesh import Facts, ParallelLayout, facts_of
from anyformer.costs.hardware.roofline import device_kind, operator_seconds, update_seconds
from anyformer.costs.report import source_tokens
from anyformer.costs.state import LAYOUTS, state_nbytes
from anyformer.layers.moe import MoESpec
from anyformer.observation.operators import Operator
from anyformer.observation.passes import TrainingPass, training_pass
from anyformer.spec import ModelSpec, Place, Recompute, cached_calls, tensors

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
HALF = 2  # bytes of what is sent of activations


@dataclass(frozen=True)
class Placement:
    """A way that was worked out; bytes and seconds are of the device that has most."""

    mesh: ParallelLayout
    micro_batch: int  # sequences computed at once by a replica
    micro_batches: int  # one after the other, a step
    recompute: Recompute
    memory: Mapping[str, int]  # bytes by item
    seconds: Mapping[str, float]  # of a step, by what takes them; they add up

    @property
    def nbytes(self) -> int:
        """On a device."""
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        """Of one optimiser step."""
        return sum(self.seconds.values())


class Placer:
    """Works ways out for one architecture, device and batch; what they share is computed once."""

    def __init__(
        self,
        spec: ModelSpec,
        where: Device,
        seq_len: int,
        rows: int,
        precision: str,
        shares: Efficiency,
        source_len: int | None = None,
    ) -> None:
        self.spec, self.where, self.seq_len, self.rows = spec, where, seq_len, rows
        self.source_len = source_tokens(spec, seq_len, source_len)
        self.precision, self.shares = precision, shares
        self.facts: Facts = facts_of(spec)
        self.dtype = "float32" if precision == "float32" else where.half
        self._work: dict[tuple[int, int, int, str], float] = {}
        self._seen: dict[str, Counter[Operator]] = {}
        self._kept: dict[Recompute, tuple[float, float, float, float]] = {}
        mixers = [mixer for block in spec.stack.blocks for mixer in block.mixers]
        self.n_mixers, self.mixtures = len(mixers), Counter(each for each in mixers if isinstance(each, MoESpec))
        trained = [weight for _, weight in tensors(spec, Place()) if weight.trainable]
        tables = [weight.numel for weight in trained if weight.role == "table"]
        experts = [weight.numel for weight in trained if weight.role != "table" and weight.used is not None]
        self.in_tables, self.largest_table, self.in_experts = sum(tables), max(tables, default=0), sum(experts)
        self.in_layers = sum(weight.numel for weight in trained) - self.in_tables - self.in_experts
        self.largest_layer = (self.in_layers + self.in_experts) / self.facts.n_layers

    def at(self, shares: Efficiency) -> Placer:
        """The same at other shares of the device's peaks; nothing is observed again."""
        other = copy(self)
        other.shares, other._work = shares, {}
        return other

    def memory(self, mesh: ParallelLayout, micro_batch: int, recompute: Recompute) -> dict[str, int]:
        """The bytes by item on the fullest device."""
        share = self._share(mesh)
        dense = math.ceil((self.in_layers * share + (self.in_tables if mesh.pp == 1 else self.largest_table)) / mesh.tp)
        experts = math.ceil(self.in_experts * share / mesh.tp / mesh.ep)
        parts = [
            state_nbytes(n, precision=self.precision, shards=shards, stage=mesh.zero if shards > 1 else 0)
            for n, shards in ((dense, mesh.shards), (experts, mesh.shards // mesh.ep))
        ]
        row, constant, passing, logits = self._activations(recompute)
        in_flight = min(mesh.pp + (mesh.pp - 1) / mesh.vp * (mesh.vp > 1), self._micro_batches(mesh, micro_batch))
        split = mesh.tp * mesh.cp
        kept = micro_batch * row * share / split
        first = kept * in_flight + micro_batch * passing / split + (logits / mesh.tp if mesh.pp == 1 else 0)
        last = kept + logits / mesh.tp
        buffers = 2 * HALF * self.largest_layer / mesh.tp if mesh.zero == 3 else 0
        buffers += 2 * HALF * micro_batch * self.seq_len * self.spec.stack.d_model / split if mesh.devices > 1 else 0
        return {
            "weights": sum(part.weights for part in parts),
            "gradients": sum(part.gradients for part in parts),
            "optimiser": sum(part.optimizer for part in parts),
            "activations": math.ceil(max(first, last) + constant * share / mesh.tp),
            "buffers": math.ceil(buffers),
        }

    def seconds(self, mesh: ParallelLayout, micro_batch: int, recompute: Recompute) -> dict[str, float]:
        """The seconds of a step by what takes them."""
        n, stages, share = self._micro_batches(mesh, micro_batch), mesh.pp, self._share(mesh)
        each = self._seconds(micro_batch, mesh.tp * mesh.cp, mesh.ep, recompute) * share
        tokens = micro_batch * self.seq_len / mesh.cp
        tensor, context, expert = (
            share * f(mesh, tokens, recompute) for f in (self._tensor, self._context, self._expert)
        )
        # what the tables give, forward and backward
        tensor += (2 if stages == 1 else 1) * self._all_reduce(mesh, tokens)
        pipeline = 0.0
        if stages > 1:
            pipeline = 2 * mesh.vp * tokens * self.spec.stack.d_model * HALF / mesh.tp / self._rate(mesh.devices)
        micro = each + tensor + context + pipeline
        data = self._data(mesh, n)
        return {
            "arithmetic": n * each,
            "tensor traffic": n * tensor,
            "context traffic": n * context,
            "pipeline traffic": n * pipeline,
            "pipeline idle": (stages - 1) / mesh.vp * micro,
            "data and expert traffic not hidden": max(n * expert + data - n * micro, (1 - self.shares.hidden) * data),
            "update": self._update(mesh),
        }

    def place(
        self, mesh: ParallelLayout, micro_batch: int, recompute: Recompute, memory: Mapping[str, int]
    ) -> Placement:
        """A way with its times."""
        n = self._micro_batches(mesh, micro_batch)
        return Placement(mesh, micro_batch, n, recompute, memory, self.seconds(mesh, micro_batch, recompute))

    def least_seconds(self, mesh: ParallelLayout, micro_batch: int, recompute: Recompute) -> float:
        """Seconds that a step takes at least: its arithmetic, and the pipeline's idleness."""
        n = self._micro_batches(mesh, micro_batch) + (mesh.pp - 1) / mesh.vp
        return n * self._share(mesh) * self._seconds(micro_batch, mesh.tp * mesh.cp, mesh.ep, recompute)

    def _micro_batches(self, mesh: ParallelLayout, micro_batch: int) -> int:
        """How many a replica computes one after the other in a step."""
        return self.rows // mesh.dp // micro_batch

    def _share(self, mesh: ParallelLayout) -> float:
        """Of all layers, those of the stage that has most."""
        return math.ceil(self.facts.n_layers / mesh.pp) / self.facts.n_layers

    def _observed(self, rows: int, recompute: Recompute) -> TrainingPass:
        """A pass over so many rows, under autocast, or with weights of 16 bits where the layout has them."""
        wide = self.precision in ("float32", "bf16")
        return training_pass(
            self.spec,
            batch=rows,
            seq_len=self.seq_len,
            source_len=self.source_len,
            half=self.precision == "bf16",
            dtype=torch.float32 if wide else torch.bfloat16,
            recompute=recompute,
            device=device_kind(self.where),
        )

    def _activations(self, recompute: Recompute) -> tuple[float, float, float, float]:
        """Bytes as `train` keeps them, unsharded: of a row, beside rows; and those that pass, of a row, beside rows."""
        if recompute not in self._kept:
            one, two = (self._observed(rows, recompute) for rows in (1, 2))
            held = [sum(each.kept.values()) for each in (one, two)]
            passing = [each.peak - kept for each, kept in zip((one, two), held, strict=True)]
            # What each row adds, and what is there without any.
            found = ((b - a, 2 * a - b) for a, b in (held, passing))
            row, beside, of_row, fixed = (max(0, nbytes) for pair in found for nbytes in pair)
            self._kept[recompute] = (row, beside, of_row, fixed)
        return self._kept[recompute]

    def _seconds(self, micro_batch: int, split: int, ep: int, recompute: Recompute) -> float:
        key = micro_batch, split, ep, recompute
        if key not in self._work:
            total = 0.0
            for o, times in self._operators(recompute).items():
                weights = o.weights // ep if o.part == "experts" else o.weights
                more = o._replace(flops=micro_batch * o.flops, weights=weights, nbytes=micro_batch * o.nbytes)
                worked, compute, moved, overhead = operator_seconds(
                    more, self.where, self.dtype, "training", self.shares
                )
                if self.where.rates is None:
                    worked = max(compute / split, moved / split, overhead)
                total += times * worked
            self._work[key] = total
        return self._work[key]

    def _operators(self, recompute: Recompute) -> Counter[Operator]:
        """Those of one row and how often each runs: what they compute and move goes with the rows, weights are read once."""
        if recompute not in self._seen:
            alike = self._seen[recompute] = Counter()
            for o in self._observed(1, recompute).operators:
                alike[o._replace(times=1)] += o.times
        return self._seen[recompute]

    def _rate(self, group: int) -> float:
        """Bytes a second of a device in a group of so many neighbours."""
        return self.where.nbytes_per_second_among(group) * self.shares.links

    def _tensor(self, mesh: ParallelLayout, tokens: float, recompute: Recompute) -> float:
        """Seconds of all layers' all-reduces: each mixer's result forward, its input's gradient backward."""
        return (3 if recompute == "full" else 2) * self.n_mixers * self._all_reduce(mesh, tokens)

    def _all_reduce(self, mesh: ParallelLayout, tokens: float) -> float:
        """Seconds of adding up the stream of so many tokens over the devices that share a layer."""
        if mesh.tp == 1:
            return 0.0
        volume = 2 * (mesh.tp - 1) / mesh.tp * tokens * self.spec.stack.d_model * HALF
        return volume / self._rate(mesh.tp)

    def _context(self, mesh: ParallelLayout, tokens: float, recompute: Recompute) -> float:
        """Seconds of bringing keys and values together, forward, and of adding up their gradients backward."""
        if mesh.cp == 1:
            return 0.0
        times = 3 if recompute == "full" else 2
        volume = (mesh.cp - 1) * tokens * self._kept_numbers * HALF / mesh.tp
        return times * volume / self._rate(mesh.tp * mesh.cp)

    def _expert(self, mesh: ParallelLayout, tokens: float, recompute: Recompute) -> float:
        """Seconds of bringing tokens to their experts and back, forward and backward; once a node over the network."""
        if mesh.ep == 1:
            return 0.0
        times, total = 6 if recompute == "full" else 4, 0.0
        group = mesh.ep * mesh.tp
        rate = self._rate(group)
        for moe, n in self.mixtures.items():
            router = moe.router
            copies = router.n_used
            nodes = group / self.where.devices_per_node
            if nodes > 1:  # one copy a node crosses the network, and it is handed on inside
                most = router.top_groups if router.n_groups > 1 else router.n_experts
                copies = min(most, nodes * (1 - (1 - 1 / nodes) ** router.n_used)) * (1 - 1 / nodes)
            else:
                copies *= 1 - 1 / mesh.ep
            total += n * times * tokens / mesh.tp * copies * self.spec.stack.d_model * HALF / rate
        return total

    def _data(self, mesh: ParallelLayout, n: int) -> float:
        """Seconds of adding gradients up and bringing weights together: from ZeRO's stage 2 on for every micro-batch."""
        layout, total = LAYOUTS[self.precision], 0.0
        # Copies add up in a round of gradients there and one back.
        sent = {0: 2 * layout.gradient, 1: layout.gradient + layout.weight, 2: n * (layout.gradient + layout.weight)}
        nbytes = sent.get(mesh.zero, n * (layout.gradient + 2 * layout.weight))
        share = 1 / mesh.pp
        for numel, group, spread in (
            ((self.in_layers + self.in_tables) * share / mesh.tp, mesh.shards, mesh.tp),
            (self.in_experts * share / mesh.tp / mesh.ep, mesh.shards // mesh.ep, mesh.tp * mesh.ep),
        ):
            if group == 1 or not numel:
                continue
            volume = numel * nbytes * (group - 1) / group
            local = max(1, min(group, self.where.devices_per_node // min(spread, self.where.devices_per_node)))
            crossing = group > local
            rate = self._rate(group * spread if crossing else 1)
            total += volume / (rate * (local if crossing else 1))
        return total

    def _update(self, mesh: ParallelLayout) -> float:
        share = 1 / mesh.pp / mesh.tp
        dense, experts = (self.in_layers + self.in_tables) * share, self.in_experts * share / mesh.ep
        if mesh.zero:
            dense, experts = dense / mesh.shards, experts / max(1, mesh.shards // mesh.ep)
        return update_seconds(dense + experts, self.where, self.shares)

    @cached_property
    def _kept_numbers(self) -> int:
        """Numbers of keys and values of a token in all layers."""
        kept = (each for each in cached_calls(self.spec) if each.how != "state" and each.every == 1)
        return sum(math.prod(shape) for each in kept for shape in each.shapes.values())
