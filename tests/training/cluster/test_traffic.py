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
from anyformer.layers import CompressorSpec, GainSpec, MoESpec
from anyformer.observation.passes import loss_of, thinned
from anyformer.recipe import RouterTraining
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, ModelSpec, Place, Width, tensors
from anyformer.training.cluster.context_parallel import stretch_rows
from anyformer.training.cluster.gradients import add_gradients
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.simulated import Simulated, TrafficCounter, simulated
from anyformer.training.cluster.traffic import TrainingStep, planned
from anyformer.training.cluster.world import World
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import LENGTH as LENGTH_OF_ROWS
from tests.training.cluster.steps import ROWS as ROWS_OF_BATCH
from tests.training.cluster.steps import batch_for, recipe_for, trainer_for

FAST = ("llama3-8b", "bert-large", "gpt-oss-20b")  # a sample; the others are slow tests
ROWS, LENGTH, SOURCE = 2, 63, 30  # which no number of processes divides


STEP = TrainingStep(ROWS, LENGTH)


def both(spec: ModelSpec, mesh: str, n: int = 8, stage: int = 0, **how: Any) -> Simulated:
    """The simulated step, whose traffic is as planned."""
    blocks = max(
        (2 * part.every for part in spec.nested(CompressorSpec)), default=0
    )  # a text without any teaches no compressor
    step = replace(STEP, seq_len=max(LENGTH, blocks), source_len=SOURCE if spec.encoder else 0, **how)
    found = simulated(spec, parse(mesh, n), step, stage)
    assert dict(found.traffic) == dict(planned(spec, parse(mesh, n), step, stage))
    return found


@pytest.mark.parametrize("mesh", ["dp=8", "tp=8"])
@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PRESETS],
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
    "inkling": ("fsdp=8,ep=8",),  # shared experts that the router weighs, which no process has a part of
    "granite-4.0-h-tiny": ("fsdp=8", "fsdp=2,tp=4"),  # states
    "deepseek-v3-mtp": ("fsdp=8", "dp=2,tp=4"),  # further tokens
    "hourglass-linear-enwik8": ("fsdp=8", "fsdp=2,tp=4"),  # layers inside a mixer
    "gpt2": ("dp=2,cp=4",),
    "bert-large": ("dp=2,cp=4",),  # heads that are shared out
    "gpt-oss-20b": ("dp=2,cp=4",),  # sinks, windows
}
QUICK = {
    ("llama3-8b", "fsdp=2,cp=2,tp=2"),
    ("gpt-oss-20b", "dp=2,cp=4"),
    ("mixtral-8x7b", "fsdp=4,cp=2,ep=4"),
    ("t5-large", "dp=2,tp=4"),
}


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


def test_a_weight_that_is_one_number() -> None:
    """ReZero's."""
    spec = changed(shrink(PRESETS["gpt2"].spec), BranchSpec, norm_out=GainSpec(start=0.0))
    both(spec, "dp=2,tp=2", 4)
    with pytest.raises(UsageError, match=r"norm_out\.weight is one number, and FSDP2 .* use --mesh dp=2"):
        both(spec, "fsdp=2", 2)


@pytest.mark.parametrize(("name", "sends"), [("llama3-8b", {"send"}), ("falcon-7b", {"all-gather", "reduce-scatter"})])
def test_a_gpu_shares_heads_or_gathers(name: str, sends: set[str]) -> None:
    """One head of keys and values cannot be shared out."""
    step = both(thinned(PRESETS[name].spec)[0], "dp=2,cp=4", device="cuda")
    assert {kind for axis, kind in step.traffic if axis == "cp"} == {*sends, "all-gather"}  # what each label cost


@pytest.mark.parametrize(
    "mesh",
    [
        "fsdp=8,ep=4",
        *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in ("dp=2,tp=4", "fsdp=2,cp=2,tp=2", "pp=2,tp=2")),
    ],
)
def test_experts_in_a_latent(mesh: str) -> None:
    """Tokens travel as wide as what experts read; where each has a share of every expert, what leaves the latent is added up."""
    spec = changed(thinned(PRESETS["mixtral-8x7b"].spec)[0], MoESpec, latent=Width(1024))
    both(spec, mesh)


