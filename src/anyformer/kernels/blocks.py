"""Attention of blocks of queries and keys, joined by the logarithms of their sums, and its gradients, as one operator each.

Rows of several blocks are joined as in Dao et al. 2022, arXiv:2205.14135, section 3.1; the backward pass of each block takes the
values and the sum of the whole row, which makes the gradients exact. A compiler, and whoever observes a pass on tensors without
numbers, sees one operator whose `pairs` are those that are computed.

`pieces` are whole numbers, `FIELDS` for each piece. A piece's queries and keys are start, stop and step, or, with a step of 0,
from where to where they stand in `index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.layers.execution import exact, exact_dtype

aten = torch.ops.aten
FIELDS = 13
At = slice | Tensor


class MaskBlock(NamedTuple):
    """What one piece reads and writes of tensors [batch, heads, token, …]: views where all are slices."""

    rows: slice
    heads: slice
    kv: At
    queries: At
    keys: At
    begins: int  # where it begins in what is added to scores; -1: nothing is
    of_heads: int  # for how many heads that is there
    again: int  # whether a part of its queries has values from other pieces already

    def of_queries(self, x: Tensor) -> Tensor:
        """Its queries' x [rows, heads, query, …]."""
        return _take(x, self.rows, self.heads, self.queries)

    def of_keys(self, x: Tensor) -> Tensor:
        """Its keys' x [rows, key heads, key, …]."""
        return _take(x, self.rows, self.kv, self.keys)

    def put(self, x: Tensor, value: Tensor) -> None:
        """Let its queries' x be a value."""
        x[self.rows][:, self.heads][:, :, self.queries] = value.to(x.dtype)

    def added(self, added: Tensor | None, n: int, m: int) -> Tensor | None:
        """What is added to its scores [1, heads or 1, query, key]; -inf hides."""
        if added is None or self.begins < 0:
            return None
        return added[self.begins :][: self.of_heads * n * m].view(1, self.of_heads, n, m)


