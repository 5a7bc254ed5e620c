"""Weights in 4 bits: 32 numbers of a row share a scale and a middle, so that GGML's Q4_0 and Q4_1 keep their values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.layers.packed import Held, PackingScheme, aten, pieces

FEW = 64  # vectors up to which the product with the numbers as they lie is faster (AVX2)
GROUP = 32  # numbers of a row that share a scale and a middle
BLOCK = 64  # rows: as many as the widest operators keep together
HALF, LEVELS = 8, 16


class Int4(PackingScheme):
    """A number is scale · (n - 8) + middle, n from 0 to 15: two in a byte, [.., d_out, d_in / 2], in an order of the processor's;
    scale and middle in bfloat16 [.., d_in / 32, d_out, 2].

    A group's values are even steps from its least number to its largest, or to its number of largest magnitude from -7/8 of it,
    whichever is nearer: so weights that were in Q4_1 or Q4_0 keep their 16 values. Up to `FEW` vectors are rounded to bfloat16,
    as the operator takes them; more are multiplied in their own dtype.
    """

    bits = 4
    axis_of_rows = -2
    on_cpu_alone = True

    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape[-2] % BLOCK == 0 and shape[-1] % GROUP == 0

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // 2 + 4 * (math.prod(shape) // GROUP)

    def pack(self, matrix: Tensor) -> Held:
        row_order()  # is known before a compiler, who cannot ask the processor, wants it
        each: list[Held] = []
        blocks = matrix.unflatten(0, (-1, BLOCK))
        for here in pieces(len(blocks), BLOCK * matrix.shape[1]):
            groups = blocks[here].flatten(0, 1).unflatten(1, (-1, GROUP))
            numbers, grid = _nearer(_steps(groups, *_spread(groups)), _steps(groups, *_about_zero(groups)))
            packed = aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1).int(), 1)
            each.append((packed, grid.transpose(0, 1)))
        held, grids = zip(*each, strict=True)
        return torch.cat(held), torch.cat(grids, 1)

    def unpack(self, held: Held) -> Tensor:
        scale, middle = held[1].float().transpose(-3, -2).unbind(-1)  # […, d_out, group]
        groups = numbers_of(held).unflatten(-1, (-1, GROUP)).float() - HALF
        return (groups * scale[..., None] + middle[..., None]).flatten(-2)

    def products(self, x: Tensor, held: Held) -> Tensor:
        numbers, grid = held
        if len(x) <= FEW:
            grid = grid.contiguous()  # where it is a part, which the operator would read as if it were not
            return aten._weight_int4pack_mm_for_cpu(x.bfloat16(), numbers, GROUP, grid).to(x.dtype)
        # Columns as they lie, a few blocks of rows at a time; the products are put in order at the end.
        order, d_in = row_order(), x.shape[1]
        width = len(order)
        blocks = numbers.view(-1, d_in // GROUP, GROUP, width // 2)
        scale, middle = grid.float().view(d_in // GROUP, 1, -1, width, 2).unbind(-1)
        scale, least = _taken(scale.contiguous(), order), _taken(middle - HALF * scale, order)
        out = x.new_empty(len(x), len(blocks), width)
        for here in pieces(len(blocks), d_in * width):
            some = _halves(blocks[here].permute(1, 2, 0, 3))  # [group, 32, block, row]
            columns = some.to(x.dtype).mul_(scale[:, :, here]).add_(least[:, :, here])
            out[:, here] = (x @ columns.view(d_in, -1)).unflatten(1, (-1, width))
        return _taken(out, _back(order)).flatten(1)

    def rows(self, ids: Tensor, held: Held) -> Tensor:
        return self.unpack(held)[ids]


def numbers_of(held: Held) -> Tensor:
    """The n of each number, uint8 […, d_out, d_in]."""
    packed, order = held[0], row_order()
    *lead, d_out, half = packed.shape
    lying = _halves(packed.view(*lead, -1, 2 * half, len(order) // 2))
    return _taken(lying, _back(order)).transpose(-1, -2).reshape(*lead, d_out, 2 * half)


_order: list[int] = []  # no cached function, into which a compiler would look


def row_order() -> list[int]:
    """The `width` rows that the lower halves of a column's bytes, then the upper ones, are of, where `width` rows lie together.

    How many do, and in what order, is the processor's, which is asked once.
    """
    if not _order:
        _order.extend(_asked())
    return _order


def _asked() -> list[int]:
    """That order, as the packed numbers of the rows tell it."""
    rows = torch.arange(BLOCK, dtype=torch.int32)[:, None].expand(BLOCK, GROUP)
    packed = [aten._convert_weight_to_int4pack_for_cpu(digit.contiguous(), 1) for digit in (rows % 16, rows // 16)]
    for width in (16, 32, BLOCK):
        low, high = (_halves(each.view(-1, GROUP, width // 2)).long() for each in packed)
        lying = low + LEVELS * high
        order = lying[0, 0]
        blocks = torch.arange(len(lying))[:, None, None] * width
        if torch.equal(lying, (order + blocks).expand_as(lying)):
            return order.tolist()
    raise AssertionError("this processor packs 4-bit weights in an order of rows that is not known here")


def _halves(packed: Tensor) -> Tensor:
    """The lower half of each byte, then the upper: [.., 2 n] of [.., n]."""
    return torch.cat((packed & (LEVELS - 1), packed >> 4), -1)


def _taken(x: Tensor, order: list[int]) -> Tensor:
    """The last dimension in an order, which is that of most processors already."""
    return x if order == list(range(len(order))) else x[..., order]


def _back(order: list[int]) -> list[int]:
    """The order that undoes one."""
    return sorted(range(len(order)), key=order.__getitem__)


def _spread(groups: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, middle) of steps from the least to the largest number of groups [d_out, group, 32], as Q4_1 has them."""
    least, most = groups.amin(-1), groups.amax(-1)
    scale = (most - least) / (LEVELS - 1)
    return scale, least + HALF * scale


def _about_zero(groups: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, middle) of steps of an eighth of the number of largest magnitude, which is -8 of them, as Q4_0 has them."""
    scale = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0] / -HALF
    return scale, torch.zeros_like(scale)


def _steps(groups: Tensor, scale: Tensor, middle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(n [d_out, group, 32], scale and middle [d_out, group, 2] in bfloat16, squared error [d_out, group]) of such steps."""
    grid = torch.stack((torch.where(scale == 0, torch.ones_like(scale), scale), middle), -1).bfloat16()
    scale, middle = (part[..., None] for part in grid.float().unbind(-1))
    numbers = ((groups - middle) / scale + HALF).round_().clamp_(0, LEVELS - 1)
    error = ((numbers - HALF) * scale + middle - groups).square_().sum(-1)
    return numbers, grid, error


def _nearer(one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(n, grid) of whichever has the smaller error, group by group."""
    first = (one[2] <= other[2])[..., None]
    return torch.where(first, one[0], other[0]), torch.where(first, one[1], other[1])
