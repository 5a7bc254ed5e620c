"""Products of float32 vectors with int8 matrices as products of integers: exact but for a vector's rounding to 23 bits.

A vector becomes a multiple of integers of three bytes, and its product with a row the sum of three: of bytes with int8 numbers,
which processors with VNNI (2019) multiply at four times the rate of float32 and add up in 32 bits, so that nothing is rounded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import KernelError
from anyformer.layers.held import REFUSED
from anyformer.layers.reordered import ReorderedBlocks

BYTES = 3
WIDEST = (2**31 - 1) // (255 * 127)  # of a row: so many products of a byte and an int8 number add up to 32 bits at most
# What the largest of a vector's numbers becomes, and what is added to all so that none is below 0.
HALF = 2.0**22
# From 2^23 to 2^24 a float32 is an integer, in its lower 23 bits: a number added to this is rounded to one.
MIDDLE = 2.0**23 + HALF
LEAST = 2.0**-100  # of a vector's largest number, which is divided by
POWERS = torch.tensor([256.0**i for i in range(BYTES)], dtype=torch.float32, device="cpu")
OF_HALF, OF_MIDDLE = (torch.tensor(each, dtype=torch.float32, device="cpu") for each in (HALF, MIDDLE))


@cache
def has_integer_products() -> bool:
    """Whether this processor makes products of bytes at once and adds them up in 32 bits: that it can, and that it does."""
    able = torch.cpu.get_capabilities()
    if not (able.get("avx512_vnni") or able.get("avx_vnni")) or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        return False
    most = Int8Blocks(torch.full((16, 64), 127, dtype=torch.int8), torch.ones(16))
    return bool(most.added_up(torch.full((1, 64), 255, dtype=torch.uint8)).mul(HALF).eq(64 * 255 * 127).all())


class Int8Blocks(ReorderedBlocks):
    """Of int8 numbers [d_out, d_in], each row times a scale [d_out]. Raises KernelError where it is written to."""

    rounded = True

    def __init__(self, numbers: Tensor, scales: Tensor) -> None:
        self.shape = (numbers.shape[0], numbers.shape[1])
        with torch.inference_mode(False):
            self.held = torch.ops.onednn.qlinear_prepack(numbers.contiguous(), None)
            self.unit = scales.float() / HALF
            self.shifted = -numbers.sum(1, dtype=torch.int32) * scales.float()  # what comes of HALF in place of 0
            self.zero_points = torch.zeros(len(numbers), dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        return self.held.numel() + sum(each.nbytes for each in (self.unit, self.shifted, self.zero_points))

    def plain(self) -> Tensor:
        return self.held.to_dense().t() * (self.unit * HALF)[:, None]

    def write(self, matrix: Tensor) -> None:
        raise KernelError(REFUSED)

    def part(self, rows: slice) -> Int8Blocks:
        return Int8Blocks(self.held.to_dense().t()[rows], self.unit[rows] * HALF)

    def __reduce__(self) -> tuple[Any, ...]:
        return Int8Blocks, (self.held.to_dense().t(), self.unit * HALF)

    def products(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        n, width = rows.shape
        largest = rows.abs().amax(-1, True).clamp_min_(LEAST)
        numbers = torch.addcmul(OF_MIDDLE, rows, OF_HALF / largest)
        digits = numbers.view(torch.uint8).as_strided((BYTES, n, width), (1, 4 * width, 4)).contiguous()
        y = self.added_up(digits)
        y = torch.mv(y.view(BYTES, n * self.shape[0]).t(), POWERS).view(n, -1).add_(self.shifted).mul_(largest)
        return (y if bias is None else y.add_(bias)).view(*x.shape[:-1], -1)

    def added_up(self, digits: Tensor) -> Tensor:
        """The products […, d_out] of bytes […, d_in] with the rows, in units of their scales."""
        given = self.held, self.unit, self.zero_points, None, 1.0, 0, torch.float32, "none", [], ""
        return torch.ops.onednn.qlinear_pointwise(digits, 1.0, 0, *given)