def _blocks(pieces: Sequence[int], index: Tensor, groups: int) -> Iterator[MaskBlock]:
    for at in range(0, len(pieces), FIELDS):
        row, h0, h1, step, q0, q1, qs, k0, k1, ks, *rest = pieces[at : at + FIELDS]
        queries = slice(q0, q1, qs) if qs else index[q0:q1]
        keys = slice(k0, k1, ks) if ks else index[k0:k1]
        kv: At = slice(h0, h1, step)
        if groups > 1:
            whole = step == 1 and h0 % groups == 0 and h1 % groups == 0
            kv = slice(h0 // groups, h1 // groups) if whole else index.new_tensor(range(h0, h1, step)) // groups
        rows = slice(None) if row < 0 else slice(row, row + 1)
        yield MaskBlock(rows, slice(h0, h1, step), kv, queries, keys, *rest)


def _take(x: Tensor, rows: slice, heads: At, tokens: At) -> Tensor:
    x = x[rows]
    x = x[:, heads] if isinstance(heads, slice) else x.index_select(1, heads)
    return x[:, :, tokens] if isinstance(tokens, slice) else x.index_select(2, tokens)


def _add(x: Tensor, value: Tensor, rows: slice, heads: At, tokens: At) -> None:
    """Add onto x[rows, heads, tokens], where heads may be named more than once."""
    x = x[rows]
    if not isinstance(heads, slice):
        for i, head in enumerate(heads.tolist()):
            _add(x[:, head : head + 1], value[:, i : i + 1], slice(None), slice(None), tokens)
    elif isinstance(tokens, slice):
        x[:, heads][:, :, tokens] += value
    else:
        x[:, heads].index_add_(2, tokens, value.to(x.dtype))


class Scores:
    """Scores of a block written out: what caps them, what is added, and which weights dropout leaves."""

    def __init__(
        self, q: Tensor, k: Tensor, added: Tensor | None, scale: float, cap: float | None, keep: Tensor | None
    ) -> None:
        self.q, self.k, self.scale, self.keep = q, k, scale, keep
        s = exact(products(q, k)) * scale
        self.tanh = None
        if cap is not None:
            self.tanh = s.div_(cap).tanh_()
            s = self.tanh * cap
        self.s = s if added is None else s + added

    def values(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(values [batch, heads, query, width], the logarithm of each query's sum [batch, heads, query])."""
        lse = self.s.logsumexp(-1)
        weights = self.weights(lse)
        if self.keep is not None:
            weights = weights * self.keep
        return products(weights.to(v.dtype), v.mT), lse

    def weights(self, lse: Tensor) -> Tensor:
        """[batch, heads, query, key], by the sum of the whole row; of a row that sees nothing, 0."""
        return (self.s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp_()

    def gradients(self, grad: Tensor, v: Tensor, lse: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of q, k, v and what is added; `along` [batch, heads, query] is the gradient times the row's values."""
        weights, kv_heads = self.weights(lse), v.shape[1]
        for_weights = exact(products(grad, v))
        left = weights
        if self.keep is not None:
            left, for_weights = weights * self.keep, for_weights * self.keep
        for_v = by_group(left.to(v.dtype), kv_heads).mT @ by_group(grad.to(v.dtype), kv_heads)
        for_added = weights * (for_weights - along[..., None])
        for_s = for_added if self.tanh is None else for_added * (1 - self.tanh.square())
        for_s = (for_s * self.scale).to(self.q.dtype)
        for_k = by_group(for_s, kv_heads).mT @ by_group(self.q, kv_heads)
        return products(for_s, self.k.mT), for_k, for_v, for_added


def by_group(x: Tensor, kv_heads: int) -> Tensor:
    """[batch, kv heads, rows of all heads of a group, …] of x [batch, heads, row, …]."""
    return x if x.shape[1] == kv_heads else x.reshape(x.shape[0], kv_heads, -1, x.shape[-1])


def products(x: Tensor, y: Tensor) -> Tensor:
    """Products x [batch, heads, row, width] · y [batch, kv heads, column, width], each head with its group's."""
    return (by_group(x, y.shape[1]) @ y.mT).view(*x.shape[:3], y.shape[2])


def _fused(q: Tensor, cap: float | None, dropout: float) -> bool:
    """Whether PyTorch's operator, which a CPU has, computes the block."""
    return q.device.type == "cpu" and cap is None and not dropout


def seeded(dropout: float) -> Tensor:
    """A seed of which weights are dropped, drawn from torch's random numbers; 0 where none are."""
    seed = torch.empty((), dtype=torch.long)
    return seed.random_(2**62) if dropout else seed.zero_()


def drawn(seed: Tensor, dropout: float, device: torch.device) -> torch.Generator | None:
    return torch.Generator(device).manual_seed(int(seed)) if dropout else None


def kept(generator: torch.Generator | None, q: Tensor, keys: int, dropout: float) -> Tensor | None:
    """By what each weight is multiplied [batch, heads, query, key], both passes the same; None without dropout."""
    if generator is None:
        return None
    numbers = torch.empty(*q.shape[:3], keys, device=q.device, dtype=exact_dtype(q))
    return numbers.bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def joined(y: Tensor, lse: Tensor, more: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Values [batch, heads, query, width] of queries on two sets of keys, and the logarithms of their sums, by each set's."""
    both = torch.logaddexp(lse, total)
    by = both.masked_fill(both == -torch.inf, 0.0)  # of a query that sees nothing
    return y * (lse - by).exp()[..., None] + more * (total - by).exp()[..., None], both


@torch.library.custom_op("anyformer::blocked_attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    sink: Tensor | None,
    index: Tensor,
    seed: Tensor,
    pieces: Sequence[int],
    pairs: int,
    scale: float,
    cap: float | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """(values [batch, heads, query, width], the logarithm of each query's sum); q, k and v are of one width."""
    batch, heads, n, width = q.shape
    out = q.new_zeros(batch, n, heads, width).transpose(1, 2)
    lse = q.new_full((batch, heads, n), -torch.inf, dtype=exact_dtype(q))
    generator = drawn(seed, dropout, q.device)
    for block in _blocks(pieces, index, heads // k.shape[1]):
        x, keys, values = block.of_queries(q), block.of_keys(k), block.of_keys(v)
        bias = block.added(added, x.shape[2], keys.shape[2])
        if _fused(q, cap, dropout):
            y, total = aten._scaled_dot_product_flash_attention_for_cpu(
                x, keys, values, 0.0, False, attn_mask=bias, scale=scale
            )
            if bias is not None:  # of a row that sees nothing the operator says 0
                total = total.masked_fill(bias.amax(-1) == -torch.inf, -torch.inf)
        else:
            keep = kept(generator, x, keys.shape[2], dropout)
            y, total = Scores(x, keys, bias, scale, cap, keep).values(values)
        if block.again:
            y, total = joined(block.of_queries(out), block.of_queries(lse), y, total)
        block.put(out, y)
        block.put(lse, total)
    if sink is not None:
        whole = torch.logaddexp(lse, sink.to(lse.dtype).view(1, -1, 1))
        out.mul_((lse - whole).exp()[..., None])
        lse = whole
    return out, lse


@torch.library.custom_op("anyformer::blocked_attention_backward", mutates_args=())
def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    index: Tensor,
    seed: Tensor,
    pieces: Sequence[int],
    pairs: int,
    scale: float,
    cap: float | None,
    dropout: float,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, what is added (empty unless `learned`) and the sink (empty without one)."""
    for_q, for_k, for_v = (torch.zeros_like(x, dtype=exact_dtype(x)) for x in (q, k, v))
    for_added = torch.zeros_like(added) if added is not None and learned else q.new_empty(0)
    fused = _fused(q, cap, dropout) and not learned
    along = q.new_empty(0) if fused and sink is None else (exact(grad) * out).sum(-1)
    for_sink = q.new_empty(0)
    if sink is not None:
        for_sink = -((sink.to(lse.dtype).view(1, -1, 1) - lse).exp() * along).sum((0, 2)).to(sink.dtype)
    sums = lse.masked_fill(lse == -torch.inf, 0.0)
    generator = drawn(seed, dropout, q.device)
    for block in _blocks(pieces, index, q.shape[1] // k.shape[1]):
        x, of_out, y, total = map(block.of_queries, (q, grad, out, sums))
        keys, values = block.of_keys(k), block.of_keys(v)
        bias = block.added(added, x.shape[2], keys.shape[2])
        if fused:
            of_x, of_keys, of_values = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                of_out, x, keys, values, y, total, 0.0, False, attn_mask=bias, scale=scale
            )
        else:
            keep = kept(generator, x, keys.shape[2], dropout)
            scores = Scores(x, keys, bias, scale, cap, keep)
            of_x, of_keys, of_values, of_bias = scores.gradients(of_out, values, total, block.of_queries(along))
            if learned and bias is not None:
                of_bias = of_bias.sum(0) if block.of_heads > 1 else of_bias.sum((0, 1))
                for_added[block.begins :][: of_bias.numel()] += of_bias.flatten()
        _add(for_q, of_x, block.rows, block.heads, block.queries)
        _add(for_k, of_keys, block.rows, block.kv, block.keys)
        _add(for_v, of_values, block.rows, block.kv, block.keys)
    return for_q.to(q.dtype), for_k.to(k.dtype), for_v.to(v.dtype), for_added, for_sink


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, heads, n, width = q.shape
    out = q.new_empty(batch, n, heads, width).transpose(1, 2)
    return out, q.new_empty(batch, heads, n, dtype=exact_dtype(q))


@backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, added: Any, sink: Any, *rest: Any) -> tuple[Tensor, ...]:
    learned = rest[-1]
    for_added = torch.empty_like(added) if added is not None and learned else q.new_empty(0)
    for_sink = q.new_empty(0) if sink is None else torch.empty_like(sink)
    return *(torch.empty_like(x) for x in (q, k, v)), for_added, for_sink


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, added, sink, index, seed, *ctx.how = inputs
    ctx.save_for_backward(q, k, v, added, sink, *output, index, seed)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[3]
    q, k, v, added, sink, *rest = ctx.saved_tensors
    for_q, for_k, for_v, for_added, for_sink = backward(grad, q, k, v, added, sink, *rest, *ctx.how, learned)
    of_added, of_sink = (for_added if learned else None), (None if sink is None else for_sink)
    return for_q, for_k, for_v, of_added, of_sink, *(None,) * 7


attention.register_autograd(_backward, setup_context=_keep)
