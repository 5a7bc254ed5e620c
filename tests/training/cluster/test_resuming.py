"""A run that is saved on one mesh goes on there to the bit, and on any other, or in one process, as it would have."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anyformer.disk.seal import sealed
from anyformer.errors import CheckpointError
from anyformer.families import PRESETS
from anyformer.hub import load
from anyformer.model import build
from anyformer.recipe import Adafactor
from anyformer.resizing import shrink
from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.parts import together
from anyformer.training.cluster.sharding import built
from anyformer.training.cluster.world import World
from anyformer.training.run.progress import Watcher
from anyformer.training.run.signals import Stopped
from tests.training import killing
from tests.training.cluster.processes import Processes, processes
from tests.training.cluster.runs import STEPS, Ran, ran

STOP = 14  # after the checkpoint of step 12
BY_MEANS = Adafactor(lr=0.01)
NEAR = 2e-6  # relative: a loss by other sums; Adam makes more of rounding than a step of SGD would


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    found = ran(None, "", tmp_path_factory.mktemp("whole") / "run")
    assert found is not None
    return found


def check_near(found: Ran, whole: Ran) -> None:
    last = range(STOP - 1, STEPS + 1)  # from the checkpoint on
    mine, one = ([each.losses[step] for step in last] for each in (found, whole))
    torch.testing.assert_close(torch.tensor(mine), torch.tensor(one), rtol=NEAR, atol=0)
    assert found.validations[-1] == pytest.approx(whole.validations[-1], rel=NEAR)


@pytest.mark.parametrize(
    "mesh", [*(pytest.param(mesh, marks=pytest.mark.slow) for mesh in ("dp=2", "tp=2", "cp=2", "pp=2")), "fsdp=2"]
)
def test_the_same_mesh_goes_on_to_the_bit(two: Processes, tmp_path: Path, mesh: str) -> None:
    """With dropout, which each process draws by seed, step and rank."""
    unbroken = two(ran, mesh, tmp_path / "a", None, True)[0]
    assert two(ran, mesh, tmp_path / "b", STOP, True) == [None, None]
    again = two(ran, mesh, tmp_path / "b", None, True)[0]
    assert again.losses == unbroken.losses
    assert again.validations == unbroken.validations
    assert all(torch.equal(again.weights[name], tensor) for name, tensor in unbroken.weights.items())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("fsdp=2", ""),
        ("", "fsdp=2"),
        ("tp=2", ""),
        ("cp=2", ""),
        ("pp=2", ""),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (
                *(("fsdp=2", "dp=2"), ("dp=2", ""), ("dp=2", "fsdp=2")),
                *(
                    ("", "cp=2"),
                    ("fsdp=2", "cp=2"),
                    ("", "tp=2"),
                    ("tp=2", "dp=2"),
                    ("dp=2", "tp=2"),
                    ("tp=2", "fsdp=2"),
                    ("fsdp=2", "tp=2"),
                    ("", "pp=2"),
                    ("pp=2", "dp=2"),
                    ("dp=2", "pp=2"),
                    ("pp=2", "tp=2"),
                    ("tp=2", "pp=2"),
                    ("fsdp=2", "pp=2"),
                ),
            )
        ),
    ],
)
def test_another_mesh_goes_on(two: Processes, tmp_path: Path, whole: Ran, first: str, then: str) -> None:
    out = tmp_path / "run"
    for mesh, at in ((first, STOP), (then, None)):
        found = two(ran, mesh, out, at)[0] if mesh else ran(None, "", out, at)
    assert found is not None
    check_near(found, whole)


@pytest.fixture(scope="module")
def whole_by_means(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    found = ran(None, "", tmp_path_factory.mktemp("whole") / "run", optimizer=BY_MEANS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("first", "then"),
    [("fsdp=2", ""), ("", "fsdp=2"), pytest.param("pp=2", "tp=2", marks=pytest.mark.slow)],
)
def test_what_is_kept_of_rows_and_columns_goes_on(
    two: Processes, tmp_path: Path, whole_by_means: Ran, first: str, then: str
) -> None:
    """It has another shape than its tensor, and each process has the whole."""
    out = tmp_path / "run"
    for mesh, at in ((first, STOP), (then, None)):
        given = (mesh, out, at, False, None, False, "now", BY_MEANS)
        found = two(ran, *given)[0] if mesh else ran(None, *given)
    assert found is not None
    check_near(found, whole_by_means)
    if not then:
        (last, *_) = sorted((out / "checkpoints").iterdir(), reverse=True)
        weights, kept = (load_file(last / name).values() for name in ("model.safetensors", "optimizer.safetensors"))
        assert sum(each.numel() for each in kept if each.dim()) == sum(
            each.numel() if each.dim() == 1 else sum(each.shape) for each in weights
        )


@pytest.fixture(scope="module")
def whole_mixture(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    found = ran(None, "", tmp_path_factory.mktemp("whole") / "run", mixture=True)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("fsdp=2,ep=2", ""),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("", "fsdp=2,ep=2"), ("fsdp=2", "fsdp=2,ep=2"), ("pp=2", ""))
        ),
    ],
)
def test_experts_that_were_spread_go_on(
    two: Processes, tmp_path: Path, whole_mixture: Ran, first: str, then: str
) -> None:
    out = tmp_path / "run"
    for mesh, at in ((first, STOP), (then, None)):
        given = (mesh, out, at, False, None, True)
        found = two(ran, *given)[0] if mesh else ran(None, *given)
    assert found is not None
    check_near(found, whole_mixture)


@pytest.mark.slow
def test_four_go_on_where_two_were(two: Processes, tmp_path: Path, whole: Ran) -> None:
    two(ran, "fsdp=2", tmp_path / "run", STOP)
    with processes(4) as four:
        found = four(ran, "dp=2,fsdp=2", tmp_path / "run")[0]
    check_near(found, whole)


def test_one_process_reads_what_several_saved(two: Processes, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = two(ran, "fsdp=2", out)[0]
    model, _ = load(out)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, found.weights[name]), name
    last = max((out / "checkpoints").glob("step-*"))
    assert len(list((last / "model").iterdir())) == 2, "each process writes its part"
    assert not list(out.rglob(".tmp-*"))


class Told(Watcher):
    """Sends this process the launcher's signal after a step."""

    def step(self, metrics: StepMetrics) -> None:
        if metrics.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)


