"""The law of processes that share rows: loss, gradients, loads and weights of each step are those of one process, over gloo.

Tolerances are those of several processes in general (`test_same_steps`): sums of float32 in another order.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.families import PRESETS
from anyformer.layers.stretch import cut, joined
from anyformer.recipe import Recipe
from anyformer.resizing import shrink
from anyformer.training.cluster.context_parallel import GroupStretches, of_row, stretch_rows
from anyformer.training.cluster.mesh import Mesh, parse
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.world import World
from anyformer.training.objectives.objective import objective_of
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, recipe_for, trained
from tests.training.cluster.test_same_steps import EPSILON, GRADIENT, NAMES, alone, check_near

FAST = ("llama3-8b", "mixtral-8x7b", "t5-base")  # a sample; the others are slow tests
# Beside those of several processes in general: chosen keys, scores by distance, chunks, two kinds of
# attention side by side, positions that turn by another base.
MORE = ("deepseek-v3.2", "bloom-560m", "longformer-base-4096", "bigbird-base", "llama4-scout")
REFUSED = ("deepseek-v3-mtp", "granite-4.0-h-tiny")
FEW = ("llama3-8b", "mixtral-8x7b", "transformer-base", "xlnet-base", "bert-base")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in (*NAMES, *MORE)
        if name not in REFUSED
    ],
)
def test_two_processes_are_one(two: Processes, name: str) -> None:
    n = 2 if name in FAST else 5
    check_near(two(trained, name, "cp=2", n)[0], alone(name, n=n))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["cp=4", "dp=2,cp=2", "fsdp=2,cp=2", "fsdp=2,cp=2,zero=2", "tp=2,cp=2"])
def test_four_processes_are_one(four: Processes, mesh: str) -> None:
    """Clipped, in parts and recomputed, against whole batches."""
    for name, recompute in zip(FEW, ("none", "selective", "full", "none", "full"), strict=True):
        check_near(four(trained, name, mesh, 5, 1, ROWS, {}, recompute)[0], alone(name, n=5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_experts_are_spread_over_those_that_share_rows(four: Processes, name: str) -> None:
    check_near(four(trained, name, "fsdp=2,cp=2,ep=2", 3)[0], alone(name, n=3))


def plain(world: World, name: str, kernel: str | None) -> tuple[Tensor, dict[str, Tensor]]:
    """(the logits of this process's stretch of rows without padding or packing, the gradient of the squares of all)."""
    model = randomised(shrink(PRESETS[name].spec))
    if world.size > 1:
        world = replace(world, mesh=parse(f"cp={world.size}", world.size))
        stretch_rows(model, world)
    out = model(torch.arange(18).view(2, 9) % 7, kernel=kernel).logits
    out.square().sum().backward()
    grads = {name: world.whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return out.detach(), grads


@pytest.mark.parametrize("kernel", [None, "eager"])
@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-1b", "bert-base", "bloom-560m", "llama4-scout", "gemma3n-e4b"])
def test_plain_rows_that_do_not_divide(two: Processes, name: str, kernel: str | None) -> None:
    """Whose positions are a span, by which kernels and masks tell what can be left out."""
    wanted, of_one = plain(World(), name, kernel)
    each = two(plain, name, kernel)
    assert [found.shape[1] for found, _ in each] == [4, 5]
    torch.testing.assert_close(torch.cat([found for found, _ in each], 1), wanted, rtol=1e-4, atol=1e-5)
    largest = max(float(g.abs().max()) for g in of_one.values())
    for _, grads in each:
        assert grads.keys() == of_one.keys()
        for name, g in of_one.items():  # what cancels, as biases of keys, is as exact as what it is a sum of
            atol = GRADIENT * float(g.abs().max()) + EPSILON * largest
            torch.testing.assert_close(grads[name], g, rtol=0, atol=atol, msg=name)


def whole_rows(world: World, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(rows of n tokens joined of this process's stretch, the gradient of that stretch, the stretch of the rows)."""
    world = replace(world, mesh=parse(f"cp={world.size}", world.size))
    stretches = GroupStretches(of_row(world))
    rows = torch.arange(2.0 * n * 3).view(2, n, 3).to(dtype)
    mine = cut(rows, stretches).clone().requires_grad_()
    found = joined(mine, n, stretches, -2)
    (found * (rows + world.rank)).sum().backward()
    assert mine.grad is not None
    return found.detach(), mine.grad, cut(rows, stretches)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stretches_are_joined(two: Processes, n: int, dtype: torch.dtype) -> None:
    """Be they of one length or not, or empty; each gets the gradients that it has in all processes."""
    rows = torch.arange(2.0 * n * 3).view(2, n, 3).to(dtype)
    each = two(whole_rows, n, dtype)
    assert sorted(grad.shape[1] for _, grad, _ in each) == [n // 2, n - n // 2]
    for found, grad, own in each:
        assert torch.equal(found, rows)
        assert torch.equal(grad, own + (own + 1))


def test_dropout_differs_along_a_row() -> None:
    """Processes that share a row draw by themselves, those that share layers alike."""
    by_cp, by_tp = ([World(rank, 2, mesh=parse(mesh, 2)).seed(3, 4) for rank in (0, 1)] for mesh in ("cp=2", "tp=2"))
    assert by_cp[0] != by_cp[1]
    assert by_tp[0] == by_tp[1] == by_cp[0]


@pytest.mark.parametrize(
    ("preset", "changes", "says"),
    [
        ("granite-4.0-h-tiny", {}, "SSD has a state that goes from token to token; use --mesh dp=2"),
        ("deberta-v2-xlarge", {}, "Convolution mixes tokens with their neighbours"),
        ("reformer-enwik8", {}, "LSHAttention sorts all tokens of a row"),
        ("esm2-8m", {}, "TokenDropout counts the masks of whole texts"),
        ("switch-base-8", {}, "MoE has a capacity"),
        ("deepseek-v3-mtp", {}, "the loss of MultiToken is of whole rows"),
        ("electra-small", {}, "the loss of ReplacedTokens is of whole rows"),
        ("gpt2", {"seq_len": 1}, "rows of 1 tokens have no stretch for each of 2 processes"),
    ],
)
def test_what_rows_cannot_be_cut(preset: str, changes: dict[str, int], says: str) -> None:
    spec = shrink(PRESETS[preset].spec)
    recipe = recipe_for(spec, **changes)
    by_place = objective_of(recipe.objective, spec).by_place
    refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(dp=2)), by_place=by_place)
    with pytest.raises(UsageError, match=says):
        refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(cp=2)), by_place=by_place)


def test_layers_are_not_compiled() -> None:
    spec = shrink(PRESETS["gpt2"].spec)
    with pytest.raises(UsageError, match="--compile takes whole; leave it out"):
        refuse_on_mesh(spec, Recipe(), World(0, 2, mesh=Mesh(cp=2)), compiled=True)
