"""Steps that keep less give the same: against plain PyTorch and finite differences, and what they keep is counted."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.memory_efficient import (
    MemoryEfficientConvolution,
    MemoryEfficientGatedDown,
    MemoryEfficientRMSNorm,
)


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


@pytest.mark.parametrize("bias", [True, False])
def test_gated_down_against_finite_differences(bias: bool) -> None:
    gate, up, weight = numbers(2, 3, 8), numbers(2, 3, 8), numbers(6, 8)
    shift = numbers(6) if bias else None
    assert torch.equal(
        MemoryEfficientGatedDown.apply(gate, up, weight, shift, F.silu), F.linear(F.silu(gate) * up, weight, shift)
    )
    inputs: Any = (gate, up, weight, shift) if bias else (gate, up, weight)
    assert torch.autograd.gradcheck(lambda g, u, w, b=None: MemoryEfficientGatedDown.apply(g, u, w, b, F.silu), inputs)


@pytest.mark.parametrize("weighted", [True, False])
def test_norm_by_root_against_finite_differences(weighted: bool) -> None:
    x, weight = numbers(3, 5, 24), numbers(24) if weighted else None
    assert torch.equal(MemoryEfficientRMSNorm.apply(x, weight, 1e-3), F.rms_norm(x, (24,), weight, 1e-3))
    inputs: Any = (x, weight) if weighted else (x,)
    assert torch.autograd.gradcheck(lambda x, w=None: MemoryEfficientRMSNorm.apply(x, w, 1e-3), inputs)


@pytest.mark.parametrize("size", [1, 3, 6, 12])
def test_convolution_in_blocks_against_finite_differences(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryEfficientConvolution, "BLOCK", 4)  # 10 tokens: two blocks and a half
    x, weight = numbers(2, 10, 3), numbers(3, size)
    theirs = F.conv1d(F.pad(x.mT, (size - 1, 0)), weight[:, None], groups=3).mT
    torch.testing.assert_close(MemoryEfficientConvolution.apply(x, weight), theirs)
    assert torch.autograd.gradcheck(MemoryEfficientConvolution.apply, (x, weight))


def kept_nbytes(result: Tensor) -> int:
    """Return the bytes that the nodes between a result and its leaves hold for the backward pass."""
    kept: dict[int, int] = {}
    nodes, seen = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for value in [*saved, *getattr(node, "saved_tensors", ())]:
            if isinstance(value, Tensor):
                kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        nodes += [sharing for sharing, _ in node.next_functions]
    return sum(kept.values())


def test_they_keep_half() -> None:
    gate, up, weight, gain = numbers(64, 100), numbers(64, 100), numbers(4, 100), numbers(100)
    wide = gate.nbytes
    plain, memory_efficient = (
        F.linear(F.silu(gate) * up, weight),
        MemoryEfficientGatedDown.apply(gate, up, weight, None, F.silu),
    )
    assert kept_nbytes(plain) - kept_nbytes(memory_efficient) == 2 * wide
    assert kept_nbytes(MemoryEfficientRMSNorm.apply(gate, gain, 1e-6)) == wide + gain.nbytes
    assert kept_nbytes(F.rms_norm(gate, (100,), gain, 1e-6)) >= 2 * wide