PIPED = ("pp=2", "pp=2,fsdp=2", "pp=2,tp=2", "pp=2,cp=2", "pp=2,dp=2", "pp=2,dp=2,fsdp=2")
STAGED = {
    "llama3-8b": (*PIPED, "pp=2,fsdp=2,tp=2"),
    "gpt2": PIPED,  # a tied table
    "albert-xlarge": PIPED[:4],  # a shared layer
    "gemma3n-e4b": PIPED[:4],  # streams side by side, keys that are lent, what reads the embedding
    "mixtral-8x7b": ("pp=2,fsdp=2,ep=2", "pp=2,dp=2"),
    "deepseek-v3-mtp": ("pp=2", "pp=2,tp=2"),  # further tokens
    "deepseek-v3.2": PIPED[:4],  # chosen keys
    "bert-base": PIPED[:2],
}


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        (name, mesh) if (name, mesh) == ("gpt2", "pp=2,fsdp=2") else pytest.param(name, mesh, marks=pytest.mark.slow)
        for name, meshes in STAGED.items()
        for mesh in meshes
    ],
)
def test_stages(name: str, mesh: str) -> None:
    """What the first sends the last, and it back, of three parts of a batch; its weights, and no more, are each one's."""
    spec = thinned(PRESETS[name].spec)[0]
    n = math.prod(int(item.partition("=")[2]) for item in mesh.split(",") if not item.startswith("ep"))
    first, last = (both(spec, mesh, n, stage, micro_batches=3) for stage in (0, 1))
    assert first.traffic["pp", "activations"] > 0
    assert last.traffic["pp", "gradients"] > 0
    assert {*first.weights, *last.weights} == dict(tensors(spec, Place())).keys()


@pytest.mark.parametrize(
    "name", [name if name == "llama3-8b" else pytest.param(name, marks=pytest.mark.slow) for name in PRESETS]
)
def test_every_preset_in_sixteen_stages(name: str) -> None:
    """Of all its layers the first stage, the next and the last; or it is refused by name."""
    steps, reason = [], ""
    try:
        steps = [both(PRESETS[name].spec, "pp=16", 16, stage) for stage in (0, 1, 15)]
    except (SpecError, UsageError) as error:
        reason = str(error)
    if not steps:
        assert re.search(
            "more than its [0-9]+ layers|would read what its encoder makes|makes the input of layers again", reason
        )
        assert name != "llama3-8b"
        return
    first, second, last = steps
    assert set(second.traffic) >= {("pp", "activations"), ("pp", "gradients")}
    assert ("pp", "gradients") not in first.traffic
    assert ("pp", "activations") not in last.traffic


@pytest.mark.parametrize("stage", range(4))
def test_stages_by_pencil(stage: int) -> None:
    """Those in between send both: a state of d_model numbers a token of each micro-batch."""
    spec = PRESETS["llama3-8b"].spec
    sent = planned(spec, parse("pp=4", 4), replace(STEP, micro_batches=3), stage)
    state = 3 * 4 * ROWS * LENGTH * 4096
    wanted = {("pp", "activations"): state * (stage < 3), ("pp", "gradients"): state * (stage > 0)}
    assert sent == {key: nbytes for key, nbytes in wanted.items() if nbytes}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=8", "dp=2,fsdp=4", "fsdp=2,tp=4", "dp=2,cp=4", "fsdp=8,ep=4"])
@pytest.mark.parametrize(("recompute", "parts"), [("none", 5), ("full", 1), ("selective", 2)])
def test_parts_of_a_batch_and_layers_made_again(mesh: str, recompute: Any, parts: int) -> None:
    both(thinned(PRESETS["mixtral-8x7b"].spec)[0], mesh, recompute=recompute, micro_batches=parts)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp=8", "dp=2,tp=4"])
def test_what_gives_nothing_to_the_loss_is_not_made_again(mesh: str) -> None:
    """Layers in whose place a head has its own."""
    both(thinned(PRESETS["deberta-base-emd"].spec)[0], mesh, recompute="full")


