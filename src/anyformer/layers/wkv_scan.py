"""The wkv operator: means of the values so far, weighed by their keys and by how long ago they were, and its gradients.

Peng et al. 2023, arXiv:2305.13048, section 3.1 and appendix D. Each channel has a rate of its own, at which weights fall; all are
relative to the largest so far, so that none is more than 1. That one and the sums take three operations a token on all channels
at once; the rest is done for a segment of tokens together. Between the passes only the states before segments stay. A compiler,
and whoever observes a pass on tensors without numbers, sees one operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from anyformer.layers.execution import transformed

SEGMENT = 64  # tokens; it changes time and memory, no number
LOWEST = -1e38  # the logarithm of no weight

# The sums of weighed values and of weights [batch, 2, channels], and the logarithm of the weight 1 in them [batch, channels].
State = tuple[Tensor, Tensor]


def wkv(
    k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, begins: Tensor | None, real: Tensor | None, state: State | None
) -> tuple[Tensor, State]:
    """(y [batch, token, channels], the state behind the last real token) of k and v of that shape.

    y_t = (Σ_{i<t} e^(k_i - (t-1-i) rate) v_i + e^(k_t + bonus) v_t) / the same without v. `rate` and `bonus` are [channels];
    `begins` and `real` [batch or 1, token]: where a document does, and what is no padding; None: nowhere, and all. `state` is the
    one before; None: there is none. Gradients do not reach it.
    """
    if state is None:
        state = k.new_zeros(k.shape[0], 2, k.shape[2]), k.new_full((k.shape[0], k.shape[2]), LOWEST)
    if transformed():
        return plain(k, v, rate, bonus, begins, real, state)
    sums, most = (each.detach().to(k.dtype) for each in state)
    y, sums, most, *_ = _wkv(k, v, rate, bonus, begins, real, sums, most)
    return y, (sums, most)


def plain(
    k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, begins: Tensor | None, real: Tensor | None, state: State
) -> tuple[Tensor, State]:
    """The same token by token, by PyTorch's own operators."""
    (sums, most), made = state, list[Tensor]()
    for t, (key, value) in enumerate(zip(k.unbind(1), v.unbind(1), strict=True)):
        if begins is not None:
            most = most.masked_fill(begins[:, t, None], LOWEST)
        y, _, _ = _means(key, value, bonus, most, sums)
        made.append(y)
        top = torch.maximum(most - rate, key)
        weight = (key - top).exp()
        after = (most - rate - top).exp()[:, None] * sums + torch.stack((weight * value, weight), 1)
        if real is not None:
            after, top = (torch.where(real[:, t].view(-1, *(1,) * (old.dim() - 1)), new, old)
                          for new, old in ((after, sums), (top, most)))  # fmt: skip
        sums, most = after, top
    return torch.stack(made, 1), (sums, most)


