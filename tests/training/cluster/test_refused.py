"""What several processes cannot be, or cannot do: one line, on all of them, before anything is written."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from anyformer.errors import UsageError
from anyformer.families import PRESETS
from anyformer.families.heads import sentence_embedding
from anyformer.layers import MeanTokensSpec
from anyformer.recipe import Contrastive, Recipe, ReplacedTokens
from anyformer.resizing import shrink
from anyformer.training.cluster.joining import joined
from anyformer.training.cluster.mesh import Mesh, parse
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.run.checks import check_room
from tests.cli.running import refused, run
from tests.training.cluster.processes import Processes

DOCS = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "cluster.md"


@pytest.mark.parametrize(
    ("text", "n", "mesh"),
    [
        ("dp=4", 4, Mesh(dp=4)),
        ("fsdp=2", 4, Mesh(dp=2, fsdp=2)),
        ("dp=2, fsdp=2, zero=2", 4, Mesh(dp=2, fsdp=2, zero=2)),
        ("tp=2", 4, Mesh(dp=2, tp=2)),
        ("fsdp=2,tp=2", 4, Mesh(fsdp=2, tp=2)),
        ("fsdp=2,ep=2", 4, Mesh(dp=2, fsdp=2, ep=2)),
        ("cp=2", 4, Mesh(dp=2, cp=2)),
        ("fsdp=2,cp=2", 8, Mesh(dp=2, fsdp=2, cp=2)),
        ("cp=2,ep=2,zero=2", 2, Mesh(cp=2, ep=2, zero=2)),
        ("tp=2,cp=2", 4, Mesh(tp=2, cp=2)),
        ("pp=2", 4, Mesh(dp=2, pp=2)),
        ("tp=2,pp=2", 4, Mesh(tp=2, pp=2)),
        ("fsdp=2,ep=2,pp=2,zero=2", 4, Mesh(fsdp=2, ep=2, pp=2, zero=2)),
        ("fsdp=4,ep=2,zero=2", 4, Mesh(fsdp=4, ep=2, zero=2)),
        ("zero=3", 2, Mesh(dp=2)),
    ],
)
def test_a_mesh_is_read(text: str, n: int, mesh: Mesh) -> None:
    assert parse(text, n) == mesh
    assert parse(str(mesh), n) == mesh


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ("dp=3", ("dp 3 · fsdp 1 is 3 processes", "there are 2", "--nproc 3")),
        ("fsdp=4", ("fsdp 4 is 4 processes",)),
        ("vp=2", ("vp (a pipeline's stretches) can be planned and not run yet",)),
        ("pp=4", ("dp 1 · fsdp 1 · pp 4 is 4 processes", "there are 2", "--nproc 4")),
        ("dp=2,tp=2", ("dp 2 · fsdp 1 · tp 2 is 4 processes", "there are 2", "--nproc 4")),
        ("cp=3", ("dp 1 · fsdp 1 · cp 3 is 3 processes", "--nproc 3")),
        ("ep=2", ("ep = 2 spreads experts", "and that is 1", "write fsdp=2,ep=2")),
        ("fsdp=2,tp=2,ep=2", ("ep = 2", "tp = 1 for now")),
        ("fsdp=2,ep=3", ("an fsdp · cp that it divides, and that is 2",)),
        ("fdsp=2", ("'fdsp' is no axis (did you mean 'fsdp'?)",)),
        ("dp", ("'dp' is no axis and number",)),
        ("", ("'' names no axis", "write it as dp=2,fsdp=4, or auto")),
        ("dp=2,dp=1", ("dp = 2 is said before 'dp=1'; leave one out",)),
        ("fsdp=2,zero=1", ("zero = 1 must be one of 2, 3",)),
        ("dp=0", ("dp = 0 must be at least 1",)),
        ("dp=99999999999", ("no axis and number",)),
    ],
)
def test_a_mesh_that_cannot_be_is_one_line(tmp_path: Path, mesh: str, says: tuple[str, ...]) -> None:
    """Nothing is started for it."""
    given = ("llama3-8b", "--data", tmp_path / "missing", "--out", tmp_path / "out", "--nproc", 2, "--mesh", mesh)
    refused(run("train", *given), *says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE='two' in the environment is no number"),
        ("RANK", "-1", "RANK='-1' in the environment is no number"),
        ("RANK", "2", "RANK=2 in the environment is beyond WORLD_SIZE=2"),
        ("LOCAL_RANK", "", "LOCAL_RANK='' in the environment is no number"),
        ("LOCAL_WORLD_SIZE", "1.5", "LOCAL_WORLD_SIZE='1.5' in the environment is no number"),
        ("MASTER_PORT", "tcp://10.0.0.1:80", "MASTER_PORT='tcp://10.0.0.1:80' in the environment is no number"),
    ],
)
def test_an_environment_that_makes_no_sense(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets MASTER_PORT so for a service called master."""
    told = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for each, number in {**told, name: value}.items():
        monkeypatch.setenv(each, number)
    with pytest.raises(UsageError, match=f"^{re.escape(says)}"), joined():
        pass


def test_options_that_need_processes(tmp_path: Path) -> None:
    given = ("train", "llama3-8b", "--data", "stdlib", "--out", tmp_path / "out")
    refused(run(*given, "--mesh", "dp=2"), "dp 2 · fsdp 1 is 2 processes", "there is 1", "--nproc 2")
    refused(run(*given, "--max-restarts", 1), "--nproc")
    assert not (tmp_path / "out").exists()


