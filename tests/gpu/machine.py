"""Where the tests of an accelerator run: on CUDA, and nowhere without it; ANYFORMER_TESTS_ON=cpu rehearses them."""

from __future__ import annotations

import copy
import os

import pytest
import torch

from anyformer.layers import RouterSpec
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.parity import single
from tests.laws.tolerance import FLOAT32

DEVICE = torch.device(os.environ.get("ANYFORMER_TESTS_ON", "cuda"))
REHEARSED = DEVICE.type == "cpu"
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not REHEARSED and not torch.cuda.is_available(), reason="no accelerator here"),
]


def there(model: Transformer) -> Transformer:
    """Return the same model on the device."""
    return copy.deepcopy(model).to(DEVICE)


def enlarges(spec: ModelSpec) -> bool:
    """Return whether a state, a choice or sparsity enlarges what float32 rounds: compared in float64."""
    return single(spec) > FLOAT32 or any(isinstance(part, RouterSpec) for part in spec.nested())
