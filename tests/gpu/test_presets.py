"""Every preset, shrunk, on the device as on a CPU: both passes, in float64 as in float32 and bfloat16, and writing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.generation import generate_ids
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from anyformer.training.step.device import autocast
from tests.gpu.machine import DEVICE, enlarges, on_gpu, there
from tests.laws.models import SHRUNK, WRITERS, ids_for, randomised, runner, told
from tests.laws.parity import InDouble
from tests.laws.tolerance import FLOAT32, FLOAT64, distance, gradient_distance

pytestmark = on_gpu
CPU = torch.device("cpu")
STEADY = {name: spec for name, spec in SHRUNK.items() if not enlarges(spec)}

Passes = tuple[Tensor, dict[str, Tensor]]


def every(specs: dict[str, ModelSpec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in specs.items()])


def both_passes(model: Transformer, where: AbstractContextManager[object] | None = None, **options: Any) -> Passes:
    """Return logits and gradients of what is no padding, of one row padded on the left and one on the right, on a CPU."""
    device = next(model.parameters()).device
    ids = ids_for(model.spec, 2, 13).to(device)
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[1, -3:] = 0
    with where or nullcontext():
        out = runner(model)(ids, mask, **told(model.spec, ids), **options)
    assert out.logits.device.type == device.type
    weights = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(3)).to(device) * mask[..., None]
    model.zero_grad()
    (out.logits * weights).sum().backward()
    gradients = {name: value.grad.cpu() for name, value in model.named_parameters() if value.grad is not None}
    return out.logits.detach()[mask.bool()].cpu(), gradients


@every(SHRUNK)
def test_in_float64(spec: ModelSpec) -> None:
    with InDouble():
        model = randomised(spec).double()
        logits, gradients = both_passes(there(model))
        expected, wanted = both_passes(model)
    assert distance(logits, expected) < 1000 * FLOAT64
    assert gradient_distance(gradients, wanted) < 1000 * FLOAT64


@every(STEADY)
def test_in_float32(spec: ModelSpec) -> None:
    """Where its fused kernels sum in another order: measured up to 4e-5 for gradients, of Marian's encoder."""
    model = randomised(spec)
    logits, gradients = both_passes(there(model))
    expected, wanted = both_passes(model)
    assert distance(logits, expected) < FLOAT32
    assert gradient_distance(gradients, wanted) < 5 * FLOAT32


@every(STEADY)
def test_in_bfloat16(spec: ModelSpec) -> None:
    """No further from float32 than a CPU's bfloat16 is, twice over."""
    model = randomised(spec)
    expected, wanted = both_passes(model)
    logits, gradients = both_passes(model, autocast("bf16", CPU))
    found, moved = both_passes(there(model), autocast("bf16", DEVICE))
    assert distance(found, expected) < 2 * distance(logits, expected) + 0.01
    assert gradient_distance(moved, wanted) < 2 * gradient_distance(gradients, wanted) + 0.01


@every(WRITERS)
def test_writing(spec: ModelSpec) -> None:
    with InDouble():
        model = randomised(spec).double()
        given: dict[str, Any] = {"input_ids": ids_for(spec, 2, 5)}
        if spec.encoder is not None:
            given["decoder_input_ids"] = ids_for(spec, 2, 1, seed=2)
        expected = generate_ids(model, **given, max_new_tokens=8)
        moved = {name: ids.to(DEVICE) for name, ids in given.items()}
        found = generate_ids(there(model), **moved, max_new_tokens=8)
    assert found.device.type == DEVICE.type
    assert found.tolist() == expected.tolist()
