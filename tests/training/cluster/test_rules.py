"""Steps by each rule are those of one process, whoever has which part of a matrix."""

from __future__ import annotations

import pytest
import torch

from anyformer.recipe import Adafactor, Lion, Muon, OptimizerSpec
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import trained_in_float64

RULES = (Muon(lr=0.02, eps=1.0), Lion(lr=1e-3), Adafactor(lr=0.02, weight_decay=0.5))
MESHES = ("dp=2", "fsdp=2", "tp=2", "pp=2", "fsdp=2,ep=2")
QUICK = {("Muon", "fsdp=2"), ("Muon", "fsdp=2,ep=2"), ("Lion", "tp=2"), ("Adafactor", "fsdp=2"), ("Adafactor", "tp=2")}


@pytest.mark.parametrize(
    ("rule", "mesh"),
    [
        pytest.param(
            rule, mesh, id=f"{rule.kind}-{mesh}", marks=[] if (rule.kind, mesh) in QUICK else [pytest.mark.slow]
        )
        for rule in RULES
        for mesh in MESHES
    ],
)
def test_two_processes_are_one(two: Processes, rule: OptimizerSpec, mesh: str) -> None:
    """In float64, and to its rounding."""
    name, changes = "mixtral-8x7b", {"optimizer": rule, "clip": None}
    found = two(trained_in_float64, name, mesh, 3, 4, 8, changes)[0]
    wanted = trained_in_float64(None, name, "", 3, 4, 8, changes)
    assert wanted is not None
    assert found.losses == pytest.approx(wanted.losses, rel=1e-9)
    for weight, one in wanted.weights.items():
        torch.testing.assert_close(found.weights[weight], one, rtol=1e-7, atol=1e-9)
