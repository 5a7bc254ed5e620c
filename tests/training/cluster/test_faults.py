"""Whatever ends one process of a run ends all, one of them says why, and the same command goes on from the last checkpoint."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyformer.disk.seal import sealed
from tests.training import killing
from tests.training.cluster.processes import processes
from tests.training.cluster.runs import ran

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PATIENCE_SECONDS = 300.0  # of processes that others take the cores from
FAULTS = int(os.environ.get("ANYFORMER_FAULTS", "100"))  # of the long tests together
LAUNCH = """
import sys
from anyformer.training.cluster.launch import launch
sys.exit(launch(2, sys.argv[2:], max_restarts=int(sys.argv[1])))
"""


class Launched:
    """`launch` in a process of its own, which a test may signal."""

    def __init__(self, out: Path, what: str = "none", rank: int = 0, step: int = 0, **how: object) -> None:
        self.pids = out.parent / "pids"
        self.pids.mkdir(exist_ok=True)
        given = [out, how.get("mesh", "fsdp=2"), how.get("limit", 60), what, rank, step, how.get("save", "now")]
        words = [str(how.get("restarts", 0)), "-m", "tests.training.cluster.faulty", *map(str, given)]
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        environment = {**os.environ, "PYTHONPATH": path, "TELL_PIDS": str(self.pids), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *words], stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def end(self) -> tuple[int, list[str]]:
        """(status, the lines that begin with error)."""
        try:
            _, said = self.process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self.process.kill()
        self.said = said
        return self.process.returncode, [line for line in said.splitlines() if line.startswith("error")]

    def workers(self) -> list[int]:
        return [json.loads(path.read_text()) for path in sorted(self.pids.iterdir())]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def check_all_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids)), "orphans"


def losses(out: Path) -> list[tuple[str, ...]]:
    return killing.losses(out)


def steps_made(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return sum('"loss"' in line for line in metrics.read_text().splitlines()) if metrics.exists() else 0


def checkpoints(out: Path) -> list[int]:
    found = sorted((out / "checkpoints").glob("step-*"))
    for path in found:
        sealed(path)
    return [int(path.name.removeprefix("step-")) for path in found]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    with processes(2) as pool:
        pool(ran, "fsdp=2", out)
    return losses(out)


def wait_for(run: Launched, out: Path, steps: int) -> None:
    while steps_made(out) < steps and run.process.poll() is None:
        time.sleep(0.02)


def test_killed_it_goes_on_by_itself_and_told_to_stop_it_saves(tmp_path: Path, unbroken: list[tuple[str, ...]]) -> None:
    """Both processes begin again after the checkpoint of step 8, and stop at the same step."""
    out = tmp_path / "run"
    run = Launched(out, "kill", 1, 10, restarts=1)
    wait_for(run, out, 13)
    run.process.send_signal(signal.SIGTERM)
    status, said = run.end()
    assert (status, len(said)) == (128 + signal.SIGTERM, 2), run.said
    assert "rank 1 is gone" in said[0]
    stopped = re.search(r"stopped by SIGTERM after step (\d+)", said[1])
    assert stopped is not None
    assert checkpoints(out)[-1] == int(stopped[1]) == steps_made(out)
    mine = losses(out)
    assert [row for row in mine if len(row) > 3] == [row for row in unbroken if len(row) > 3][: steps_made(out)]
    assert not list(out.rglob(".tmp-*"))
    check_all_gone(run.workers())


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    run = Launched(tmp_path / "run", "hang", 1, 6, limit=4)
    status, said = run.end()
    assert (status, len(said)) == (1, 1), run.said
    assert "rank 1 has not answered for 4 s" in said[0]
    assert checkpoints(tmp_path / "run") == [4]
    check_all_gone(run.workers())


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2"])
def test_killed_and_gone_on_with_it_is_the_same_run(tmp_path: Path, mesh: str, unbroken: list[tuple[str, ...]]) -> None:
    run = Launched(tmp_path / "run", "kill", 0, 10, restarts=1, mesh=mesh)
    status, said = run.end()
    assert (status, len(said)) == (0, 1), run.said
    assert "rank 0 is gone" in said[0]
    if mesh == "fsdp=2":
        assert losses(tmp_path / "run") == unbroken


@pytest.mark.slow
def test_the_launcher_killed_leaves_nobody(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = Launched(out)
    wait_for(run, out, 2)
    pids = run.workers()
    assert len(pids) == 2
    assert all(map(alive, pids))
    run.process.kill()
    check_all_gone(pids)
    run.end()
    assert Launched(out).end() == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_rank(tmp_path: Path, rank: int, unbroken: list[tuple[str, ...]]) -> None:
    out = tmp_path / "run"
    run = Launched(out, "disk", rank, 6)
    status, said = run.end()
    assert (status, len(said)) == (1, 1), run.said
    assert "cannot save the checkpoint" in said[0] or "cannot write" in said[0]
    assert checkpoints(out) == [4]
    assert not list(out.rglob(".tmp-*"))
    assert Launched(out).end() == (0, [])
    assert losses(out) == unbroken


@pytest.mark.slow
def test_an_error_of_one_rank_is_said_once(tmp_path: Path) -> None:
    run = Launched(tmp_path / "run", "raise", 1, 3)
    assert run.end() == (2, ["error: this rank alone cannot go on"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_faults_lose_nothing(tmp_path: Path, unbroken: list[tuple[str, ...]], seed: int) -> None:
    """Ranks killed, stopped, out of room, hanging, at any step, until the run is done; then again."""
    draw, faults, lives, begun = random.Random(seed), 0, 0, time.monotonic()
    while faults < FAULTS / 4:
        out = tmp_path / str(lives)
        lives += 1
        status = 1
        while status:
            what = draw.choice(("kill", "kill", "kill", "stop", "disk", "hang"))
            step, save = steps_made(out) + draw.randint(1, 5), draw.choice(("now", "async"))
            run = Launched(out, what, draw.randrange(2), step, limit=6, save=save)
            status, said = run.end()
            assert status == 0 or len(said) == 1, run.said
            faults += status != 0
            sys.stdout.write(f"{time.monotonic() - begun:.0f} s: {faults} faults, {lives} runs, {what}: {status}\n")
            check_all_gone(run.workers())
        each = {row[0]: row for row in losses(out) if row[-1].startswith("lr")}
        assert each == {row[0]: row for row in unbroken if row[-1].startswith("lr")}
        checkpoints(out)


@pytest.mark.slow
def test_a_missing_part_is_said_once(tmp_path: Path) -> None:
    """By all processes together, before a step is made, and none waits for the one that found it."""
    out = tmp_path / "run"
    assert Launched(out, "raise", 0, 5).end()[0] == 2
    part = sorted((out / "checkpoints" / "step-00000004" / "optimizer").iterdir())[1]
    part.unlink()
    status, said = Launched(out).end()
    assert (status, len(said)) == (2, 1)
    assert f"{part.name}" in said[0]
    assert "missing" in said[0]


def by_hand(out: Path, rank: int, port: int) -> subprocess.Popen[str]:
    """A process that is told of the others by the environment alone, as schedulers do it."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    told |= {"TORCHELASTIC_RESTART_COUNT": 0, "PYTHONPATH": path, "OMP_NUM_THREADS": 1, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = ["-m", "tests.training.cluster.faulty", out, "fsdp=2", 30, "none", 0, 0, "now"]
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
    return subprocess.Popen(
        [sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )


def ended(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    """(their statuses, all that they say)."""
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], [line for each in said for line in each.splitlines()]


@pytest.mark.slow
def test_a_port_in_use_is_said_once(tmp_path: Path) -> None:
    """By a server that takes connections and never answers; all end."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, said = ended([by_hand(tmp_path / "run", rank, port) for rank in range(2)])
    assert (status, len(said)) == ([2, 2], 1), said
    assert re.match(rf"error: rank 0 cannot .*localhost:{port}.*address already in use.*MASTER_PORT", said[0])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["version", "data"])
def test_a_rank_that_was_started_otherwise(tmp_path: Path, what: str) -> None:
    """All refuse before anything is written, and one says so."""
    run = Launched(tmp_path / "run", what, 1)
    status, said = run.end()
    assert (status, len(said)) == (2, 1), run.said
    assert f"rank 1 has another {what} than rank 0" in said[0]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    check_all_gone(run.workers())


class Node(Launched):
    """One of two agents of torchrun, each with a process, that stand for machines."""

    def __init__(self, out: Path, number: int, port: int, **how: object) -> None:
        self.pids = out.parent / "pids"
        self.pids.mkdir(exist_ok=True)
        meet = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "a-test"]
        meet += ["--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", f"is_host={int(number == 0)},join_timeout=60"]
        given = [out, "fsdp=2", 30, how.get("what", "none"), 0, how.get("step", 0), "now"]
        words = [*meet, "--local-addr", "localhost", "-m", "tests.training.cluster.faulty", *map(str, given)]
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        environment = {**os.environ, "PYTHONPATH": path, "TELL_PIDS": str(self.pids), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words],
            stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_machine_that_dies(tmp_path: Path, dies: int) -> None:
    """Its agent and its process are gone at once; the other's end, one line says so, and one machine goes on from there."""
    out = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    nodes = [Node(out, number, port) for number in range(2)]
    wait_for(nodes[1 - dies], out, 6)
    pids = nodes[0].workers()
    assert len(pids) == 2
    nodes[dies].process.kill()
    status, said = nodes[1 - dies].end()
    nodes[dies].end()
    assert status != 0, nodes[1 - dies].said
    assert len(said) == 1, nodes[1 - dies].said
    assert re.search(r"rank 1 is gone|machine where all processes meet \(\w+\) is gone", said[0])
    check_all_gone(pids)
    assert checkpoints(out)[-1] >= 4
    assert Launched(out).end() == (0, [])
