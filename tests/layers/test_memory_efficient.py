"""Steps that keep less give the same: against plain PyTorch and finite differences, and what they keep is counted."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.memory_efficient import (
    MemoryEfficientConvolution,
    MemoryEfficientGatedDown,
    MemoryEfficientLinear,
    MemoryEfficientRMSNorm,
    norm_of,
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


def mapped(x: Tensor, gain: Tensor | None, *maps: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear maps of what a norm made, beside each other."""
    y = MemoryEfficientRMSNorm.apply(x, gain, 1e-3)
    assert norm_of(y) is not None
    return torch.cat([MemoryEfficientLinear.apply(y, each, bias, norm_of(y)) for each in maps], -1)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_maps_of_a_norm_against_finite_differences(weighted: bool, bias: bool) -> None:
    x, gain = numbers(3, 5, 8), numbers(8) if weighted else None
    maps, shift = (numbers(4, 8), numbers(4, 8) * 2), numbers(4) if bias else None
    plain = [F.linear(F.rms_norm(x, (8,), gain, 1e-3), each, shift) for each in maps]
    assert torch.equal(mapped(x, gain, *maps, bias=shift), torch.cat(plain, -1))
    inputs = [each for each in (x, *maps, gain, shift) if each is not None]

    def run(x: Tensor, a: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
        others = iter(rest)
        return mapped(x, next(others) if weighted else None, a, b, bias=next(others) if bias else None)

    assert torch.autograd.gradcheck(run, inputs)


def test_a_norm_is_made_again_for_each_backward_pass_and_frozen_maps_need_none() -> None:
    x, gain, weight = numbers(3, 8), numbers(8), numbers(4, 8)
    out = mapped(x, gain, weight).sum()
    first = torch.autograd.grad(out, (weight,), retain_graph=True)  # the norm's own backward pass does not run
    both = [torch.autograd.grad(out, (x, gain, weight), retain_graph=True) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert torch.equal(first[0], both[0][2])
    y = MemoryEfficientRMSNorm.apply(x, gain, 1e-3)
    node = norm_of(y)
    (MemoryEfficientLinear.apply(y, weight.detach(), None, node) * 2).sum().backward(inputs=(y,))
    assert node.normed is None
    with torch.no_grad():
        assert norm_of(y) is None
    assert norm_of(x) is None
    assert norm_of(x * 2) is None


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
    assert kept_nbytes(mapped(gate, gain, weight, weight)) == wide + gain.nbytes + weight.nbytes
