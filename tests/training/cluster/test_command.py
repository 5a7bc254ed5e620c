"""The command in several processes: the same figures and files as in one, whoever starts them, and one line where it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anyformer.hub import load
from tests.cli.running import SIZES, answer, succeeded, write_text
from tests.cli.running import run as here

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent.parent
PATIENCE_SECONDS = 180.0
# A whole batch at once in one process is another order of sums than two halves.
SMALL = tuple(word for option in {**SIZES, "--vocab": "300", "--micro-tokens": "128"}.items() for word in option)


def started(*words: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=PATIENCE_SECONDS, check=False
    )


def figures(out: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "tokens_per_second", "share_of_peak")
    return [{name: value for name, value in row.items() if name not in timed} for row in rows]


def test_whoever_starts_them_the_figures_are_those_of_one_process(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    given = ("train", "llama3-8b", *SMALL, "--data", text)
    succeeded(here(*given, "--out", tmp_path / "one"))
    auto = started("anyformer", *given, "--out", tmp_path / "auto", "--nproc", 2, "--json")
    assert auto.returncode == 0, auto.stderr
    assert json.loads(auto.stdout)["steps"] == 16, "one process prints"
    assert figures(tmp_path / "auto") == figures(tmp_path / "one")
    by = ("torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "anyformer")
    shared = started(*by, *given, "--out", tmp_path / "shared", "--mesh", "fsdp=2")
    assert shared.returncode == 0, shared.stderr
    assert "mesh fsdp=2" in shared.stderr
    for mine, one in zip(figures(tmp_path / "shared"), figures(tmp_path / "one"), strict=True):
        assert mine == pytest.approx(one, rel=1e-5)
    found = [answer("evaluate", tmp_path / name, "--data", text)["loss"] for name in ("shared", "one")]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    succeeded(here("convert", tmp_path / "shared", tmp_path / "hf"))
    converted, saved = (load(tmp_path / name)[0].state_dict() for name in ("hf", "shared"))
    assert all(torch.equal(converted[name], tensor) for name, tensor in saved.items())
    succeeded(here("generate", "--model", tmp_path / "shared", "line"))


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    given = ("anyformer", "train", "llama3-8b", *SMALL, "--out", tmp_path / "out", "--nproc", 2)
    missing = started(*given, "--data", tmp_path / "missing.txt")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.count("\n") == 1, missing.stderr
    assert "missing.txt" in missing.stderr
    assert not (tmp_path / "out").exists()
