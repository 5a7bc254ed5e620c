"""The gated product and its down-projection as one step of differentiation, which keeps two wide tensors instead of four."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class GatedDown(torch.autograd.Function):
    """F.linear(activation(gate) · up, weight, bias), of which gate and up stay until the backward pass.

    activation(gate) and the product are made again there: half of what a layer would keep, for little of its work.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(gate, up, weight, bias)
        return F.linear(activation(gate) * up, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight, bias = ctx.saved_tensors
        with torch.enable_grad():
            leaf = gate.detach().requires_grad_()
            active = ctx.activation(leaf)
        hidden = active.detach() * up
        rows = grad.flatten(0, -2)
        for_weight = (rows.t() @ hidden.flatten(0, -2)).to(weight.dtype)
        for_bias = None if bias is None else rows.sum(0).to(bias.dtype)
        for_hidden = torch.matmul(grad, weight.to(grad.dtype), out=hidden)
        for_up = for_hidden * active.detach()
        (for_gate,) = torch.autograd.grad(active, leaf, for_hidden.mul_(up))
        return for_gate, for_up, for_weight, for_bias, None
