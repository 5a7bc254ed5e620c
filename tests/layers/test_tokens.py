"""What passes share about tokens and devices."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from anyformer.layers.execution import constant
from tests.laws.parity import InDouble


def test_constants_are_held_once_for_each_dtype_and_learn_nothing() -> None:
    """Made in inference mode first, they stand beside what learns; a compiler, and tensors without numbers, get their own."""
    numbers, beside = [0.1, 0.2], torch.zeros(1)
    with torch.inference_mode():
        held = constant(numbers, beside)
    assert constant(numbers, beside) is held
    assert not held.is_inference()
    with InDouble():
        assert constant(numbers, beside).equal(torch.tensor(numbers, dtype=torch.float64))
    assert constant(numbers, beside, torch.bfloat16).dtype == torch.bfloat16
    assert constant(numbers, beside.to("meta")).is_meta
    with FakeTensorMode():
        assert constant(numbers, torch.zeros(1)) is not held
