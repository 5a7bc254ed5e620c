"""Steps that keep less give the same: against plain PyTorch and finite differences, and what they keep is counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers import RMSNormSpec
from anyformer.layers.memory_efficient import (
    MemoryEfficientConvolution,
    MemoryEfficientDown,
    MemoryEfficientLayerNorm,
    MemoryEfficientLinear,
    MemoryEfficientRMSNorm,
    norm_of,
)
from anyformer.spec import Place


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


@pytest.mark.parametrize("inner", [gated, F.gelu])
@pytest.mark.parametrize("bias", [True, False])
def test_down_against_finite_differences(inner: Callable[..., Tensor], bias: bool) -> None:
    hidden = [numbers(2, 3, 8), numbers(2, 3, 8) * 2][: 2 if inner is gated else 1]
    weight, shift = numbers(6, 8), numbers(6) if bias else None
    plain = F.linear(inner(*hidden), weight, shift)
    assert torch.equal(MemoryEfficientDown.apply(inner, weight, shift, *hidden), plain)

    def run(w: Tensor, *rest: Tensor) -> Tensor:
        return MemoryEfficientDown.apply(inner, w, rest[0] if bias else None, *rest[bias:])

    assert torch.autograd.gradcheck(run, [each for each in (weight, shift, *hidden) if each is not None])


@pytest.mark.parametrize("weighted", [True, False])
def test_norm_by_root_against_finite_differences(weighted: bool) -> None:
    x, weight = numbers(3, 5, 24), numbers(24) if weighted else None
    assert torch.equal(MemoryEfficientRMSNorm.apply(x, weight, 1e-3), F.rms_norm(x, (24,), weight, 1e-3))
    inputs: Any = (x, weight) if weighted else (x,)
    assert torch.autograd.gradcheck(lambda x, w=None: MemoryEfficientRMSNorm.apply(x, w, 1e-3), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_weight_in_another_dtype_has_its_gradient(dtype: torch.dtype) -> None:
    """As float32's, to what the dtype rounds."""
    x, gradients = numbers(3, 5, 24, dtype=torch.float32), []
    for kind in (torch.float32, dtype):
        norm = RMSNormSpec().build(Place(24, (24,))).to(kind)
        torch.nn.init.constant_(norm.weight, 0.5)
        norm(x).square().sum().backward()
        assert norm.weight.grad.dtype == kind
        gradients.append(norm.weight.grad.float())
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=1e-2)


def rms(x: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    return MemoryEfficientRMSNorm.apply(x, gain, 1e-3)


def layer(x: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    return MemoryEfficientLayerNorm.apply(x, gain, shift, 1e-3)


Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
PLAIN: dict[Norm, Norm] = {
    rms: lambda x, gain, shift: F.rms_norm(x, x.shape[-1:], gain, 1e-3),
    layer: lambda x, gain, shift: F.layer_norm(x, x.shape[-1:], gain, shift, 1e-3),
}


def mapped(y: Tensor, *maps: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear maps of what a norm made, beside each other."""
    assert norm_of(y) is not None
    return torch.cat([MemoryEfficientLinear.apply(y, each, bias, norm_of(y)) for each in maps], -1)


@pytest.mark.parametrize("norm", [rms, layer])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_maps_of_a_norm_against_finite_differences(norm: Norm, weighted: bool, bias: bool) -> None:
    x, gain, moved = numbers(3, 5, 8), numbers(8) if weighted else None, numbers(2, 8)[0] if weighted else None
    maps, shift = (numbers(4, 8), numbers(4, 8) * 2), numbers(4) if bias else None
    plain = [F.linear(PLAIN[norm](x, gain, moved), each, shift) for each in maps]
    assert torch.equal(mapped(norm(x, gain, moved), *maps, bias=shift), torch.cat(plain, -1))

    def run(x: Tensor, a: Tensor, b: Tensor, *rest: Tensor) -> Tensor:
        given = iter(rest)
        gain, moved = (next(given), next(given)) if weighted else (None, None)
        return mapped(norm(x, gain, moved), a, b, bias=next(given, None))

    assert torch.autograd.gradcheck(run, [each for each in (x, *maps, gain, moved, shift) if each is not None])


@pytest.mark.parametrize("norm", [rms, layer])
def test_a_norm_is_made_again_for_each_backward_pass_and_frozen_maps_need_none(norm: Norm) -> None:
    x, gain, weight = numbers(3, 8), numbers(8), numbers(4, 8)
    out = mapped(norm(x, gain, None), weight).sum()
    first = torch.autograd.grad(out, (weight,), retain_graph=True)  # the norm's own backward pass does not run
    both = [torch.autograd.grad(out, (x, gain, weight), retain_graph=True) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert torch.equal(first[0], both[0][2])
    y = norm(x, gain, None)
    node = norm_of(y)
    (MemoryEfficientLinear.apply(y, weight.detach(), None, node) * 2).sum().backward(inputs=(y,))
    assert node.made is None
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
        MemoryEfficientDown.apply(gated, weight, None, gate, up),
    )
    assert kept_nbytes(plain) - kept_nbytes(memory_efficient) == 2 * wide
    root = gate[:, 0].numel() * gate.itemsize
    assert kept_nbytes(MemoryEfficientRMSNorm.apply(gate, gain, 1e-6)) == wide + gain.nbytes + root
    assert kept_nbytes(F.rms_norm(gate, (100,), gain, 1e-6)) >= 2 * wide
    kept = wide + gain.nbytes + weight.nbytes + root
    assert kept_nbytes(mapped(rms(gate, gain, None), weight, weight)) == kept
    assert kept_nbytes(mapped(layer(gate, gain, None), weight, weight)) == kept + root  # and the mean
