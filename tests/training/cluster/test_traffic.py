"""The law of what processes send: what arithmetic says of a step is what the step sends, to the byte, simulated and over gloo.

Widths are those of the presets, layers two of each kind: further ones send what the second does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from anyformer.errors import SpecError, UsageError
from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.layers import MoESpec
from anyformer.observation.passes import loss_of, thinned
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place, Width, tensors
from anyformer.training.cluster.context_parallel import stretch_rows
from anyformer.training.cluster.gradients import add_gradients
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.simulated import Step, Watch, simulated
from anyformer.training.cluster.traffic import planned
from anyformer.training.cluster.world import World
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes

FAST = ("llama3-8b", "bert-large", "gpt-oss-20b")  # a sample; the others are slow tests
ROWS, LENGTH, SOURCE = 2, 63, 30  # which no number of processes divides


def both(spec: ModelSpec, mesh: str, n: int = 8, **how: Any) -> Step:
    """The simulated step, whose traffic is as planned."""
    sizes = {"rows": ROWS, "seq_len": LENGTH, "source_len": SOURCE if spec.encoder else 0, **how}
    step = simulated(spec, parse(mesh, n), **sizes)
    assert dict(step.traffic) == dict(planned(spec, parse(mesh, n), **sizes))
    return step


# What segments and the second stream alone read has no gradient of a loss that is plain.
PARTLY_READ = ("xlnet-base", "xlnet-large")


@pytest.mark.parametrize("mesh", ["dp=8", "tp=8"])
@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in PRESETS
        if name not in PARTLY_READ
    ],
)
def test_every_preset(name: str, mesh: str) -> None:
    """Its weights lie as the mesh says, and it sends what is planned; or it is refused by name."""
    spec = thinned(PRESETS[name].spec)[0]
    try:
        step, reason = both(spec, mesh), ""
    except (SpecError, UsageError) as error:
        step, reason = None, str(error)
    if step is None:
        assert re.search("tp ?= ?8|BatchNorm", reason)
        assert name not in FAST
        return
    assert step.weights.keys() == dict(tensors(spec, Place())).keys()
    for weight in step.weights.values():
        whole = list(weight.whole)
        for dim in weight.split.values():
            whole[dim] = -(-whole[dim] // 8)
        assert weight.here == tuple(whole)
    assert any(weight.split for weight in step.weights.values()) == (mesh == "tp=8")
    assert {axis for axis, _ in step.traffic} == {mesh[:2]}


MESHES = ("fsdp=8", "fsdp=8,zero=2", "dp=2,fsdp=4", "fsdp=2,tp=4", "dp=2,tp=4", "dp=2,cp=4", "fsdp=2,cp=2,tp=2")
KINDS = {
    "llama3-8b": MESHES,
    "t5-large": MESHES,  # an encoder, tied tables, a table of distances
    "falcon-7b": ("fsdp=8", "dp=2,cp=4"),  # one key/value head, a parallel block
    "bloom-7b1": ("fsdp=2,tp=4", "dp=2,cp=4"),  # what leans on the distance is each head's own
    "albert-xlarge": ("fsdp=8", "fsdp=2,tp=4"),  # one layer, often; a narrow table
    "deberta-large": ("fsdp=8", "dp=2,tp=4", "dp=2,cp=4"),  # a table that mixers share
    "mixtral-8x7b": (*MESHES, "fsdp=8,ep=8", "fsdp=8,ep=4", "dp=2,fsdp=4,ep=2", "fsdp=4,cp=2,ep=4"),
    "deepseek-v3": ("fsdp=8,ep=8", "dp=2,tp=4", "dp=2,cp=4"),  # latents, shared experts
    "granite-4.0-h-tiny": ("fsdp=8", "fsdp=2,tp=4"),  # states
    "deepseek-v3-mtp": ("fsdp=8", "dp=2,tp=4"),  # further tokens
    "gpt2": ("dp=2,cp=4",),
}
QUICK = {("llama3-8b", "fsdp=2,cp=2,tp=2"), ("mixtral-8x7b", "fsdp=4,cp=2,ep=4"), ("t5-large", "dp=2,tp=4")}


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        (name, mesh) if (name, mesh) in QUICK else pytest.param(name, mesh, marks=pytest.mark.slow)
        for name, meshes in KINDS.items()
        for mesh in meshes
    ],
)
def test_presets_of_each_kind(name: str, mesh: str) -> None:
    both(thinned(PRESETS[name].spec)[0], mesh)


def test_tokens_travel_as_wide_as_what_experts_read() -> None:
    spec = changed(thinned(PRESETS["mixtral-8x7b"].spec)[0], MoESpec, latent=Width(1024))
    both(spec, "fsdp=8,ep=4")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=8", "dp=2,fsdp=4", "fsdp=2,tp=4", "dp=2,cp=4", "fsdp=8,ep=4"])
@pytest.mark.parametrize(("recompute", "parts"), [("none", 5), ("full", 1), ("selective", 2)])
def test_parts_of_a_batch_and_layers_made_again(mesh: str, recompute: Any, parts: int) -> None:
    both(thinned(PRESETS["mixtral-8x7b"].spec)[0], mesh, recompute=recompute, micro_batches=parts)


def test_by_pencil() -> None:
    """LLaMA 3 8B, 32 layers, over 8: Rajbhandari et al. 2019 for fsdp, Shoeybi et al. 2019 for tp."""
    spec = PRESETS["llama3-8b"].spec
    d, ff, kv, vocabulary, layers, tokens = 4096, 14_336, 1024, 128_256, 32, ROWS * LENGTH
    layer = 2 * d * d + 2 * d * kv + 3 * d * ff + 2 * d
    tables = 2 * vocabulary * d + d
    sizes: Any = {"rows": ROWS, "seq_len": LENGTH}
    sent = planned(spec, parse("fsdp=8", 8), micro_batches=3, **sizes)
    assert sent["fsdp", "all-gather"] == 3 * 4 * (2 * layers * layer + tables)
    assert sent["fsdp", "reduce-scatter"] == 3 * 4 * (layers * layer + tables)
    sent = planned(spec, parse("tp=8", 8), **sizes)
    # Two mixers a layer, forward and backward; the embedding; before the table, and four numbers a label.
    assert sent == {("tp", "all-reduce"): 4 * (4 * layers + 2) * tokens * d + 4 * 4 * tokens}
    sent = planned(spec, parse("dp=8", 8), micro_batches=3, **sizes)
    assert sent == {("dp", "all-reduce"): 4 * (layers * layer + tables)}
    filled = ROWS * 4 * math.ceil(LENGTH / 4)
    sent = planned(spec, parse("dp=2,cp=4", 8), **sizes)
    assert sent["cp", "reduce-scatter"] == 4 * layers * 2 * kv * filled
    assert sent["cp", "all-gather"] == 4 * layers * 2 * kv * filled + 4 * filled
    experts = planned(PRESETS["mixtral-8x7b"].spec, parse("fsdp=8,ep=8", 8), **sizes)
    assert experts["ep", "all-to-all"] == 32 * (4 * 4 * 2 * tokens * d + 8 * (2 * tokens + 8))


def test_weights_lie_as_shoeybi_et_al_have_them() -> None:
    step = simulated(thinned(PRESETS["llama3-8b"].spec)[0], parse("tp=8", 8), rows=1, seq_len=8)
    split = {name.removeprefix("stack.blocks.0.sublayers."): weight.split for name, weight in step.weights.items()}
    attention, forward = "0.branches.0.mixer.projection", "1.branches.0.mixer"
    for name in ("q", "k", "v"):
        assert split[f"{attention}.{name}.weight"] == {"tp": 0}
    assert split[f"{attention}.o.weight"] == {"tp": 1}
    assert {"tp": 0} in split.values()
    assert split[f"{forward}.down.weight"] == {"tp": 1}
    assert step.weights["stack.norm.weight"].split == {}


def sent(world: World, name: str, mesh: str) -> Counter[tuple[str, str]]:
    """What a step of a shrunk preset really sends."""
    world = replace(world, mesh=parse(mesh, world.size))
    model = randomised(shrink(PRESETS[name].spec))
    if world.sharded:
        model = shard(model, torch.device("cpu"), world)
    stretch_rows(model, world)
    ids = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 7
    with Watch(world) as watch:
        loss_of(model, ids, ids[:, :SOURCE]).backward()
        add_gradients(model, [*model.parameters()], world)
    return watch.sent


@pytest.mark.parametrize("mesh", ["fsdp=2", "tp=2", "cp=2", "dp=2"])
@pytest.mark.parametrize("name", ["llama3-8b", "t5-base"])
def test_what_a_step_sends_over_gloo(two: Processes, name: str, mesh: str) -> None:
    spec = shrink(PRESETS[name].spec)
    wanted = Counter(both(spec, mesh, 2).traffic)
    if mesh in ("tp=2", "dp=2"):  # and which weights have a gradient anywhere: a flag each
        wanted[mesh[:2], "all-reduce"] += 4 * len([*tensors(spec, Place())])
    assert two(sent, name, mesh) == [wanted, wanted]


def test_a_simulation_is_of_one_process(two: Processes) -> None:
    with pytest.raises(AssertionError, match="simulated in one; start it without torchrun"):
        two(within, "fsdp=2")


def within(world: World, mesh: str) -> None:
    simulated(shrink(PRESETS["gpt2"].spec), parse(mesh, world.size), rows=1, seq_len=8)
