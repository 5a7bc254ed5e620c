"""An LSTM: Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735, with forget gates (Gers et al. 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from anyformer.layers.execution import as_given, transformed
from anyformer.layers.gated_recurrence import GatedRecurrence, GatedRecurrenceSpec, outer, shifted, stepped


class LSTMSpec(GatedRecurrenceSpec):
    """(i, f, o) = σ(W x + U h + b), g = tanh(…); c ← f c + i g, h ← o tanh c. Rows of the maps: i, f, g, o, as in torch.nn."""

    gates: ClassVar[int] = 4
    held: ClassVar[tuple[str, ...]] = ("hidden", "cell")


class LSTM(GatedRecurrence[LSTMSpec]):
    def layer(
        self, i: int, x: Tensor, weight: Tensor, before: Sequence[Tensor], keep: Tensor | None
    ) -> Sequence[Tensor]:
        """(outputs, cells) [batch, step, d_out] of x [batch, step, d_in]."""
        biases = self.bias("input", i), self.bias("state", i)
        both = None if biases[0] is None or biases[1] is None else biases[0] + biases[1]
        gates = self.mapped(i, x, both)
        with as_given(x):
            return plain(gates, weight, before, keep) if transformed() else recurrence(gates, weight, *before, keep)[:2]


def plain(x: Tensor, weight: Tensor, before: Sequence[Tensor], keep: Tensor | None) -> Sequence[Tensor]:
    """(outputs, cells) as `recurrence` makes them, by PyTorch's own operators."""

    def step(x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = torch.addmm(x, hidden, weight.t()).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    return stepped(x, keep, before, step)


@torch.library.custom_op("anyformer::lstm", mutates_args=())
def recurrence(
    x: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs, cells [batch, step, width], gates [batch, step, 4 · width]) of the gates' inputs x [batch, step, 4 · width]."""
    turned = weight.t()

    def step(x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        read = torch.addmm(x, hidden, turned)
        gates = read.sigmoid()
        i, f, g, o = gates.chunk(4, -1)
        torch.tanh(read.chunk(4, -1)[2], out=g)
        cell = torch.addcmul(f * cell, i, g)
        return o * cell.tanh(), cell, gates

    y, cells, gates = stepped(x, keep, (hidden, cell), step)
    return y, cells, gates


@torch.library.custom_op("anyformer::lstm_backward", mutates_args=())
def gradients(
    for_y: Tensor, for_cells: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor | None,
    y: Tensor, cells: Tensor, gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight, hidden and cell, given those of outputs and cells at each step."""
    given = shifted(cell, cells, keep)
    i, f, g, o = gates.chunk(4, -1)
    tanh = cells.tanh()
    # by which each step multiplies the gradient of its cell for i, f and g, and that of its output for o and the cell
    of_cell = torch.cat((g * i * (1 - i), given * f * (1 - f), i * (1 - g * g)), -1)
    of_o, into = tanh * o * (1 - o), o * (1 - tanh * tanh)
    out = torch.empty_like(gates)
    for_hidden, for_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
    n = y.shape[2]
    for t in range(y.shape[1] - 1, -1, -1):
        for_hidden = for_hidden + for_y[:, t]
        for_cell = torch.addcmul(for_cell + for_cells[:, t], for_hidden, into[:, t])
        torch.mul(for_cell.repeat(1, 3), of_cell[:, t], out=out[:, t, : 3 * n])
        torch.mul(for_hidden, of_o[:, t], out=out[:, t, 3 * n :])
        for_hidden, for_cell = out[:, t] @ weight, for_cell * f[:, t]
        if keep is not None:
            for_hidden, for_cell = for_hidden * keep[:, t, None], for_cell * keep[:, t, None]
    return out, outer(out, shifted(hidden, y, keep)), for_hidden, for_cell


@recurrence.register_fake
def _(x: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*x.shape[:2], hidden.shape[1])
    return x.new_empty(shape), x.new_empty(shape), torch.empty_like(x)


@gradients.register_fake
def _(
    for_y: Tensor, for_cells: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor | None,
    y: Tensor, cells: Tensor, gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(gates), torch.empty_like(weight), torch.empty_like(hidden), torch.empty_like(cell)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[1:], *output)


def _backward(ctx: Any, for_y: Tensor, for_cells: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *gradients(for_y, for_cells, *ctx.saved_tensors), None


recurrence.register_autograd(_backward, setup_context=_keep)
