"""Steps by Muon are those of one process, whoever has which part of a matrix."""

from __future__ import annotations

import pytest
import torch

from anyformer.recipe import Muon
from tests.training.cluster.processes import Processes
from tests.training.cluster.steps import trained_in_float64

RULE = {"optimizer": Muon(lr=0.02, eps=1.0), "clip": None}


@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2", "tp=2", "pp=2", "fsdp=2,ep=2"])
def test_two_processes_are_one(two: Processes, mesh: str) -> None:
    """In float64, and to its rounding."""
    name = "mixtral-8x7b"
    found = two(trained_in_float64, name, mesh, 3, 4, 8, RULE)[0]
    wanted = trained_in_float64(None, name, "", 3, 4, 8, RULE)
    assert wanted is not None
    assert found.losses == pytest.approx(wanted.losses, rel=1e-9)
    for weight, one in wanted.weights.items():
        torch.testing.assert_close(found.weights[weight], one, rtol=1e-7, atol=1e-9)
