"""Attention whose weights are made again in the backward pass, some queries of one row at a time, as products of matrices.

On a CPU PyTorch's fused operator has no gradient for what is added to the scores, no dropout and no values of another width
than the keys': it then keeps all weights [batch, heads, query, key] of each layer. And in bfloat16 its backward pass takes
longer than these products where rows are short (`benchmarks/blocked.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.blocks import by_group, drawn, kept, products, seeded
from anyformer.kernels.sdpa import SDPA, Fused, flagged
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.execution import exact, exact_dtype, product_dtype
from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Bias, Tokens

QUERIES = 128  # whose scores are made at once: those of all heads lie in a core's cache


class Rows(SDPA):
    """As `sdpa`, with a gradient for what is added and with dropout; it keeps no weights."""

    name = "rows"

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Fused:
        """As `sdpa` does, but a flag with a bias beside it: no key behind the last query of a block is read."""
        causal = flagged(mask, query, key)
        if bias is None or causal is None:
            return super().prepare(mask, bias, query, key, n_heads)
        return Fused(causal, bias(query, key), None)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Fused, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, value_dim], and no weights; a row that sees no key gives 0."""
        added = seen.mask
        if added is not None and added.dtype == torch.bool:
            added = torch.zeros((), device=q.device).where(added, -torch.inf)
        if how.scores is not None:
            added = how.scores if added is None else how.scores + added
        dtype = product_dtype(q)
        added = None if added is None else added.to(dtype)
        q, k, v = (x.to(dtype) for x in (q, k, v))
        y = attention(q, k, v, added, seeded(how.dropout), seen.causal, how.scale, how.dropout)
        return y if seen.blind is None else y.masked_fill(seen.blind, 0.0), None


class QueryRows(NamedTuple):
    """Some queries of one row: which, how many keys they may see, and their weights [1, heads, query, key]."""

    row: slice
    queries: slice
    keys: int
    weights: Tensor


def _parts(q: Tensor, k: Tensor, added: Tensor | None, causal: bool, scale: float) -> Iterator[QueryRows]:
    n = q.shape[2]
    hidden = torch.ones(QUERIES, QUERIES, dtype=torch.bool, device=q.device).triu_(1)
    for row in (slice(i, i + 1) for i in range(len(q))):
        of_queries, of_keys = exact(q[row]) * scale, exact(k[row])
        for first in range(0, n, QUERIES):
            queries = slice(first, min(first + QUERIES, n))
            keys = queries.stop if causal else k.shape[2]
            s = products(of_queries[:, :, queries], of_keys[:, :, :keys])
            if added is not None:
                s += added[_of(row, added), :, queries, :keys]
            if causal:
                s[..., first:].masked_fill_(hidden[: keys - first, : keys - first], -torch.inf)
            yield QueryRows(row, queries, keys, s.softmax(-1))


def _of(row: slice, added: Tensor) -> slice:
    """The row of what is added, which may be one for all."""
    return row if len(added) > 1 else slice(None)


@torch.library.custom_op("anyformer::rows_attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, seed: Tensor, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Values [batch, heads, query, value_dim]; `added` is [batch or 1, heads or 1, query, key], and -inf hides."""
    out = _empty(q, v)
    narrower = q.shape[3] - v.shape[3]
    if not dropout and q.device.type == "cpu" and narrower >= 0:
        y, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, F.pad(v, (0, narrower)), 0.0, causal, attn_mask=added, scale=scale
        )
        y = y[..., : v.shape[3]]
        return y if y.stride() == out.stride() else out.copy_(y)  # it lies as q does
    generator = drawn(seed, dropout, q.device)
    for row, queries, keys, weights in _parts(q, k, added, causal, scale):
        keep = kept(generator, weights, keys, dropout)
        left = weights if keep is None else weights * keep
        out[row, :, queries] = products(left.to(v.dtype), v[row, :, :keys].mT)
    return out


def _empty(q: Tensor, v: Tensor) -> Tensor:
    """Of values, laid out as the heads are joined afterwards."""
    batch, heads, n, _ = q.shape
    return q.new_empty(batch, n, heads, v.shape[3]).transpose(1, 2)


@torch.library.custom_op("anyformer::rows_attention_backward", mutates_args=())
def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, seed: Tensor, causal: bool, scale: float,
    dropout: float, learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and what is added (empty unless `learned`)."""
    full = exact_dtype(q)
    for_q = torch.empty_like(q)
    for_k, for_v = (torch.zeros_like(x, dtype=full) for x in (k, v))
    for_added = torch.zeros_like(added, dtype=full) if added is not None and learned else None
    generator = drawn(seed, dropout, q.device)
    for row, queries, keys, weights in _parts(q, k, added, causal, scale):
        of_out, of_q, of_k, of_v = grad[row, :, queries], q[row, :, queries], k[row, :, :keys], v[row, :, :keys]
        for_weights = exact(products(of_out, of_v))
        left = weights
        if (keep := kept(generator, weights, keys, dropout)) is not None:
            left, for_weights = weights * keep, for_weights * keep
        for_s = torch._softmax_backward_data(for_weights, weights, -1, full)
        if for_added is not None:
            part = for_s if for_added.shape[1] > 1 else for_s.sum(1, keepdim=True)
            for_added[_of(row, for_added), :, queries, :keys] += part
        for_s = for_s.to(q.dtype)
        for_q[row, :, queries] = products(for_s, of_k.mT)
        for_k[row, :, :keys] += by_group(for_s, k.shape[1]).mT @ by_group(of_q, k.shape[1])
        for_v[row, :, :keys] += by_group(left.to(v.dtype), v.shape[1]).mT @ by_group(of_out, v.shape[1])
    of_added = q.new_empty(0) if for_added is None or added is None else for_added.to(added.dtype)
    return for_q.mul_(scale), for_k.mul_(scale).to(k.dtype), for_v.to(v.dtype), of_added


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return _empty(q, v)


@backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, added: Any, *rest: Any) -> tuple[Tensor, ...]:
    for_added = torch.empty_like(added) if added is not None and rest[-1] else q.new_empty(0)
    return *(torch.empty_like(x) for x in (q, k, v)), for_added


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, added, seed, *ctx.how = inputs
    ctx.save_for_backward(q, k, v, added, seed)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[3]
    *of, for_added = backward(grad, *ctx.saved_tensors, *ctx.how, learned)
    return *of, for_added if learned else None, *(None,) * 4


attention.register_autograd(_backward, setup_context=_keep)
