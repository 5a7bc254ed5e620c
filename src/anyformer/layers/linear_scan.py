"""The linear scan: h_t = a_t ⊙ h_{t-1} + x_t, a number for each channel, and its gradients.

Martin & Cundy 2018, arXiv:1709.04057. One multiplication a token is all there is to do; a compiler, and whoever observes a
pass on tensors without numbers, sees one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.layers.execution import transformed


def linear_scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    """The states h [batch, token, channels] of decays a and x of that shape, after `state` [batch, channels]."""
    if not transformed():
        return _scan(decay, x, state)
    states = []
    for now, left in zip(x.unbind(1), decay.unbind(1), strict=True):
        state = now + left * state
        states.append(state)
    return torch.stack(states, 1)


@torch.library.custom_op("anyformer::linear_scan", mutates_args=())
def _scan(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    states = x.clone(memory_format=torch.contiguous_format)
    for now, left in zip(states.unbind(1), decay.unbind(1), strict=True):
        state = now.addcmul_(left, state)
    return states


@torch.library.custom_op("anyformer::linear_scan_backward", mutates_args=())
def _gradient(grad: Tensor, decay: Tensor) -> Tensor:
    """Of x [batch, token, channels]: what its token and those after it make of the state."""
    made = grad.clone(memory_format=torch.contiguous_format)
    *earlier, later = made.unbind(1)
    for now, left in zip(reversed(earlier), reversed(decay.unbind(1)[1:]), strict=True):
        later = now.addcmul_(left, later)
    return made


@_scan.register_fake
def _(decay: Tensor, x: Tensor, state: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@_gradient.register_fake
def _(grad: Tensor, decay: Tensor) -> Tensor:
    return grad.new_empty(grad.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    decay, _, state = inputs
    ctx.save_for_backward(decay, state, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    decay, state, states = ctx.saved_tensors
    of_x = _gradient(grad, decay)
    return of_x * torch.cat((state[:, None], states[:, :-1]), 1), of_x, of_x[:, 0] * decay[:, 0]


_scan.register_autograd(_backward, setup_context=_keep)
