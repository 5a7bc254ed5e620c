"""The selective scan: each channel's own state, S_t = e^(Δ_t A) ⊙ S_{t-1} + B_t (Δ_t x_t) and y_t = S_tᵀ C_t, and its gradients.

Gu & Dao 2023, arXiv:2312.00752, section 3.3. Decays differ by channel and by number of a state, which no product of matrices
does: a chunk's decays and writes are made at once, and one multiplication a token is left. Between the passes only the states
before chunks stay. A compiler, and whoever observes a pass on tensors without numbers, sees one operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.layers.execution import transformed
from anyformer.layers.linear_scan import linear_scan

CHUNK = 32  # tokens: of 1,024 channels with states of 16, two megabytes; it changes time and memory, no number


def selective_scan(
    x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, begins: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(y [batch, token, channels], the state behind the last token [batch, state_dim, channels]).

    x and `step`, Δ, are [batch, token, channels], `rate`, A, is [state_dim, channels] and below 0, b and c are
    [batch, token, state_dim]; `begins` [batch or 1, token]: where a document does. `state` is the one before; None: zeros.
    """
    goes_on = None if begins is None else (~begins).to(x.dtype)
    if state is None:
        state = x.new_zeros(x.shape[0], *rate.shape)
    if transformed():
        decay, writes = (step[:, :, None] * rate).exp(), b[..., None] * (step * x)[:, :, None]
        decay = decay if goes_on is None else decay * goes_on[..., None, None]
        states = linear_scan(decay.flatten(2), writes.flatten(2), state.flatten(1)).unflatten(2, rate.shape)
        return (c[:, :, None] @ states)[:, :, 0], states[:, -1]
    y, last, _ = _scan(x, step, rate, b, c, goes_on, state.to(x.dtype))
    return y, last


def _chunks(rows: Sequence[Tensor | None]) -> Iterator[tuple[Tensor, ...]]:
    """Chunks [token of it, batch, …] of rows [batch, token, …]; no tensor where there is none."""
    split = [None if row is None else row.transpose(0, 1).split(CHUNK) for row in rows]
    n = len(next(row for row in split if row is not None))
    for i in range(n):
        yield tuple(row[i] if row is not None else torch.empty(0) for row in split)


def _states(u: Tensor, step: Tensor, rate: Tensor, b: Tensor, goes_on: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(decays, states) of a chunk, each [token, batch, state_dim, channels]; `state` is the one before, u is Δ x."""
    decay = (step[:, :, None] * rate).exp_()
    if goes_on.numel():
        decay *= goes_on[:, :, None, None]
    states = b[..., None] * u[:, :, None]
    for now, left in zip(states.unbind(0), decay.unbind(0), strict=True):
        state = now.addcmul_(left, state)
    return decay, states


@torch.library.custom_op("anyformer::selective_scan", mutates_args=())
def _scan(
    x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, goes_on: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, the last state, the states before chunks [chunk, batch, state_dim, channels]); `goes_on`: 0 where a document begins."""
    y, before = torch.empty_like(x, memory_format=torch.contiguous_format), []
    into = y.transpose(0, 1).split(CHUNK)
    for out, (xs, steps, bs, cs, on) in zip(into, _chunks((x, step, b, c, goes_on)), strict=True):
        before.append(state)
        _, states = _states(steps * xs, steps, rate, bs, on, state)
        out.copy_((cs[:, :, None] @ states)[:, :, 0])
        state = states[-1]
    return y, state.clone(), torch.stack(before)


@torch.library.custom_op("anyformer::selective_scan_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    grad_last: Tensor,
    x: Tensor,
    step: Tensor,
    rate: Tensor,
    b: Tensor,
    c: Tensor,
    goes_on: Tensor | None,
    before: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of x, step, rate, b, c and the state before; states are made again, a chunk at a time."""
    made = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (x, step, b, c)]
    targets = list(_chunks(made))
    for_rate, later = torch.zeros_like(rate), grad_last
    chunks = list(_chunks((x, step, b, c, goes_on, grad)))
    for i in reversed(range(len(chunks))):
        xs, steps, bs, cs, on, given = chunks[i]
        u = steps * xs
        decay, states = _states(u, steps, rate, bs, on, before[i])
        of_states = cs[..., None] * given[:, :, None]
        for now, left in zip(reversed(of_states.unbind(0)), reversed((*decay.unbind(0)[1:], None)), strict=True):
            later = now.add_(later) if left is None else now.addcmul_(left, later)
        later = of_states[0] * decay[0]
        of_u = (bs[:, :, None] @ of_states)[:, :, 0]
        of_decay = decay.mul_(of_states)  # of its logarithm
        of_decay[1:] *= states[:-1]
        of_decay[0] *= before[i]
        # Summed as they are made: products of this size are not written anywhere.
        for at, taken in zip(of_decay.flatten(0, 1), steps.flatten(0, 1), strict=True):
            for_rate.addcmul_(at, taken)
        of_step = of_u * xs
        for at, speed in zip(of_decay.unbind(2), rate, strict=True):
            of_step.addcmul_(at, speed)
        parts = (
            of_u * steps,
            of_step,
            of_states @ u[..., None],
            states @ given[..., None],
        )
        for target, part in zip(targets[i], parts, strict=True):
            target.copy_(part.view_as(target))
    return made[0], made[1], for_rate, made[2], made[3], later.clone()


@_scan.register_fake
def _(
    x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, goes_on: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), state.new_empty(state.shape), state.new_empty(-(-x.shape[1] // CHUNK), *state.shape)


@_gradients.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    _, _, *inputs, _, before = given
    return tuple(each.new_empty(each.shape) for each in (*inputs, before[0]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.mark_non_differentiable(output[2])


def _backward(ctx: Any, grad: Tensor, grad_last: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, before = ctx.saved_tensors
    x, step, rate, b, c, state = _gradients(grad, grad_last, *tensors, before)
    return x, step, rate, b, c, None, state


_scan.register_autograd(_backward, setup_context=_keep)
