"""Weak scaling from one process to two, beside bare loops of PyTorch's DDP and FSDP2 on the same model, rows and optimiser.

    python -m benchmarks.scaling --quick

Each of two processes has a thread and a core of its own and computes the same rows a step; alone, one of them does so while the
other sleeps. Turns are interleaved; the ratio is the time of a step alone over that of a step together, the median over turns.
A machine that does anything else spoils it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Transformer
from anyformer.recipe import AdamW, Constant, Recipe
from anyformer.text import Batch
from anyformer.training.cluster.joining import joined, started
from anyformer.training.cluster.launch import launch
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from benchmarks import measure, pair

ROWS, SEQ_LEN = 4, 256  # a process and step
SHAPE = pair.Shape(d_model=256, n_layers=6, n_heads=4, n_kv_heads=4, d_ff=768, vocab_size=4096)
RECIPE = Recipe(
    tokens=10**9,
    batch_tokens=2 * ROWS * SEQ_LEN,
    seq_len=SEQ_LEN,
    optimizer=AdamW(lr=1e-4),
    schedule=(Constant(),),
    clip=None,
)
LEAST = 0.97  # of what the bare loop of the same kind reaches
Step = Callable[[], float]


class WithLoss(nn.Module):
    """The model and its loss in one forward pass, which is what DDP takes."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of ids and labels [batch, token]."""
        hidden = self.model(ids, output_logits=False).last_hidden_state
        return cross_entropy(self.model.head(), hidden, labels)[0] / labels.numel()


def text(processes: int) -> Batch:
    """Return rows for so many processes."""
    drawn = np.random.default_rng(0).integers(0, SHAPE.vocab_size, (2 * ROWS, SEQ_LEN + 1))[: processes * ROWS]
    ids, labels = drawn[:, :-1], drawn[:, 1:]
    ones = np.ones_like(ids)
    return Batch(ids, labels, ones, np.tile(np.arange(SEQ_LEN), (len(ids), 1)), ones - 1)


def ours(world: World) -> Step:
    """Return a step as `anyformer train` makes it."""
    model = pair.ours(SHAPE)
    if world.sharded:
        shard(model, torch.device("cpu"), world)
    trainer, rows = Trainer(model, RECIPE, objective_of(RECIPE.objective, model.spec), world=world), text(world.size)
    return lambda: trainer.step(1, rows).loss


def bare(kind: str, world: World) -> Step:
    """Return a step of a loop as PyTorch's tutorials have it; "" is one process."""
    model: nn.Module = WithLoss(pair.ours(SHAPE))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp2":
        for block in model.model.stack.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rows = text(2 if kind else 1)
    here = world.share(len(rows.labels)) if kind else slice(None)
    ids, labels = (torch.from_numpy(np.ascontiguousarray(field[here])) for field in (rows.input_ids, rows.labels))

    def step() -> float:
        loss = model(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(world: World, n_turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return (the seconds of every step by name, the first loss by name): those alone of rank 0."""
    meshes = {"ours dp": Mesh(dp=2), "ours fsdp": Mesh(fsdp=2)}
    together = {name: ours(World(world.rank, 2, 2, mesh)) for name, mesh in meshes.items()} | {
        "DDP": bare("ddp", world),
        "FSDP2": bare("fsdp2", world),
    }
    alone = {"ours alone": ours(ALONE), "bare alone": bare("", world)}
    losses = {name: float(world.summed(torch.tensor(step()))) / 2 for name, step in together.items()}
    taken: dict[str, list[float]] = {name: [] for name in (*alone, *together)}
    for _ in range(n_turns + 1):
        for name, step in alone.items():
            if world.leads:
                taken[name].append(timed(step))
            dist.barrier()
        for name, step in together.items():
            dist.barrier()
            taken[name].append(timed(step))
    return {name: seconds[1:] for name, seconds in taken.items()}, losses


def scaling(taken: dict[str, list[float]], alone: str, together: str) -> float:
    """Return the share of perfect weak scaling."""
    return statistics.median(a / b for a, b in zip(taken[alone], taken[together], strict=True))


def main() -> None:
    options = measure.arguments(__doc__ or "")
    if not started():
        os.environ["OMP_NUM_THREADS"] = "1"
        sys.exit(launch(2, ["-m", "benchmarks.scaling", *sys.argv[1:]]))
    torch.set_num_threads(1)
    with joined() as world:
        taken, losses = compare(world, 5 if options.quick else 20)
        if not world.leads:
            return
        rows: list[dict[str, Any]] = []
        for mine, theirs in (("ours dp", "DDP"), ("ours fsdp", "FSDP2")):
            reached, bar = scaling(taken, "ours alone", mine), LEAST * scaling(taken, "bare alone", theirs)
            each = measure.rounded({name: taken[name] for name in ("ours alone", "bare alone", mine, theirs)})
            rows.append(
                measure.row(f"{mine}, 1 to 2 processes", reached, least=round(bar, 3), beside=theirs, seconds=each)
            )
        far = max(losses.values()) / min(losses.values()) - 1
        rows.append(measure.row("largest difference of the losses", far, most=1e-5))
        measure.record(
            "scaling", options.out, rows, {"threads": 1, "rows": ROWS, "seq_len": SEQ_LEN, "backend": "gloo"}
        )


if __name__ == "__main__":
    main()