def _means(k: Tensor, v: Tensor, bonus: Tensor, most: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(y, the shares in it of the sums before and of the own value) [batch, …, channels]; `sums` is [batch, …, 2, channels]."""
    own = k + bonus
    top = torch.maximum(most, own)
    past, now = (most - top).exp(), (own - top).exp()
    values, weights = sums.unbind(-2)
    whole = torch.addcmul(now, past, weights)
    past, now = past / whole, now / whole
    return torch.addcmul(now * v, past, values), past, now


def _states(
    k: Tensor, v: Tensor, rate: Tensor, begins: Tensor | None, real: Tensor | None, sums: Tensor, most: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of a segment: what is left of the sums before and what a token weighs, the sums before and behind each token
    [batch, token + 1, 2, channels], the largest weight before each, and the last.
    """
    fall = rate
    if real is not None:
        fall, k = rate * real[..., None], k.masked_fill(~real[..., None], -torch.inf)
    largest, now = torch.empty_like(k, memory_format=torch.contiguous_format), most
    falls = fall.expand_as(k).unbind(1)
    for t, (into, key, less) in enumerate(zip(largest.unbind(1), k.unbind(1), falls, strict=True)):
        now = now - less
        if begins is not None:
            now.masked_fill_(begins[:, t, None], LOWEST)
        now = torch.maximum(now, key, out=into)
    before = torch.cat((most[:, None], largest[:, :-1]), 1)
    if begins is not None:
        before.masked_fill_(begins[..., None], LOWEST)
    left, weight = (before - fall).sub_(largest).exp_(), (k - largest).exp_()
    each = torch.cat((sums[:, None], torch.stack((weight * v, weight), 2)), 1)
    first, *later = each.unbind(1)
    for state, kept in zip(later, left[:, :, None].unbind(1), strict=True):
        first = state.addcmul_(kept, first)
    return left, weight, each, before, largest[:, -1]


def _segments(*rows: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Segments of rows [batch, token, …] in turn; None where there is none."""
    n = next(row.shape[1] for row in rows if row is not None)
    for i in range(0, n, SEGMENT):
        yield tuple(None if row is None else row[:, i : i + SEGMENT] for row in rows)


@torch.library.custom_op("anyformer::wkv", mutates_args=())
def _wkv(
    k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, begins: Tensor | None, real: Tensor | None,
    sums: Tensor, most: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(y, the sums and the largest weight behind the last token, those before each segment)."""
    y, before = torch.empty_like(k, memory_format=torch.contiguous_format), list[State]()
    for out, keys, values, begin, taken in _segments(y, k, v, begins, real):
        before.append((sums, most))
        _, _, each, largest, most = _states(keys, values, rate, begin, taken, sums, most)
        out.copy_(_means(keys, values, bonus, largest, each[:, :-1])[0])
        sums = each[:, -1]
    all_sums, all_most = (torch.stack(each) for each in zip(*before, strict=True))
    return y, sums.clone(), most.clone(), all_sums, all_most


@torch.library.custom_op("anyformer::wkv_backward", mutates_args=())
def _gradients(
    grad: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, begins: Tensor | None, real: Tensor | None,
    all_sums: Tensor, all_most: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of k, v, rate and bonus; states are made again, a segment at a time."""
    for_k, for_v = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (k, v))
    for_rate, for_bonus = torch.zeros_like(rate), torch.zeros_like(bonus)
    later = torch.zeros_like(all_sums[0])
    segments = zip(_segments(grad, k, v, begins, real, for_k, for_v), all_sums, all_most, strict=True)
    for (given, keys, values, begin, taken, into_k, into_v), sums, most in reversed(list(segments)):
        left, weight, each, before, _ = _states(keys, values, rate, begin, taken, sums, most)
        y, past, now = _means(keys, values, bonus, before, each[:, :-1])
        past, now = past.mul_(given), now.mul_(given)
        # of the sums before each token and behind the last; then of all, as later tokens read them
        of_sums = torch.cat((torch.stack((past, -past * y), 2), later[:, None]), 1)
        after, *others = reversed(of_sums.unbind(1))
        for state, kept in zip(others, reversed(left[:, :, None].unbind(1)), strict=True):
            after = state.addcmul_(kept, after)
        later = after
        of_values, of_weights = of_sums[:, 1:].unbind(2)
        of_own = now * (values - y)
        torch.addcmul(now, weight, of_values, out=into_v)
        torch.addcmul(of_own, weight, torch.addcmul(of_weights, of_values, values), out=into_k)
        of_left = (of_sums[:, 1:] * each[:, :-1]).sum(2).mul_(left)
        for_rate -= (of_left if taken is None else of_left * taken[..., None]).sum((0, 1))
        for_bonus += of_own.sum((0, 1))
    return for_k, for_v, for_rate, for_bonus


@_wkv.register_fake
def _(k: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *_, sums, most = given
    n = -(-k.shape[1] // SEGMENT)
    return k.new_empty(k.shape), *(x.new_empty(x.shape) for x in (sums, most)), *(
        x.new_empty(n, *x.shape) for x in (sums, most)
    )  # fmt: skip


@_gradients.register_fake
def _(grad: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (k, v, rate, bonus))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], *output[3:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *_gradients(grad, *ctx.saved_tensors), None, None, None, None


_wkv.register_autograd(_backward, setup_context=_keep)
