"""Weights in 4 bits as normally distributed numbers lie: NF4 (Dettmers et al. 2023, arXiv:2305.14314, section 3, QLoRA)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.layers.packed import Held, PackingScheme, pieces, products_in_pieces

GROUP = 64  # numbers of a row that share a scale
# The quantile that the outermost levels stand at: the mean of those half a level within 0 and 1, of 15 and of 16 levels.
OUTERMOST = 1 - (1 / 30 + 1 / 32) / 2


def _levels() -> list[float]:
    """The 16 numbers: quantiles of N(0, 1), evenly spaced from 0 on, 7 below and 8 above it, the largest 1 (appendix E)."""
    below, above = (torch.linspace(0.5, OUTERMOST, n + 1, dtype=torch.float64, device="cpu") for n in (7, 8))
    each = torch.cat((-torch.special.ndtri(below).flip(0), torch.special.ndtri(above)[1:]))
    return (each / each[-1]).float().tolist()


LEVELS = _levels()
# The two levels of a byte, the bits of both as one whole number: read at once, they take an eighth of the time. A list, for
# where a compiler looks a tensor of its own making meets no other.
PAIRS: list[int] = (
    torch.tensor([[upper, lower] for upper in LEVELS for lower in LEVELS], device="cpu")
    .view(torch.int64)
    .flatten()
    .tolist()
)


class NF4(PackingScheme):
    """A number is scale · level: two levels' numbers in a byte, the first in the upper half, uint8 […, d_out, d_in / 2]; the
    scale, the largest magnitude of 64 numbers, float32 […, d_out, d_in / 64].

    Packed again, what is held stays what it is. Vectors are multiplied in their own dtype, on any device.
    """

    bits = 4
    axis_of_rows = -2
    on_cpu_alone = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape[-1] % GROUP == 0

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // 2 + 4 * (math.prod(shape) // GROUP)

    def pack(self, matrix: Tensor) -> Held:
        levels = torch.tensor(LEVELS, device=matrix.device)
        middles = (levels[1:] + levels[:-1]) / 2
        scales = matrix.unflatten(1, (-1, GROUP)).abs().amax(-1)
        numbers = matrix.new_empty(len(matrix), matrix.shape[1] // 2, dtype=torch.uint8)
        for here in pieces(*matrix.shape):
            share = matrix[here].unflatten(1, (-1, GROUP)) / scales[here].clamp_min(torch.finfo().tiny)[..., None]
            upper, lower = (
                torch.bucketize(share.flatten(1), middles, out_int32=True).byte().unflatten(1, (-1, 2)).unbind(-1)
            )
            numbers[here] = upper << 4 | lower
        return numbers, scales

    def unpack(self, held: Held) -> Tensor:
        numbers, scales = held
        pairs = torch.tensor(PAIRS, device=numbers.device).index_select(0, numbers.flatten().int())
        groups = pairs.view(torch.float32).view(*scales.shape, GROUP)
        return groups.mul_(scales[..., None]).flatten(-2)

    def products(self, x: Tensor, held: Held) -> Tensor:
        numbers, scales = held
        return products_in_pieces(x, len(numbers), lambda here: self.unpack((numbers[here], scales[here])))

    def rows(self, ids: Tensor, held: Held) -> Tensor:
        return self.unpack((held[0][ids], held[1][ids]))
