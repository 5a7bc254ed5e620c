"""The law of several processes: loss, gradients, loads and weights of each step are those of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anyformer.families import PRESETS
from anyformer.layers import RouterSpec
from anyformer.recipe import FillInTheMiddle
from anyformer.resizing import resize, shrink
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.world import ALONE, World
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import ROWS, Steps, trained, trainer_for
from tests.training.noisy import text_data, tokenizer
from tests.training.test_objectives_noise import SEQ_LEN, recipe

# Every kind: tied and untied, windows, mixtures, latents, predictions further ahead, sinks, parallel branches, encoders,
# encoders beside decoders, shared layers, two streams, states.
NAMES = (
    *("gpt2", "llama3-8b", "gemma3-1b", "mixtral-8x7b", "deepseek-v3-mtp", "gpt-oss-20b", "falcon-7b", "bert-base"),
    *("t5-base", "deberta-v3-base-generator", "albert-base", "transformer-base", "xlnet-base", "granite-4.0-h-tiny"),
)
KEYS_OF_EARLIER = "gemma3n-e4b"  # on other meshes rounding grows from step to step
# What several layers read, an encoder's output or an earlier layer's keys, gets their gradients added up in the order of
# autograd, which FSDP2's hooks are part of.
READ_BY_SEVERAL = ("deepseek-v3-mtp", "t5-base", "transformer-base", KEYS_OF_EARLIER)
FEW = ("llama3-8b", "mixtral-8x7b", "transformer-base")
FAST = (
    "gpt2",
    "mixtral-8x7b",
    "t5-base",
    "albert-base",
    KEYS_OF_EARLIER,
)  # among what is quick; the others are slow tests
# Against one process that accumulates other micro-batches, sums are in another order: seen up to 2.3e-6 of a tensor's
# largest element. What cancels (biases of keys, saturated attention) is as exact as what it is a sum of over rows, each
# rounded to float32's epsilon of the largest.
GRADIENT, LOSS, EPSILON = 1e-5, 1e-6, ROWS * 2.0**-23


def check_near(found: Steps, wanted: Steps, times: float = 1.0) -> None:
    """Within tolerances that are so many times those of float32."""
    for mine, one, rtol in ((found.losses, wanted.losses, LOSS), (found.norms, wanted.norms, 10 * LOSS)):
        ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (mine, one))
        torch.testing.assert_close(ours, theirs, rtol=times * rtol, atol=0)
    assert found.loads == wanted.loads
    for mine, one in zip([*found.gradients, found.weights], [*wanted.gradients, wanted.weights], strict=True):
        assert mine.keys() == one.keys()
        largest = max(float(tensor.abs().max()) for tensor in one.values())
        far = {
            name: (float((mine[name] - tensor).abs().max()), float(tensor.abs().max())) for name, tensor in one.items()
        }
        assert {
            name: each for name, each in far.items() if each[0] > times * (GRADIENT * each[1] + EPSILON * largest)
        } == {}


def check_equal(found: Steps, wanted: Steps, last_digit: float = 0.0) -> None:
    """Weights at most so far apart, by their own size."""
    assert found.losses == wanted.losses
    torch.testing.assert_close(torch.tensor(found.norms), torch.tensor(wanted.norms), rtol=LOSS, atol=0)
    assert found.loads == wanted.loads
    for mine, one in zip([*found.gradients, found.weights], [*wanted.gradients, wanted.weights], strict=True):
        apart = last_digit if one is wanted.weights else 0.0
        assert mine.keys() == one.keys()
        unequal = [name for name in one if not torch.equal(mine[name], one[name])]
        assert [name for name in unequal if not (apart and torch.allclose(mine[name], one[name], apart, 0))] == []


def check_equal_of_shards(found: Steps, wanted: Steps) -> None:
    """PyTorch's fused Adam rounds a shard of four numbers otherwise than a tensor of eight: one number in a hundred."""
    check_equal(found, wanted, 2.0**-23)


def alone(name: str, **how: Any) -> Steps:
    found = trained(None, name, "", **how)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in (*NAMES, KEYS_OF_EARLIER)],
)
@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2"])
def test_two_processes_are_one_to_the_bit(two: Processes, mesh: str, name: str) -> None:
    """Without clipping: the norm of gradients that are shared out is a sum in another order."""
    changes = {"clip": None if "fsdp" in mesh else 0.5}
    n = 2 if name in FAST else 5
    check = check_equal if "fsdp" not in mesh else check_near if name in READ_BY_SEVERAL else check_equal_of_shards
    check(two(trained, name, mesh, n, ROWS, ROWS, changes)[0], alone(name, n=n, micro_rows=4, changes=changes))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=4", "fsdp=4", "dp=2,fsdp=2", "dp=2,fsdp=2,zero=2"])
def test_four_processes_are_one(four: Processes, mesh: str) -> None:
    """Clipped, in parts and recomputed, against whole batches."""
    for name, recompute in zip(FEW, ("none", "selective", "full"), strict=True):
        check_near(four(trained, name, mesh, 3, 1, ROWS, {}, recompute)[0], alone(name, n=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2"])
def test_compiled_layers_are_shared_out(two: Processes, mesh: str, name: str) -> None:
    found = two(trained, name, mesh, 2, ROWS, ROWS, {"clip": None}, "none", True)[0]
    check_near(found, alone(name, n=2, changes={"clip": None}))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=4", "fsdp=4"])
def test_rows_need_not_divide(four: Processes, mesh: str) -> None:
    """Pairs make batches of any number of rows, and of fewer than there are processes."""
    for name, rows in (("transformer-base", 1), ("transformer-base", 5), ("mixtral-8x7b", 3)):
        check_near(four(trained, name, mesh, 2, 1, rows)[0], alone(name, n=2, rows=rows))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_in_two_processes(two: Processes, name: str) -> None:
    if any(isinstance(part, RouterSpec) and part.draws for part in PRESETS[name].spec.nested()):
        pytest.skip("each process draws the experts of its own rows; over tp they draw as one: test_tensor_parallel")
    wanted = alone(name, n=5, micro_rows=ROWS // 2, changes={"clip": None})
    for mesh, check in (("dp=2", check_equal), ("fsdp=2", check_near)):
        check(two(trained, name, mesh, 5, ROWS, ROWS, {"clip": None})[0], wanted)


def filled(world: World | None, mesh: str) -> list[tuple[int, int, float, float]]:
    """Width, labels, loss and norm of three steps on texts whose middle may stand last: rows as long as they are."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    spec, how = resize(shrink(PRESETS["llama3-8b"].spec), vocab_size=tokenizer().vocab_size), recipe(FillInTheMiddle())
    trainer, feed, found = trainer_for(spec, how, world), text_data().feed(how), []
    for number in range(1, 4):
        rows = next(feed)
        step = trainer.step(number, rows)
        found.append((rows.labels.shape[1], step.tokens, step.loss, step.grad_norm))
    return found


@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2", "tp=2", "cp=2", "pp=2"])
def test_rows_of_any_length_are_shared_out(two: Processes, mesh: str) -> None:
    alone = filled(None, "")
    assert {width % 2 for width, *_ in alone} == {0, 1}
    assert min(width for width, *_ in alone) > SEQ_LEN
    for found in two(filled, mesh):
        for mine, one in zip(found, alone, strict=True):
            assert mine == pytest.approx(one, rel=2e-5)
