"""Processes that share the device: a run on a mesh is that of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer.training.checkpoint.metrics import read_metrics
from tests.cli.running import write_text
from tests.gpu.machine import DEVICE, on_gpu

pytestmark = on_gpu
ROOT = Path(__file__).parents[2]
SIZES = ("--params", "1M", "--vocab", "300", "--tokens", "2048", "--seq-len", "32", "--batch-tokens", "256")
MESHES = {
    "llama3-8b": ("dp=1", "dp=2", "fsdp=2", "fsdp=2,zero=2", "tp=2", "cp=2"),
    "mixtral-8x7b": ("fsdp=2,ep=2", "tp=2"),
    "deepseek-v3": ("fsdp=2,ep=2",),
    "mistral-7b-v0.1": ("cp=2",),
    "qwen3-next-80b-a3b": ("fsdp=2",),
}


def losses(name: str, folder: Path, mesh: str | None) -> list[float]:
    out = folder / (mesh or "alone")
    given = ["train", name, "--data", str(folder / "text.txt"), "--out", str(out), "--device", DEVICE.type, *SIZES]
    started = ["-m", "anyformer"]
    if mesh is not None:
        n = "1" if mesh == "dp=1" else "2"
        started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n, "-m", "tests.gpu.sharing"]
        given += ["--mesh", mesh]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, *started, *given], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [each.loss for each in read_metrics(out).steps]


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_is_one_process(name: str, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt")
    alone = losses(name, tmp_path, None)
    assert len(alone) == 8
    for mesh in MESHES[name]:
        assert losses(name, tmp_path, mesh) == pytest.approx(alone, rel=1e-6), mesh
