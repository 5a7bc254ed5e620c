"""A GRU: Cho et al. 2014, arXiv:1406.1078, section 2.3, with the reset gate behind the map of the state, as cuDNN has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from anyformer.layers.execution import as_given, transformed
from anyformer.layers.gated_recurrence import GatedRecurrence, GatedRecurrenceSpec, outer, shifted, stepped


class GRUSpec(GatedRecurrenceSpec):
    """(r, z) = σ(W x + U h + b), n = tanh(W x + b + r (U h + b)); h ← (1 - z) n + z h. Rows of the maps: r, z, n."""

    gates: ClassVar[int] = 3


class GRU(GatedRecurrence[GRUSpec]):
    def layer(
        self, i: int, x: Tensor, weight: Tensor, before: Sequence[Tensor], keep: Tensor | None
    ) -> Sequence[Tensor]:
        """(outputs,) [batch, step, d_out] of x [batch, step, d_in]."""
        gates, bias = self.mapped(i, x, self.bias("input", i)), self.bias("state", i)
        bias = gates.new_zeros(weight.shape[0]) if bias is None else bias.to(gates.dtype)
        with as_given(x):
            given = gates, weight, bias, before[0], keep
            return (plain(*given) if transformed() else recurrence(*given))[:1]


def plain(x: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """(outputs [batch, step, width], gates [batch, step, 4 · width]) of the gates' inputs x [batch, step, 3 · width].

    The gates are r, z and n, and behind them what r is multiplied by.
    """
    turned, width = weight.t(), hidden.shape[1]

    def step(x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        read = torch.addmm(bias, hidden, turned)
        r, z = (x[:, : 2 * width] + read[:, : 2 * width]).sigmoid().chunk(2, -1)
        reset = read[:, 2 * width :]
        n = torch.addcmul(x[:, 2 * width :], r, reset).tanh()
        return torch.lerp(n, hidden, z), torch.cat((r, z, n, reset), -1)

    y, gates = stepped(x, keep, (hidden,), step)
    return y, gates


recurrence = torch.library.custom_op("anyformer::gru", plain, mutates_args=())


@torch.library.custom_op("anyformer::gru_backward", mutates_args=())
def gradients(
    for_y: Tensor, weight: Tensor, hidden: Tensor, keep: Tensor | None, y: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, weight, bias and hidden, given those of outputs at each step."""
    given = shifted(hidden, y, keep)
    r, z, n, reset = gates.chunk(4, -1)
    of_n = (1 - z) * (1 - n * n)
    # by which each step multiplies the gradient of its output, for what the gates read of the input and of the state
    of_r, of_z = of_n * reset * r * (1 - r), (given - n) * z * (1 - z)
    of_x, of_state = torch.cat((of_r, of_z, of_n), -1), torch.cat((of_r, of_z, of_n * r), -1)
    for_x, for_state = torch.empty_like(of_x), torch.empty_like(of_x)
    for_hidden = torch.zeros_like(hidden)
    for t in range(y.shape[1] - 1, -1, -1):
        for_hidden = for_hidden + for_y[:, t]
        wide = for_hidden.repeat(1, 3)
        torch.mul(wide, of_x[:, t], out=for_x[:, t])
        torch.mul(wide, of_state[:, t], out=for_state[:, t])
        for_hidden = torch.addcmul(for_state[:, t] @ weight, for_hidden, z[:, t])
        if keep is not None:
            for_hidden = for_hidden * keep[:, t, None]
    return for_x, outer(for_state, given), for_state.sum((0, 1)), for_hidden


@recurrence.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, steps, width = *x.shape[:2], hidden.shape[1]
    return x.new_empty(batch, steps, width), x.new_empty(batch, steps, 4 * width)


@gradients.register_fake
def _(
    for_y: Tensor, weight: Tensor, hidden: Tensor, keep: Tensor | None, y: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for_x = gates.new_empty(*gates.shape[:2], weight.shape[0])
    return for_x, torch.empty_like(weight), gates.new_empty(weight.shape[0]), torch.empty_like(hidden)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, _, hidden, keep = inputs
    ctx.save_for_backward(weight, hidden, keep, *output)


def _backward(ctx: Any, for_y: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *gradients(for_y, *ctx.saved_tensors), None


recurrence.register_autograd(_backward, setup_context=_keep)
