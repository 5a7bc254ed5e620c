"""The law of processes that have some of the layers each: loss, gradients, loads and weights are those of one process, over gloo.

Tolerances are those of several processes in general (`test_same_steps`): sums of float32 in another order.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.errors import UsageError
from anyformer.families import PRESETS
from anyformer.hub import load
from anyformer.layers.stage import StageInput
from anyformer.model import build
from anyformer.recipe import Recipe
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.study.train import prepare_training
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.sharding import built
from anyformer.training.cluster.stages import _cut, stages, unstaged
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import LossContext, Losses, objective_of
from anyformer.training.run import RunOptions
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import (
    ROWS,
    batch_for,
    of_all_stages,
    recipe_for,
    trained,
    trained_in_float64,
    trainer_for,
)
from tests.training.cluster.test_same_steps import EPSILON, GRADIENT, KEYS_OF_EARLIER, LOSS, NAMES, alone, check_near

FAST = ("gpt2", "mixtral-8x7b", "deepseek-v3-mtp")  # tied tables, losses over all layers' routers, tokens further ahead
REFUSED = ("t5-base", "transformer-base")
# Beside those of several processes in general: keys lent across the cut and streams side by side, ALiBi, chosen keys.
MORE = (KEYS_OF_EARLIER, "bloom-560m", "deepseek-v3.2", "olmo2-1b")
FEW = ("gpt2", "llama3-8b", "mixtral-8x7b", "deepseek-v3-mtp", "albert-base")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in (*NAMES, *MORE)
        if name not in REFUSED
    ],
)
def test_two_processes_are_one(two: Processes, name: str) -> None:
    n = 2 if name in (*FAST, KEYS_OF_EARLIER) else 5
    check_near(two(trained, name, "pp=2", n)[0], alone(name, n=n))


def test_parts_of_a_batch_need_not_be_alike(two: Processes) -> None:
    """Five rows by two: the last part has one, and so has the only part of a batch of one."""
    for name, rows in (("mixtral-8x7b", 5), ("llama3-8b", 1)):
        check_near(two(trained, name, "pp=2", 2, 2, rows)[0], alone(name, n=2, rows=rows))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=2,pp=2", "tp=2,pp=2", "fsdp=2,pp=2", "fsdp=2,pp=2,zero=2", "cp=2,pp=2"])
def test_four_processes_are_one(four: Processes, mesh: str) -> None:
    """Clipped, in parts and recomputed, against whole batches."""
    for name, recompute in zip(FEW, ("none", "selective", "full", "none", "full"), strict=True):
        if not ("cp" in mesh and name == "deepseek-v3-mtp"):
            check_near(four(trained, name, mesh, 3, 1, ROWS, {}, recompute)[0], alone(name, n=3))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=2,pp=2", "tp=2,pp=2", "cp=2,pp=2"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_keys_are_lent_across_the_cut(four: Processes, mesh: str, recompute: str) -> None:
    """In float64, a millionth of the tolerance: in float32 rounding grows from step to step, up to 4.8e-5 in the second."""
    how = (3, 1, ROWS, {}, recompute)
    wanted = trained_in_float64(None, KEYS_OF_EARLIER, "", 3)
    found = four(trained_in_float64, KEYS_OF_EARLIER, mesh, *how)[0]
    assert wanted is not None
    check_near(found, wanted, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_experts_are_spread_in_a_stage(four: Processes, name: str) -> None:
    check_near(four(trained, name, "fsdp=2,ep=2,pp=2", 3)[0], alone(name, n=3))


def deeper(name: str) -> ModelSpec:
    """Of four layers at least."""
    spec = shrink(PRESETS[name].spec)
    blocks = spec.stack.blocks
    return spec.but(stack=replace(spec.stack, blocks=blocks * -(-4 // len(blocks))))


def of_deeper(world: World, name: str, mesh: str) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """(losses of two steps, by name the gradients of the first and the weights behind them) of four layers or more."""
    world = replace(world, mesh=parse(mesh, world.size)) if world.size > 1 else ALONE
    spec = deeper(name)
    trainer = trainer_for(spec, recipe_for(spec), world)
    trainer.gradients(1, batch_for(spec, 1))
    grads = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.optimizer.zero_grad(set_to_none=True)
    losses = [trainer.step(n, batch_for(spec, n)).loss for n in (1, 2)]
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    return losses, [of_all_stages(world, each) for each in (grads, weights)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "mixtral-8x7b", "gemma3-1b", "deepseek-v3"])
def test_four_stages_are_one(four: Processes, name: str) -> None:
    """The tied table of the first and the last, past two that have none of it; corrections of routers in two of them."""
    losses, tensors = four(of_deeper, name, "pp=4")[0]
    wanted, of_one = of_deeper(ALONE, name, "")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=LOSS, atol=0)
    for mine, one in zip(tensors, of_one, strict=True):
        assert mine.keys() == one.keys()
        largest = max(float(each.abs().max()) for each in one.values())
        for key, each in one.items():
            atol = GRADIENT * float(each.abs().max()) + EPSILON * largest
            torch.testing.assert_close(mine[key], each, rtol=0, atol=atol, msg=key)


def evaluated(world: World, name: str, rows: int) -> Losses:
    """The losses of rows as in evaluation; on a mesh what this process knows of them."""
    spec = shrink(PRESETS[name].spec)
    objective, batch = objective_of(recipe_for(spec).objective, spec), batch_for(spec, 1, rows)
    if world.size == 1:
        model = trainer_for(spec, recipe_for(spec), ALONE).model
        with torch.no_grad():
            return objective(LossContext(model, model.head(), torch.device("cpu")), batch)._replace(notes=())
    world = replace(world, mesh=parse("pp=2", 2))
    trainer = trainer_for(spec, recipe_for(spec, dropout=recipe_for(spec).dropout.but(residual=0.5)), world)
    assert trainer.pipeline is not None
    return trainer.pipeline.losses(batch)


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_are_validated_in_parts(two: Processes, rows: int) -> None:
    """Without dropout; the last stage knows the losses, and those of tokens further ahead."""
    first, last = two(evaluated, "deepseek-v3-mtp", rows)
    wanted = evaluated(ALONE, "deepseek-v3-mtp", rows)
    assert not first.each.any()
    assert first.each.shape == wanted.each.shape
    torch.testing.assert_close(last.each, wanted.each, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last.total, wanted.total, rtol=1e-5, atol=0)
    assert last.parts.keys() == wanted.parts.keys()
    for name, part in wanted.parts.items():
        torch.testing.assert_close(last.parts[name].nats, part.nats, rtol=1e-5, atol=0)
        assert int(last.parts[name].labels) == int(part.labels)


def figures_of(world: World, objective: str, data: Path, out: Path) -> dict[str, Any]:
    """All that a run says: of its steps, of the whole validation text, and of how right the finished model is there."""
    world = replace(world, mesh=parse("pp=2", 2)) if world.size > 1 else ALONE
    sizes: dict[str, Any] = {"n_params": 60_000, "vocab_size": 300, "tokens": 2048, "batch_tokens": 512, "seq_len": 64}
    how: dict[str, Any] = {
        "options": RunOptions(device=torch.device("cpu"), plan=False, world=world),
        "validation": 0.2,
    }
    found = prepare_training("bert-base", data, objective=objective, out=out, **how, **sizes).run()
    assert found.result.evaluation is not None
    said = {"loss": found.result.evaluation.loss, **found.figures}
    said |= {f"loss {step.step}": step.loss for step in found.result.steps}
    said |= {f"{name} {step.step}": nats for step in found.result.steps for name, nats in (step.parts or {}).items()}
    for name, part in found.result.evaluation.parts.items():
        said |= {f"{name} {field}": number for field, number in part._asdict().items()}
    return said


@pytest.mark.parametrize("objective", ["next-sentence", "classification", "regression", "token-classification"])
def test_a_head_that_is_asked_for_by_name(two: Processes, tmp_path: Path, objective: str) -> None:
    """It is the last stage's; both say what one process does. Adam makes more of rounding, and a correlation most."""
    rng, file = random.Random(1), tmp_path / "data.jsonl"
    with file.open("w") as lines:
        for _ in range(120):
            words = rng.choices(["cats.", "dogs!", "owls.", "seas?"], k=9)
            rows: dict[str, dict[str, Any]] = {
                "next-sentence": {"text": " ".join(words)},
                "classification": {"text": " ".join(words), "label": words[0]},
                "regression": {"text": " ".join(words), "label": words.count("owls.") / 2},
                "token-classification": {"tokens": words, "labels": [word[-1] for word in words]},
            }
            print(json.dumps(rows[objective]), file=lines)
    one = figures_of(ALONE, objective, file, tmp_path / "one")
    assert {"next sentence accuracy", "accuracy", "rmse"} & set(one)
    for said in two(figures_of, objective, file, tmp_path / "two"):
        assert said == pytest.approx(one, rel=3e-4)
    labels = [load(tmp_path / name)[0].labels for name in ("one", "two")]
    assert labels[0] == labels[1]
    assert (labels[0] is not None) == objective.endswith("classification")


