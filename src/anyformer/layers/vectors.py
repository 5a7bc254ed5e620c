"""Products of matrices with one vector on a GPU, in one launch, as fast as its memory gives the matrices: Triton.

Libraries made for many rows read small matrices at half of that (`benchmarks/gpu.py`, vectors), and a compiler that writes sums
out finds as much only by trying, for half a minute. Loaded where a step of decoding is compiled for a GPU.
"""

from collections.abc import Sequence

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

MOST = 3  # matrices of a launch: queries, keys and values
# Of a program: the fastest or nearly so of eight, for matrices from 2 to 500 MB on an H200.
ROWS, COLUMNS, WARPS = 2, 1024, 2


@triton.jit
def _rows(x, w0, w1, w2, y, n0, n1, n2, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """A program's rows of y [n0 + n1 + n2], of x [width] and matrices [n, width] each of which lies row by row."""
    block = tl.program_id(0)
    blocks0 = tl.cdiv(n0, rows)
    blocks1 = blocks0 + tl.cdiv(n1, rows)
    second, third = block >= blocks0, block >= blocks1
    w = w0
    if third:
        w = w2
    elif second:
        w = w1
    n = tl.where(third, n2, tl.where(second, n1, n0))
    first = block - tl.where(third, blocks1, tl.where(second, blocks0, 0))
    before = tl.where(third, n0 + n1, tl.where(second, n0, 0))
    row = first * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    there = row < n
    at = w + row.to(tl.int64)[:, None] * width + column[None, :]
    total = tl.zeros((rows, columns), tl.float32)
    for start in tl.static_range(0, width, columns):
        inside = start + column < width
        weights = tl.load(at + start, mask=there[:, None] & inside[None, :], other=0.0)
        numbers = tl.load(x + start + column, mask=inside, other=0.0)
        total += weights.to(tl.float32) * numbers.to(tl.float32)[None, :]
    tl.store(y + before + row, tl.sum(total, 1).to(y.dtype.element_ty), mask=there)


@torch.library.triton_op("anyformer::vector_products", mutates_args=())
def vector_products(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """What each of up to three matrices [n, d_in] makes of x [d_in], one behind the other; added up in float32."""
    sizes = [len(each) for each in matrices]
    y = x.new_empty(sum(sizes))
    missing = MOST - len(sizes)
    width = x.shape[0]
    given = (*matrices, *[matrices[0]] * missing, y, *sizes, *[0] * missing)
    columns = min(COLUMNS, triton.next_power_of_2(width))
    programs = sum(triton.cdiv(size, ROWS) for size in sizes)
    torch.library.wrap_triton(_rows)[(programs,)](x, *given, width, ROWS, columns, num_warps=WARPS)
    return y
