"""Products of groups of rows, each group with a matrix of its own, and their gradients, as one operator each.

Rows are sorted by group; `behind` [group], on the CPU, is the row behind each group's last. A compiler, and whoever observes a
pass on tensors without numbers, sees the operator and never asks how many rows a group has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def spans(behind: Tensor) -> Iterator[tuple[int, int, int]]:
    """(group, first row, behind the last row) of the groups that have rows."""
    first = 0
    for group, last in enumerate(behind.tolist()):
        if last > first:
            yield group, first, last
        first = last


@torch.library.custom_op("anyformer::grouped_products", mutates_args=())
def products(
    rows: Tensor, matrices: Tensor, behind: Tensor, biases: Tensor | None = None, turned: bool = False
) -> Tensor:
    """Each row [row, d_in] times its group's matrix [group, d_out, d_in] (`turned`: the transpose), plus its bias [group, d_out].

    [row, d_out]; rows behind the last group give 0.
    """
    out, served = rows.new_empty(len(rows), matrices.shape[2 if turned else 1]), 0
    for group, first, served in spans(behind):
        matrix, target = matrices[group] if turned else matrices[group].t(), out[first:served]
        if biases is not None:
            torch.addmm(biases[group], rows[first:served], matrix, out=target)
        else:
            torch.mm(rows[first:served], matrix, out=target)
    out[served:] = 0
    return out


@torch.library.custom_op("anyformer::grouped_products_", mutates_args=("onto",))
def add_products(onto: Tensor, rows: Tensor, matrices: Tensor, behind: Tensor, turned: bool = False) -> None:
    """Add `products(rows, matrices, behind, None, turned)` onto what is there [row, d_out]."""
    for group, first, last in spans(behind):
        onto[first:last].addmm_(rows[first:last], matrices[group] if turned else matrices[group].t())


@torch.library.custom_op("anyformer::grouped_outer", mutates_args=())
def outer(left: Tensor, right: Tensor, behind: Tensor) -> Tensor:
    """Σ over a group's rows of left [row, d_left] ⊗ right [row, d_right]: [group, d_left, d_right]; of no rows, 0."""
    filled = list(spans(behind))
    create = left.new_empty if len(filled) == len(behind) else left.new_zeros
    out = create(len(behind), left.shape[1], right.shape[1])
    for group, first, last in filled:
        torch.mm(left[first:last].t(), right[first:last], out=out[group])
    return out


def sums(rows: Tensor, behind: Tensor) -> Tensor:
    """The sum of each group's rows [group, d]."""
    return outer(rows, rows.new_ones(len(rows), 1), behind)[..., 0]


@products.register_fake
def _(rows: Tensor, matrices: Tensor, behind: Tensor, biases: Tensor | None = None, turned: bool = False) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2 if turned else 1])


@outer.register_fake
def _(left: Tensor, right: Tensor, behind: Tensor) -> Tensor:
    return left.new_empty(behind.shape[0], left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, matrices, behind, biases, ctx.turned = inputs
    ctx.biased = biases is not None and biases.requires_grad
    ctx.save_for_backward(rows, matrices, behind)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, matrices, behind = ctx.saved_tensors
    pair = (rows, grad) if ctx.turned else (grad, rows)
    of_rows, of_matrices, *_ = ctx.needs_input_grad
    for_rows = products(grad, matrices, behind, None, not ctx.turned) if of_rows else None
    for_matrices = outer(*pair, behind) if of_matrices else None
    return for_rows, for_matrices, None, sums(grad, behind) if ctx.biased else None, None


products.register_autograd(_backward, setup_context=_keep)