def weights_of(world: World, name: str, mesh: str) -> dict[str, torch.Tensor]:
    world = replace(world, mesh=parse(mesh, world.size))
    model = built(shrink(PRESETS[name].spec), 5, torch.device("cpu"), world)
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["gpt2", "albert-base", "deepseek-v3-mtp", KEYS_OF_EARLIER])
def test_parts_start_as_the_whole_does(two: Processes, name: str) -> None:
    """To the bit; a layer that is not shared is in one process."""
    one = dict(build(shrink(PRESETS[name].spec), 5).named_parameters())
    each = two(weights_of, name, "pp=2")
    assert each[0].keys() | each[1].keys() == one.keys()
    for mine in each:
        assert [name for name, p in mine.items() if not torch.equal(p, one[name].detach())] == []
    both = each[0].keys() & each[1].keys()
    assert all(name.startswith(("shared.", "stack.residual.")) for name in both)


def test_layers_are_cut_where_the_most_work_is_least() -> None:
    """Against every way to cut them."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        size, least = int(rng.integers(2, 9)), int(rng.integers(1, 3))
        n = int(rng.integers(1, size - least + 2))
        work, behind = rng.integers(1, 20, size).tolist(), float(rng.integers(0, 30))

        def most(begins: tuple[int, ...], work: list[int] = work, behind: float = behind) -> float:
            ends = (*begins[1:], len(work))
            each = [float(sum(work[i:j])) for i, j in zip(begins, ends, strict=True)]
            return max([*each[:-1], each[-1] + behind])

        ways = [(0, *c) for c in combinations(range(1, size), n - 1) if size - (0, *c)[-1] >= least]
        found = _cut(work, behind, n, least)
        assert [*range(size)] == [i for layers in found for i in layers]
        assert all(found)
        assert len(found[-1]) >= least
        assert most(tuple(layers.start for layers in found)) == min(map(most, ways))


@pytest.mark.parametrize(
    ("name", "carried"),
    [
        ("llama3-8b", set()),
        ("deepseek-v3-mtp", {"input"}),
        ("deberta-v2-xlarge", set()),
        (KEYS_OF_EARLIER, {"input", "keys"}),
    ],
)
def test_what_crosses_a_cut(name: str, carried: set[str]) -> None:
    first, last = stages(shrink(PRESETS[name].spec), 2)
    assert (first.takes, last.gives) == ((), ())
    assert first.gives == last.takes
    assert {each.what for each in last.takes} == carried
    assert all(each == StageInput("input") or each.parts == ("key", "value") for each in last.takes)


def test_published_models_are_cut_evenly() -> None:
    """LLaMA 3.1 405B: the head is less than a layer; that of Gemma 3 1B, of 262,144 tokens, as much work as ten."""
    assert [len(stage.layers) for stage in stages(PRESETS["llama3.1-405b"].spec, 9)] == [14] * 9
    first, last = (len(stage.layers) for stage in stages(PRESETS["gemma3-1b"].spec, 2))
    assert (first, last) == (18, 8)


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("t5-base", "every stage of its decoder would read what its encoder makes; use --mesh dp=2"),
        ("transformer-base", "every stage of its decoder would read what its encoder makes"),
        ("reformer-enwik8", "its residual Reversible makes the input of layers again"),
        ("electra-small", "ReplacedTokens makes passes of its own"),
    ],
)
def test_what_cannot_be_staged(preset: str, says: str) -> None:
    spec = shrink(PRESETS[preset].spec)
    recipe = recipe_for(spec)
    one_pass = objective_of(recipe.objective, spec).one_pass
    refuse_on_mesh(spec, recipe, World(0, 2, mesh=parse("dp=2", 2)), one_pass=one_pass)
    with pytest.raises(UsageError, match=re.escape(says)):
        refuse_on_mesh(spec, recipe, World(0, 2, mesh=parse("pp=2", 2)), one_pass=one_pass)


def test_more_stages_than_layers() -> None:
    spec = shrink(PRESETS["llama3-8b"].spec)
    with pytest.raises(UsageError, match="pp = 3 is more than its 2 layers"):
        refuse_on_mesh(spec, Recipe(), World(0, 3, mesh=parse("pp=3", 3)))
    assert unstaged(spec, 2) is None


def test_layers_are_not_compiled() -> None:
    with pytest.raises(UsageError, match="--compile is not there under pp yet; leave it out"):
        refuse_on_mesh(shrink(PRESETS["gpt2"].spec), Recipe(), World(0, 2, mesh=parse("pp=2", 2)), compiled=True)


def test_dropout_differs_by_stage_and_not_by_share() -> None:
    by = {mesh: [World(rank, 2, mesh=parse(mesh, 2)).seed(3, 4) for rank in (0, 1)] for mesh in ("pp=2", "tp=2")}
    assert by["pp=2"][0] != by["pp=2"][1]
    assert by["tp=2"][0] == by["tp=2"][1]


def test_who_reads_what() -> None:
    """Of eight processes in two stages of four: two readers, each of two that share layers, and the same in both stages."""
    worlds = [World(rank, 8, mesh=parse("dp=2,tp=2,pp=2", 8)) for rank in range(8)]
    assert [world.stage for world in worlds] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [world.reader for world in worlds] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert {world.readers for world in worlds} == {2}
    assert [world.share(5) for world in worlds[::2]] == [slice(0, 3), slice(3, 5)] * 2
