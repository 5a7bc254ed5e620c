"""The law of processes that share experts: loss, gradients, loads and weights of each step are those of one process, over gloo.

Tolerances are those of several processes in general (`test_same_steps`): sums of float32 in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from anyformer.families import PRESETS
from anyformer.layers.context import ForwardContext
from anyformer.layers.experts import Experts
from anyformer.layers.router import Router
from anyformer.layers.tokens import plain_tokens
from anyformer.layers.travel import travelling
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.parts import here, together
from anyformer.training.cluster.sharding import built, shard
from anyformer.training.cluster.world import World
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, trained, trained_in_float64
from tests.training.cluster.test_same_steps import alone, check_near

# Every kind of mixture: weights by softmax and sigmoid, groups, corrections, shared experts, identities, biases, capacities,
# weights before the expert, routers before attention, dense layers between. Not phi3.5-moe: noisy choices are drawn by which
# rows a process reads.
NAMES = (
    *(
        "mixtral-8x7b",
        "deepseek-v3-mtp",
        "gpt-oss-20b",
        "switch-base-8",
        "llama4-scout",
        "longcat-flash",
        "gemma4-26b-a4b",
    ),
    *(
        "deepseek-v2-lite",
        "jamba-v0.1",
        "dbrx",
        "nemotron-3-nano-30b-a3b",
        "qwen1.5-moe-a2.7b",
        "granite-4.0-h-tiny",
        "inkling",
    ),
)
ILL_CONDITIONED = (
    "gemma4-26b-a4b"  # whose rounding is most of the tolerance where one process accumulates: held in float64
)
FAST = ("mixtral-8x7b", "deepseek-v3-mtp")  # a sample; the others are slow tests


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_two_processes_are_one(two: Processes, name: str) -> None:
    if name == ILL_CONDITIONED:
        found, wanted = two(trained_in_float64, name, "fsdp=2,ep=2")[0], trained_in_float64(None, name, "")
        assert wanted is not None
        check_near(found, wanted, times=1e-6)
    else:
        n = 2 if name in FAST else 5
        check_near(two(trained, name, "fsdp=2,ep=2", n)[0], alone(name, n=n))


@pytest.mark.slow
def test_weights_that_stay_gathered(two: Processes) -> None:
    check_near(two(trained, "mixtral-8x7b", "fsdp=2,ep=2,zero=2", 3)[0], alone("mixtral-8x7b", n=3))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp=4,ep=2", "dp=2,fsdp=2,ep=2", "fsdp=4,ep=4"])
def test_four_processes_are_one(four: Processes, mesh: str) -> None:
    """Clipped, in parts and recomputed, against whole batches."""
    for name, recompute in (("mixtral-8x7b", "full"), ("deepseek-v3-mtp", "selective")):
        check_near(four(trained, name, mesh, 5, 1, ROWS, {}, recompute)[0], alone(name, n=5))


@pytest.mark.slow
def test_a_process_without_rows(four: Processes) -> None:
    """It makes a pass that counts for nothing, for its experts serve the others."""
    check_near(four(trained, "mixtral-8x7b", "fsdp=4,ep=4", 2, 1, 3)[0], alone("mixtral-8x7b", n=2, rows=3))


@dataclass(frozen=True)
class Looped:
    """One process that has all experts, as `Travel`."""

    n_experts: int
    size: int = 1

    def loads(self, expert: Tensor) -> tuple[list[int], list[int]]:
        n = int((expert >= 0).sum())
        return [n], [n]

    def exchange(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        assert list(sends) == list(receives)
        return rows.clone()


@pytest.mark.parametrize("chosen", ["some", "none", "one"])
def test_rows_that_travel_are_rows_that_stay(chosen: str) -> None:
    """Values and gradients, with choices of nothing, experts that nobody chooses, and no choices at all."""
    model = randomised(shrink(PRESETS["mixtral-8x7b"].spec))
    experts = next(module for module in model.modules() if isinstance(module, Experts))
    n, width = experts.spec.n_experts, experts.place.d_model
    draw = torch.Generator().manual_seed(3)
    picks = torch.randint(-1, n, (11, 2), generator=draw)
    picks = {"some": picks, "none": torch.full_like(picks, -1), "one": torch.ones_like(picks)}[chosen]
    x, shares = torch.randn(11, width, generator=draw), torch.rand(11, 2, generator=draw)
    out = torch.randn(11, width, generator=draw)
    serve = partial(experts.served, context=ForwardContext(plain_tokens(11, torch.device("cpu")), {}))
    found: list[list[Tensor]] = []
    for way in (serve, partial(travelling, travel=Looped(n), served=serve)):
        given = [x.clone().requires_grad_(), shares.clone().requires_grad_()]
        made = way(given[0], picks, given[1])
        experts.zero_grad()
        (made * out).sum().backward()
        weights = [p.grad for p in experts.parameters() if p.grad is not None]
        found.append([made, *(torch.zeros_like(t) if t.grad is None else t.grad for t in given), *weights])
    for mine, one in zip(*found, strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-5, atol=1e-5)


def held(world: World, name: str) -> tuple[dict[str, Tensor], float]:
    """(the whole weights, the share of the experts' numbers that is here)."""
    world = replace(world, mesh=parse("fsdp=2,ep=2", world.size))
    model = built(shrink(PRESETS[name].spec), 5, torch.device("cpu"), world)
    whole = {name: together(p.detach()) for name, p in model.named_parameters()}
    own = [p for module in model.modules() if isinstance(module, Experts) for p in module.parameters()]
    return whole, sum(here(p.detach()).numel() for p in own) / sum(p.numel() for p in own)


@pytest.mark.parametrize("name", ["mixtral-8x7b", pytest.param("gpt-oss-20b", marks=pytest.mark.slow)])
def test_parts_start_as_the_whole_does(two: Processes, name: str) -> None:
    """To the bit, and a process has half of the experts."""
    one = dict(build(shrink(PRESETS[name].spec), 5).named_parameters())
    for mine, share in two(held, name):
        assert mine.keys() == one.keys()
        assert [name for name, p in one.items() if not torch.equal(mine[name], p.detach())] == []
        assert share == 0.5


def gradients(world: World) -> dict[str, Tensor]:
    """Of the squares of all logits, each process with rows of its own, where all choose the first two of four experts."""
    model = randomised(shrink(PRESETS["gpt-oss-20b"].spec))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Router):
                assert module.bias is not None
                assert module.spec.n_experts >= 2 * module.spec.top_k
                module.bias[: module.spec.top_k] += 1e4
    if world.size > 1:
        model = shard(model, torch.device("cpu"), replace(world, mesh=parse("fsdp=2,ep=2", world.size)))
    ids = torch.arange(24).view(4, 6) % 7
    model(ids[world.rank :: world.size]).logits.square().sum().backward()
    return {name: together(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def test_experts_that_nobody_chooses(two: Processes) -> None:
    """A process whose experts have no rows takes part in every exchange, and its experts' gradient is nothing."""
    one = gradients(World())
    unused = [name for name, g in one.items() if ".experts." in name and not g[2:].any() and g[:2].any()]
    assert unused
    for mine in two(gradients):
        assert mine.keys() == one.keys()
        for name, wanted in one.items():
            torch.testing.assert_close(mine[name], wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()), msg=name)
