"""Products of groups of rows, each group with a matrix of its own, and their gradients; as operators for compilers too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Spans = list[tuple[int, int, int]]  # (group, first row, behind the last row) of those that have rows


def spans_of(behind: Iterable[int]) -> Spans:
    """The spans of groups that follow each other, given the row behind each."""

    def each() -> Iterator[tuple[int, int, int]]:
        first = 0
        for group, last in enumerate(behind):
            if last > first:
                yield group, first, last
            first = last

    return list(each())


def products(
    rows: Tensor,
    matrices: Tensor,
    spans: Spans,
    *,
    biases: Tensor | None = None,
    turned: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """Each row times its group's matrix [d_out, d_in] (`turned`: the transpose), added `onto` what is there.

    Rows behind the last group give 0.
    """
    out = rows.new_empty(len(rows), matrices.shape[2 if turned else 1]) if onto is None else onto
    for group, first, behind in spans:
        matrix, target = matrices[group] if turned else matrices[group].t(), out[first:behind]
        if onto is not None:
            target.addmm_(rows[first:behind], matrix)
        elif biases is not None:
            torch.addmm(biases[group], rows[first:behind], matrix, out=target)
        else:
            torch.mm(rows[first:behind], matrix, out=target)
    served = spans[-1][2] if spans else 0
    if served < len(rows):
        out[served:] = 0
    return out


def outer(left: Tensor, right: Tensor, n_groups: int, spans: Spans) -> Tensor:
    """Return Σ over a group's rows of left ⊗ right [n_groups, d_left, d_right]; 0 for a group without rows."""
    create = left.new_empty if len(spans) == n_groups else left.new_zeros
    out = create(n_groups, left.shape[1], right.shape[1])
    for group, first, behind in spans:
        torch.mm(left[first:behind].t(), right[first:behind], out=out[group])
    return out


def sums(rows: Tensor, n_groups: int, spans: Spans) -> Tensor:
    """The sum of each group's rows [n_groups, d]."""
    out = rows.new_zeros(n_groups, rows.shape[1])
    for group, first, behind in spans:
        torch.sum(rows[first:behind], 0, out=out[group])
    return out


@torch.library.custom_op("anyformer::grouped_products", mutates_args=())
def products_op(rows: Tensor, matrices: Tensor, behind: Tensor, turned: bool) -> Tensor:
    """`products` with the groups as a tensor, the row behind each: a compiler sees one operator."""
    return products(rows, matrices, spans_of(behind.tolist()), turned=turned)


@torch.library.custom_op("anyformer::grouped_outer", mutates_args=())
def outer_op(left: Tensor, right: Tensor, behind: Tensor) -> Tensor:
    """`outer` likewise."""
    return outer(left, right, len(behind), spans_of(behind.tolist()))


@products_op.register_fake
def _(rows: Tensor, matrices: Tensor, behind: Tensor, turned: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2 if turned else 1])


@outer_op.register_fake
def _(left: Tensor, right: Tensor, behind: Tensor) -> Tensor:
    return left.new_empty(behind.shape[0], left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, matrices, behind, ctx.turned = inputs
    ctx.save_for_backward(rows, matrices, behind)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    rows, matrices, behind = ctx.saved_tensors
    pair = (rows, grad) if ctx.turned else (grad, rows)
    return products_op(grad, matrices, behind, not ctx.turned), outer_op(*pair, behind), None, None


products_op.register_autograd(_backward, setup_context=_keep)