def test_by_pencil() -> None:
    """LLaMA 3 8B, 32 layers, over 8: Rajbhandari et al. 2019 for fsdp, Shoeybi et al. 2019 for tp."""
    spec = PRESETS["llama3-8b"].spec
    d, ff, kv, vocabulary, layers, tokens = 4096, 14_336, 1024, 128_256, 32, ROWS * LENGTH
    layer = 2 * d * d + 2 * d * kv + 3 * d * ff + 2 * d
    tables = 2 * vocabulary * d + d
    thrice = replace(STEP, micro_batches=3)
    sent = planned(spec, parse("fsdp=8", 8), thrice)
    assert sent["fsdp", "all-gather"] == 3 * 4 * (2 * layers * layer + tables)
    assert sent["fsdp", "reduce-scatter"] == 3 * 4 * (layers * layer + tables)
    sent = planned(spec, parse("tp=8", 8), STEP)
    # Two mixers a layer, forward and backward; the embedding; before the table, and four numbers a label.
    assert sent == {("tp", "all-reduce"): 4 * (4 * layers + 2) * tokens * d + 4 * 4 * tokens}
    sent = planned(spec, parse("dp=8", 8), thrice)
    assert sent == {("dp", "all-reduce"): 4 * (layers * layer + tables)}
    # Li et al. 2023 (DistFlashAttn): of four the first gives its keys to two, twice, and helps the last.
    filled = ROWS * 4 * math.ceil(LENGTH / 4)
    sent = planned(spec, parse("dp=2,cp=4", 8), STEP)
    first, last = ROWS * (LENGTH // 4), ROWS * math.ceil(LENGTH / 4)
    assert sent["cp", "send"] == 4 * layers * (2 * 2 * 2 * kv * first + (2 * d + 32) * last)
    assert sent["cp", "all-gather"] == 4 * filled  # what each label cost
    sent = planned(spec, parse("dp=2,cp=4", 8), replace(STEP, device="cuda"))
    # Jacobs et al. 2023: three quarters of its tokens' queries, keys, values and what is seen, and as much of the others' again.
    others = ROWS * LENGTH - first
    assert sent["cp", "send"] == 4 * layers * (3 * first + others) * (2 * d + 2 * kv) // 4
    latent, filled = 512 + 64, ROWS * 4 * math.ceil(LENGTH / 4)
    sent = planned(PRESETS["deepseek-v3"].spec, parse("dp=2,cp=4", 8), STEP)
    assert sent["cp", "reduce-scatter"] == 4 * 61 * latent * filled
    assert sent["cp", "all-gather"] == 4 * 61 * latent * filled + 4 * filled
    experts = planned(PRESETS["mixtral-8x7b"].spec, parse("fsdp=8,ep=8", 8), STEP)
    assert experts["ep", "all-to-all"] == 32 * (4 * 4 * 2 * tokens * d + 8 * (2 * tokens + 8))


def test_weights_lie_as_shoeybi_et_al_have_them() -> None:
    step = simulated(thinned(PRESETS["llama3-8b"].spec)[0], parse("tp=8", 8), TrainingStep(1, 8))
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
    with TrafficCounter(world) as watch:
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
    first, last = two(sent, name, mesh)
    assert first == wanted
    if (name, mesh) == ("llama3-8b", "cp=2"):  # the first gives its keys twice, the last their gradients
        wanted["cp", "send"] //= 2
    assert last == wanted


def sent_by_stage(world: World, name: str) -> Counter[tuple[str, str]]:
    """What PyTorch's schedule really sends in a step of a shrunk preset, once it has learnt the shapes."""
    world, spec = replace(world, mesh=parse("pp=2", world.size)), shrink(PRESETS[name].spec)
    trainer = trainer_for(spec, recipe_for(spec, router=RouterTraining()), world)
    trainer.micro_tokens = LENGTH_OF_ROWS
    trainer.gradients(1, batch_for(spec, 1))
    with TrafficCounter(world) as watch:
        assert trainer.pipeline is not None
        trainer.pipeline.backward(trainer._micro(batch_for(spec, 1))[0], lambda i, losses: losses.total)
    return watch.sent


@pytest.mark.parametrize("name", ["gpt2", "gemma3n-e4b"])
def test_what_a_schedule_sends_over_gloo(two: Processes, name: str) -> None:
    step = TrainingStep(1, LENGTH_OF_ROWS, micro_batches=ROWS_OF_BATCH)
    for stage, found in enumerate(two(sent_by_stage, name)):
        wanted = planned(shrink(PRESETS[name].spec), parse("pp=2", 2), step, stage)
        assert dict(found) == {key: nbytes for key, nbytes in wanted.items() if key[1] != "all-reduce"}


def test_a_simulation_is_of_one_process(two: Processes) -> None:
    with pytest.raises(AssertionError, match="simulated in one; start it without torchrun"):
        two(within, "fsdp=2")


def within(world: World, mesh: str) -> None:
    simulated(shrink(PRESETS["gpt2"].spec), parse(mesh, world.size), TrainingStep(1, 8))