def told_to_stop(world: World, out: Path) -> tuple[str, int]:
    try:
        ran(world, "dp=2", out, watcher=Told() if world.rank else Watcher())
    except Stopped as stopped:
        return str(stopped), stopped.exit_status
    raise AssertionError("it went on")


def test_all_stop_at_the_step_at_which_one_is_told_to(two: Processes, tmp_path: Path) -> None:
    for said, status in two(told_to_stop, tmp_path / "run"):
        assert said.startswith("stopped by SIGTERM after step 7; the last good checkpoint is ")
        assert said.endswith("step-00000007; the same command goes on from there")
        assert status == 128 + signal.SIGTERM
    assert sealed(tmp_path / "run" / "checkpoints" / "step-00000007").is_dir()


@pytest.mark.parametrize("folder", ["model", pytest.param("optimizer", marks=pytest.mark.slow)])
def test_a_damaged_part_is_refused_by_name(two: Processes, tmp_path: Path, folder: str) -> None:
    out = tmp_path / "run"
    two(ran, "fsdp=2", out)
    last = max((out / "checkpoints").glob("step-*"))
    part = max((last / folder).iterdir())
    content = part.read_bytes()
    for damaged, says in (
        (content[:-9] + bytes([content[-9] ^ 4]) + content[-8:], "corrupted or edited"),
        (content[:-1], "truncated or overwritten"),
        (None, "missing"),
    ):
        part.unlink()
        if damaged is not None:
            part.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{part.name}.* {says}"):
            sealed(last)
        with pytest.raises(CheckpointError, match=part.name):
            load(out)
        with pytest.raises(CheckpointError, match=part.name):
            ran(None, "", out)
        if damaged is None:
            part.touch()
    part.write_bytes(content)
    (last / folder / "other.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="none of the files that were written here"):
        load(out)


def weights_of(world: World, name: str) -> dict[str, torch.Tensor]:
    spec = shrink(PRESETS[name].spec)
    model = built(spec, 5, torch.device("cpu"), World(world.rank, world.size, mesh=parse("fsdp=2", 2)))
    held = sum(p.to_local().numel() for p in model.parameters() if p.requires_grad)  # type: ignore[operator]
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert held < 0.75 * n, "a process holds about its half"
    return {name: together(p.detach()) for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["gpt2", "t5-base", "albert-base", "deepseek-v3-mtp", "granite-4.0-h-tiny"])
def test_parts_start_as_the_whole_does(two: Processes, name: str) -> None:
    mine = two(weights_of, name)[0]
    one = dict(build(shrink(PRESETS[name].spec), 5).named_parameters())
    assert mine.keys() == one.keys()
    assert [name for name, p in one.items() if not torch.equal(mine[name], p.detach())] == []


assert killing.SAVES * killing.SAVE_EVERY == STEPS
