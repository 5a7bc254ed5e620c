"""Weights in 8 bits, each row with a scale: LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339, section 2), weights alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.int8_blocks import WIDEST, Int8Blocks, has_integer_products
from anyformer.layers.linear import row_sums
from anyformer.layers.packed import Held, PackingScheme, aten, pieces, products_in_pieces
from anyformer.layers.reordered import ReorderedBlocks

FEW = 16  # vectors up to which the product with the numbers as they lie is faster (AVX2)
BLOCK = 32  # numbers that the operator takes at once; at other widths it reads beyond the row
MOST = 127


class Int8(PackingScheme):
    """A number is scale · n, n from -127 to 127: int8 […, d_out, d_in] and bfloat16 […, d_out].

    Up to `FEW` vectors are rounded to bfloat16, as the operator takes them; more, and one that is compiled for, are multiplied
    in their own dtype.
    """

    bits = 8
    axis_of_rows = -1
    on_cpu_alone = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        return True

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) + 2 * math.prod(shape[:-1])

    def pack(self, matrix: Tensor) -> Held:
        numbers = torch.empty_like(matrix, dtype=torch.int8)
        scales = (torch.linalg.vector_norm(matrix, torch.inf, 1) / MOST).bfloat16()
        scales = torch.where(scales == 0, torch.ones_like(scales), scales)
        for here in pieces(*matrix.shape):
            numbers[here] = (matrix[here] / scales[here].float()[:, None]).round_().clamp_(-MOST, MOST)
        return numbers, scales

    def unpack(self, held: Held) -> Tensor:
        numbers, scales = held
        return numbers * scales.float()[..., None]

    def products(self, x: Tensor, held: Held) -> Tensor:
        numbers, scales = held
        if len(x) == 1 and torch.compiler.is_compiling():  # in a loop that the compiler writes
            return (row_sums(x[0], numbers) * scales)[None].to(x.dtype)
        if x.is_cpu and len(x) <= FEW and x.shape[1] % BLOCK == 0:
            return aten._weight_int8pack_mm(x.bfloat16(), numbers, scales).to(x.dtype)
        return products_in_pieces(x, len(numbers), lambda here: numbers[here]).mul_(scales)

    def in_blocks(self, held: Held) -> ReorderedBlocks | None:
        return Int8Blocks(*held) if has_integer_products() and held[0].shape[-1] <= WIDEST else None

    def rows(self, ids: Tensor, held: Held) -> Tensor:
        numbers, scales = held
        return F.embedding(ids, numbers) * scales.float()[ids][..., None]