def read_by(world: World) -> tuple[list[int], list[int]]:
    readers: list[int] = []
    return world.once(lambda: [readers.append(world.rank) or 7]), readers


def test_a_text_is_read_by_rank_0_alone(two: Processes) -> None:
    assert two(read_by) == [([7], [0]), ([7], [])]
    assert ALONE.once(lambda: 7) == 7


def differing(world: World, name: str) -> str:
    facts = {"version": "1", "recipe": "a", "data": "texts"}
    facts[name] += str(world.rank)
    try:
        world.agree(facts)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["version", "recipe", "data"])
def test_processes_that_were_started_otherwise(two: Processes, name: str) -> None:
    first, second = two(differing, name)
    assert first == second
    assert re.search(f"rank 1 has another {name} than rank 0: .*1 there and .*0 here", first)


@pytest.mark.parametrize(
    ("mesh", "recipe", "preset", "says"),
    [
        ("dp=2", Recipe(objective=Contrastive()), "bert-base", "fewer negatives"),
        ("dp=2", Recipe(memory=8), "gopher-44m", "memory of segments"),
    ],
)
def test_what_rows_cannot_be_shared_out(mesh: str, recipe: Recipe, preset: str, says: str) -> None:
    spec = shrink(PRESETS[preset].spec)
    if isinstance(recipe.objective, Contrastive):
        spec = spec.but(heads=(sentence_embedding(MeanTokensSpec()),), ahead=())
    refuse_on_mesh(spec, recipe, ALONE)
    with pytest.raises(UsageError, match=says):
        refuse_on_mesh(spec, recipe, World(0, 2, mesh=parse(mesh, 2)))


def test_what_weights_cannot_be_shared_out() -> None:
    spec, recipe = shrink(PRESETS["electra-small"].spec), Recipe(objective=ReplacedTokens())
    refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(dp=2)), tied=True)
    with pytest.raises(UsageError, match="separate or disentangled"):
        refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(fsdp=2)), tied=True)


def test_layers_are_not_compiled_under_tp() -> None:
    spec, recipe = shrink(PRESETS["gpt2"].spec), Recipe()
    refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(fsdp=2)), compiled=True)
    with pytest.raises(UsageError, match="--compile takes whole; leave it out, or use --mesh fsdp=2"):
        refuse_on_mesh(spec, recipe, World(0, 2, mesh=Mesh(tp=2)), compiled=True)


@pytest.mark.parametrize(
    ("preset", "mesh", "compiled", "says"),
    [
        ("gpt2", "fsdp=2,ep=2", False, "no experts to spread; take a model that has, or use --mesh fsdp=2"),
        ("mixtral-8x7b", "fsdp=3,ep=3", False, "ep = 3 does not divide its 4 experts; take an ep that does"),
        ("mixtral-8x7b", "fsdp=2,ep=2", True, "--compile takes whole; leave it out"),
    ],
)
def test_what_experts_cannot_be_spread(preset: str, mesh: str, compiled: bool, says: str) -> None:
    spec, n = shrink(PRESETS[preset].spec), int(mesh[-1])
    refuse_on_mesh(spec, Recipe(), World(0, n, mesh=Mesh(fsdp=n)), compiled=compiled)
    with pytest.raises(UsageError, match=says):
        refuse_on_mesh(spec, Recipe(), World(0, n, mesh=parse(mesh, n)), compiled=compiled)


def test_room_is_that_of_all_on_one_machine() -> None:
    """Copies take as much memory as there are of them, shards as one."""
    spec, cpu = PRESETS["gpt2"].spec, torch.device("cpu")
    n = 10**9
    with pytest.raises(UsageError, match="GB of memory"):
        check_room(spec, Recipe(), cpu, World(0, n, local_size=n, mesh=Mesh(dp=n)))
    check_room(spec, Recipe(), cpu, World(0, n, local_size=n, mesh=Mesh(fsdp=n)))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_files_for_slurm_and_kubernetes_can_be_read() -> None:
    """Each is parsed by whoever reads it, and starts as many processes as its mesh has."""
    from torch.distributed.run import get_args_parser

    commands = []
    for script in blocks("sh"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        joined = script.replace("\\\n", " ")
        line = next(line for line in joined.splitlines() if "torchrun" in line)
        commands.append(shlex.split(line.replace("$SLURM_NNODES", "2"))[shlex.split(line).index("torchrun") :])
    (job,) = (yaml.safe_load(text) for text in blocks("yaml"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    workers = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = workers["template"]["spec"]["containers"]
    counts = ["--nnodes", str(workers["replicas"]), "--nproc-per-node", job["spec"]["nprocPerNode"]]
    commands.append([container["command"][0], *counts, *container["command"][1:]])
    assert len(commands) == 3
    for command in commands:
        given = get_args_parser().parse_args(command[1:])
        assert given.module
        assert given.training_script == "anyformer"
        words = given.training_script_args
        mesh = words[words.index("--mesh") + 1]
        assert parse(mesh, int(given.nnodes) * int(given.nproc_per_node)).fsdp == 16
        assert run(*words, "--help").exit_code == 0
