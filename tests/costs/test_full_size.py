"""Counting without a module equals the module on the meta device, at full size: nothing is allocated by either."""

from __future__ import annotations

import time

import pytest

from anyformer.costs import cost
from anyformer.families import PRESETS, Preset, preset
from anyformer.model import build
from anyformer.spec import parameters

# One of each family is fast enough for every run.
FIRST = {one.family: one.name for one in reversed([*PRESETS.values()])}
each = [
    pytest.param(one, id=name, marks=[] if name in FIRST.values() else pytest.mark.slow)
    for name, one in PRESETS.items()
]


@pytest.mark.parametrize("one", each)
def test_parameters(one: Preset) -> None:
    model, count = build(one.spec, seed=None, device="meta"), parameters(one.spec)
    assert count.total == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert count.frozen == sum(p.numel() for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("name", ["llama3.1-405b", "deepseek-v3", "gpt-oss-120b"])
def test_a_cost_takes_little_time(name: str) -> None:
    """A command has three seconds, two of which PyTorch's import may take."""
    start = time.process_time()
    for recompute in ("none", "full"):
        cost(preset(name).spec, recompute=recompute)
    assert time.process_time() - start < 2 * 1.0
