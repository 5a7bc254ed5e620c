"""Hostile input ends as promised: one line and a status, within limits, nothing changed in silence and nothing left behind."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.kinds import AREAS, WEIGHTS

ROOT = Path(__file__).parents[2]
KEEP = ROOT / ".hostile"  # inputs that broke a promise, to be replayed
INPUTS, SEED = 120, 13
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks are Linux's")


def hunt(inputs: int, seed: int, areas: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    words = [f"--inputs={inputs}", f"--seed={seed}", f"--kinds={areas}", f"--processes={processes}", f"--keep={KEEP}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-m", "tests.hostile.hunt", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("areas", ["specs,cli,text", "foreign,runs"])  # two, since each imports everything anew
def test_some_inputs(areas: str) -> None:
    share = sum(WEIGHTS[kind] for kind in WEIGHTS if AREAS[kind] in areas) / sum(WEIGHTS.values())
    ended = hunt(round(INPUTS * share), SEED, areas)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_hundred_thousand_inputs() -> None:
    """With a seed that is drawn, or HOSTILE_SEED; HOSTILE_INPUTS says how many."""
    seed = int(os.environ.get("HOSTILE_SEED", secrets.randbits(32)))
    inputs = int(os.environ.get("HOSTILE_INPUTS", "100000"))
    ended = hunt(inputs, seed, ",".join(set(AREAS.values())), processes=os.cpu_count() or 1)
    print(ended.stdout)  # noqa: T201
    assert ended.returncode == 0, ended.stdout + ended.stderr
