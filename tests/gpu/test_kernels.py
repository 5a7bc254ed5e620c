"""Law 10 on the device: blocks and FlexAttention, both passes, agree with attention written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import anyformer as af
from anyformer.errors import KernelError
from anyformer.families import preset
from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.flex import TILE, Flex
from anyformer.kernels.sdpa import PLANNED, SDPA
from anyformer.layers import Causal, Mask
from anyformer.layers.context import Kernel, SoftmaxOptions
from anyformer.layers.tokens import Tokens
from anyformer.resizing import shrink
from tests.gpu.machine import DEVICE, REHEARSED, on_gpu, there
from tests.gpu.test_presets import both_passes
from tests.laws.models import randomised
from tests.laws.test_blocked import MASKS, PACKINGS, each_mask, tokens, window
from tests.laws.tolerance import FLOAT32, close, distance, gradient_distance

pytestmark = on_gpu
HEADS, KV_HEADS, WIDTH = 4, 2, 32  # FlexAttention takes no narrower heads on a GPU

Found = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def moved(of: Tokens) -> Tokens:
    return of.each(lambda fact: fact.to(DEVICE))


def attention(
    kernel: Kernel,
    mask: Mask,
    of: Tokens,
    dtype: torch.dtype,
    *,
    cap: float | None = None,
    with_sink: bool = False,
    with_bias: bool = False,
) -> Found:
    """(values, gradients of q, k, v, the sink, the table of distances), on the device where `of` lies."""
    generator, device = torch.Generator().manual_seed(0), of.position.device

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_()

    q, k, v = leaf(2, HEADS, of.n, WIDTH), leaf(2, KV_HEADS, of.n, WIDTH), leaf(2, KV_HEADS, of.n, WIDTH)
    sink, table, grad = leaf(HEADS), leaf(HEADS, 2 * of.n), leaf(2, HEADS, of.n, WIDTH).detach()

    def bias(query: Tokens, key: Tokens) -> Tensor:
        apart = query.as_queries().position - key.as_keys().position
        return table[:, apart[:, 0] + of.n].transpose(0, 1)

    seen = kernel.prepare(mask, bias if with_bias else None, of, of, HEADS)  # type: ignore[attr-defined]
    y, _ = kernel(q, k, v, seen, SoftmaxOptions(0.3, softcap=cap, sink=sink if with_sink else None))
    inputs = [q, k, v, *([sink] if with_sink else []), *([table] if with_bias else [])]
    found = (y, *torch.autograd.grad((y * grad).sum(), inputs, materialize_grads=True))
    assert all(each.device.type == device.type for each in found)
    return tuple(each.detach().cpu() for each in found)


def agree(kernel: Kernel, mask: Mask, of: Tokens, dtype: torch.dtype = torch.float32, **how: Any) -> None:
    expected = attention(Eager(), mask, of, torch.float64, **how)
    for each in (Eager(), kernel):
        for ours, exact in zip(attention(each, mask, moved(of), dtype, **how), expected, strict=True):
            close(ours.double(), exact, FLOAT32)


@each_mask
@pytest.mark.parametrize("packing", PACKINGS)
def test_blocks(mask: Mask, packing: str) -> None:
    for cap, with_sink, with_bias in ((None, False, False), (2.0, True, True)):
        agree(Blocked(8), mask, tokens(61, packing), cap=cap, with_sink=with_sink, with_bias=with_bias)


@each_mask
@pytest.mark.parametrize("packing", PACKINGS)
def test_pytorchs_own(mask: Mask, packing: str) -> None:
    for n, with_bias in ((61, False), (64, True)):
        agree(SDPA(), mask, tokens(n, packing), with_bias=with_bias)


@pytest.mark.parametrize(
    ("name", "packing", "cap", "with_sink", "with_bias"),
    [
        ("causal", "plain", None, False, False),
        ("sliding window", "documents", 2.0, True, False),
        ("longformer by head", "padded", None, True, False),
        ("strided", "plain", None, False, True),
        ("bigbird", "documents", None, False, False),
        ("segments", "padded", 2.0, False, True),
    ],
)
def test_flex(name: str, packing: str, cap: float | None, with_sink: bool, with_bias: bool) -> None:
    flex = Flex(compiled=not REHEARSED)
    given = {"cap": cap, "with_sink": with_sink, "with_bias": with_bias}
    if REHEARSED:
        pytest.skip("no backward pass on a CPU")
    agree(flex, MASKS[name], tokens(2 * TILE + 61, packing), **given)


@pytest.mark.parametrize("name", ["llama3.2-1b", "gemma2-2b", "gpt-oss-20b", "bloom-560m", "t5-small"])
def test_flex_in_models(name: str) -> None:
    """Soft-caps, sinks, ALiBi, buckets."""
    if REHEARSED:
        pytest.skip("no backward pass on a CPU")
    shrunk = "bloom-560m+d_model=64+n_heads=4+n_layers=2+vocab_size=97"  # whose least heads are narrower
    model = randomised(af.load_spec(shrunk) if name == "bloom-560m" else shrink(preset(name).spec))
    expected, wanted = both_passes(model, kernel="eager")
    logits, gradients = both_passes(there(model), kernel="flex")
    assert distance(logits, expected) < FLOAT32
    assert gradient_distance(gradients, wanted) < FLOAT32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash(dtype: torch.dtype) -> None:
    """What a GPU takes in place of what a CPU does: flash and memory-efficient attention, with and without a mask."""
    rounding = FLOAT32 if dtype == torch.float32 else 0.02
    for mask in (Causal(), Causal() & window(9)):
        of = tokens(257, "plain")
        expected = attention(Eager(), mask, of, torch.float64)
        for ours, exact in zip(attention(SDPA(), mask, moved(of), dtype), expected, strict=True):
            assert distance(ours.double(), exact) < rounding


def test_heads_too_narrow() -> None:
    """FlexAttention's kernels multiply 16 numbers at least."""
    if REHEARSED:
        pytest.skip("CPUs take any")
    q = torch.randn(1, 2, 8, 8, device=DEVICE)
    of = moved(tokens(8, "plain"))
    flex = Flex()
    with pytest.raises(KernelError, match=r"flex takes heads of 16 features and more on a GPU, not 8; use kernel="):
        flex(q, q, q, flex.prepare(Causal(), None, of, of, 2), SoftmaxOptions(1.0))


class Named(TorchDispatchMode):
    """The names of the operators that are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [200, 256])
def test_no_plan_of_a_length_that_may_come_once(n: int) -> None:
    """Plans of cuDNN take .05 s and more for each new shape; it is asked about multiples of 128 alone, if at all."""
    q = torch.randn(1, 2, n, 64, device=DEVICE, dtype=torch.bfloat16)
    of, seen = moved(tokens(n, "plain")), Named()
    with seen:
        SDPA()(q, q, q, SDPA().prepare(Causal(), None, of, of, 2), SoftmaxOptions(0.125))
    asked = [name for name in seen.names if "dot_product" in name]
    assert asked
    if n % PLANNED:
        assert not any("cudnn" in name for name in asked)
