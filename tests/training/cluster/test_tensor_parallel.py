"""The law of processes that share each layer: loss, gradients and weights of each step are those of one process, over gloo.

Tolerances are those of several processes in general (`test_same_steps`): sums of float32 in another order.
"""

from __future__ import annotations

import pytest
import torch

from anyformer.errors import InputError
from anyformer.families import PRESETS
from anyformer.layers.cross_entropy import LossOptions, cross_entropy
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.parts import here, together
from anyformer.training.cluster.sharding import built, shard
from anyformer.training.cluster.world import World
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, trained
from tests.training.cluster.test_same_steps import NAMES, alone, check_near

FAST = ("llama3-8b", "deepseek-v3-mtp", "t5-base")  # a sample; the others are slow tests
# By four: fewer key/value heads than processes, one of them, experts, two stacks, two heads.
FEW = ("llama3-8b", "mixtral-8x7b", "transformer-base", "falcon-7b", "bert-base")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in (*NAMES, "bloom-560m", "phi3.5-moe")
    ],
)
def test_two_processes_are_one(two: Processes, name: str) -> None:
    n = 2 if name in FAST else 5
    check_near(two(trained, name, "tp=2", n)[0], alone(name, n=n))


def test_terms_of_a_sum_have_a_gradient_each(two: Processes) -> None:
    """An LSTM's two biases, which autograd gives one tensor: parts of a batch added up in it twice, clipping scaled it twice."""
    check_near(two(trained, "awd-lstm-ptb", "tp=2", 2, 4)[0], alone("awd-lstm-ptb", n=2, micro_rows=4))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=2,tp=2", "fsdp=2,tp=2", "tp=4"])
def test_four_processes_are_one(four: Processes, mesh: str) -> None:
    """Clipped, in parts and recomputed, against whole batches."""
    for name, recompute in zip(FEW, ("none", "selective", "full", "none", "full"), strict=True):
        check_near(four(trained, name, mesh, 5, 1, ROWS, {}, recompute)[0], alone(name, n=5))


LABELS = torch.tensor([[4, 0, 100, -100], [50, 51, -100, 99]])
OPTIONS = LossOptions(label_smoothing=0.1, z_loss=1e-3)


def losses(world: World, name: str) -> tuple[torch.Tensor, ...]:
    """(the loss, each one, the gradient by hidden states, the logits) with a vocabulary of 101 cut in two, or whole."""
    spec = shrink(PRESETS[name].spec)
    model = randomised(spec)
    if world.size > 1:
        model = shard(model, torch.device("cpu"), World(world.rank, world.size, mesh=parse("tp=2", 2)))
    ids = LABELS.clamp(min=0)
    with torch.no_grad():
        out = model(ids)
    hidden = out.last_hidden_state.detach().requires_grad_()
    total, each = cross_entropy(model.head(), hidden, LABELS, OPTIONS)
    total.backward()
    assert hidden.grad is not None
    return total.detach(), each, hidden.grad, out.logits


@pytest.mark.parametrize("name", ["gpt2", "gemma2-2b"])
def test_the_vocabulary_is_shared_out(two: Processes, name: str) -> None:
    """Smoothed, with the normaliser's loss, capped; labels in either part, the last id among them; evaluation has all logits."""
    for mine in two(losses, name):
        for found, wanted in zip(mine, losses(World(), name), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def unknown(world: World, token: int) -> str:
    spec = shrink(PRESETS["gpt2"].spec)
    model = built(spec, 0, torch.device("cpu"), World(world.rank, world.size, mesh=parse("tp=2", 2)))
    try:
        model(torch.tensor([[1, token]]))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("token", [101, -1])
def test_a_token_that_no_process_has(two: Processes, token: int) -> None:
    assert two(unknown, token) == [f"there is no token {token}; this table has those from 0 to 100"] * 2


def held(world: World, name: str) -> tuple[dict[str, torch.Tensor], float]:
    """(the whole weights, the share of their numbers that is here)."""
    spec = shrink(PRESETS[name].spec)
    model = built(spec, 5, torch.device("cpu"), World(world.rank, world.size, mesh=parse("tp=2", 2)))
    whole = {name: together(p.detach()) for name, p in model.named_parameters()}
    return whole, sum(here(p.detach()).numel() for p in model.parameters()) / sum(p.numel() for p in whole.values())


@pytest.mark.parametrize("name", ["gpt2", "albert-base"])
def test_parts_start_as_the_whole_does(two: Processes, name: str) -> None:
    """To the bit, and a process has about half of it."""
    one = dict(build(shrink(PRESETS[name].spec), 5).named_parameters())
    for mine, share in two(held, name):
        assert mine.keys() == one.keys()
        assert [name for name, p in one.items() if not torch.equal(mine[name], p.detach())] == []
        assert 0.45 < share < 0.75
