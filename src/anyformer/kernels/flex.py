"""PyTorch's FlexAttention: any mask and any score of distance, compiled into one fused kernel that leaves hidden blocks out.

Dong et al. 2024, arXiv:2412.05496. Forward and backward on a GPU, forward alone on a CPU: PyTorch has no backward pass there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F

from anyformer.errors import KernelError
from anyformer.kernels.plan import beyond_a_plan, tiles, with_ends
from anyformer.layers.activation import soft_capped
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.block import keep_graphs
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.mask import Mask, shown
from anyformer.layers.tokens import Bias, Tokens

TILE = 128  # queries, and keys, of a block: what PyTorch's kernels work on
LEAST = 16  # features of a head that a GPU's matrix units multiply

PairOf = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # something of (row, head, query, key), each a number


class Compiled(NamedTuple):
    """The blocks that hold a visible pair, and what distances add to scores."""

    blocks: Any  # a BlockMask; None: all is seen
    added: PairOf | None


class Flex:
    """One fused kernel for each mask and length, compiled when it is first met."""

    name = "flex"
    brings = False

    def __init__(self, compiled: bool = True) -> None:
        self.compiled = compiled  # not: PyTorch's own written-out form, dense and slow, to test against

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why the kernel cannot compute this attention, or None."""
        if (why := beyond_a_plan(self.name, spec)) is not None:
            return why
        other = [score.kind for score in spec.scores if not score.of_distance]
        return f"flex has no scores of anything but distance ({', '.join(other)})" if other else None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Compiled:
        """The blocks of the mask, and a table of what each distance adds [head, distance]."""
        if is_fake(query.position):
            return Compiled(None, None)
        if query.span and key.span:
            mask = mask.within(query.span, key.span)
        return Compiled(_block_mask(mask, query, key, n_heads), None if bias is None else _added(bias, query, key))

    @staticmethod
    def cannot(q: Tensor, v: Tensor, how: SoftmaxOptions) -> str | None:
        """Why it does not compute this pass, whatever the mask, or None."""
        if how.dropout:
            return "flex drops no weights; train without attention dropout, or use kernel='sdpa' or 'eager'"
        if q.is_cuda:
            narrow = min(q.shape[3], v.shape[3])
            least = f"flex takes heads of {LEAST} features and more on a GPU, not {narrow}"
            return f"{least}; use kernel='sdpa' or 'eager'" if narrow < LEAST else None
        if q.is_cpu and torch.is_grad_enabled() and (q.requires_grad or v.requires_grad):
            return "flex has no backward pass on a CPU; use kernel='blocked', 'sdpa' or 'eager' to train there"
        return None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Compiled, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, value_dim], and no weights; a row that sees no key gives 0.

        Raises KernelError for dropout, for what has a gradient on a CPU, and for heads too narrow for a GPU.
        """
        from torch.nn.attention.flex_attention import AuxRequest

        if (reason := self.cannot(q, v, how)) is not None:
            raise KernelError(reason)
        added, softcap, sink = seen.added, how.softcap, how.sink
        if is_fake(q):  # somebody looks what a pass keeps: as of any fused kernel
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])
            return (y if sink is None else y * torch.sigmoid(-sink).view(1, -1, 1, 1).to(y.dtype)), None

        def score(s: Tensor, row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            s = soft_capped(s, softcap)
            return s if added is None else s + added(row, head, i, j)

        if sink is not None and self.compiled and q.is_cpu:
            raise KernelError("flex gives no sums on a CPU, which sinks take; use kernel='blocked' or 'eager' there")
        found = _attention(self.compiled)(
            q,
            k,
            v,
            score_mod=None if softcap is None and added is None else score,
            block_mask=seen.blocks,
            scale=how.scale,
            enable_gqa=q.shape[1] > k.shape[1],
            return_aux=None if sink is None else AuxRequest(lse=True),
        )
        if sink is None:
            return found, None
        y, aux = found  # exp(lse) of exp(lse) + exp(sink): what the sink leaves
        y = y * torch.sigmoid(aux.lse - sink.view(1, -1, 1))[..., None].to(y.dtype)
        return y, None


@cache
def _attention(compiled: bool) -> Callable[..., Any]:
    from torch.nn.attention import flex_attention as flex

    written_out: Any = flex.flex_attention
    if not compiled:
        return written_out
    keep_graphs()
    return torch.compile(written_out, dynamic=False)


def _block_mask(mask: Mask, query: Tokens, key: Tokens, n_heads: int) -> Any:
    """Which blocks are computed, and of those that may hide a pair the predicate; None where everything is seen."""
    from torch.nn.attention.flex_attention import BlockMask

    key = with_ends(key)

    def facts(tokens: Tokens, row: Tensor, at: Tensor) -> Tokens:
        found = tokens.each(lambda fact: fact[row if fact.shape[0] > 1 else 0, at])
        # Counted rather than looked up, at whose memory a window's kernel would spend a fifth of its time.
        return replace(found, position=at + tokens.span[0]) if tokens.span and not tokens.turned else found

    def visible(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = shown(mask, facts(query, row, i), facts(key, row, j), head)
        assert found is not None
        return found

    one = torch.zeros((), dtype=torch.long, device=key.position.device)
    if shown(mask, facts(query, one, one), facts(key, one, one), one) is None:
        return None
    may, must = tiles(mask, query, key, n_heads, TILE)
    whole = np.ones(must.shape[-2:], dtype=bool)  # a block that reaches beyond the last token is not
    whole[query.n // TILE :], whole[:, key.n // TILE :] = False, False
    full = must & whole
    partly, fully = (_listed(bits, key.position.device) for bits in (may & ~full, full))
    return BlockMask.from_kv_blocks(*partly, *fully, BLOCK_SIZE=TILE, mask_mod=visible, seq_lengths=(query.n, key.n))


def _listed(bits: np.ndarray[Any, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """(how many blocks of keys each block of queries has, their numbers, the others behind them) of [row, head, query, key]."""
    which = torch.as_tensor(bits.astype(np.int32), device=device)
    return which.sum(-1, dtype=torch.int32), torch.argsort(which, dim=-1, descending=True, stable=True).int()


def _added(bias: Bias, query: Tokens, key: Tokens) -> PairOf:
    """What the distance of a pair adds, from a table of all distances there are."""
    # Whole lengths, so that documents packed otherwise find the same kernel.
    first = min(-1, (int(key.position.min() - query.position.max()) - 1) // key.n) * key.n + 1
    last = max(1, -((int(query.position.min() - key.position.max()) - 1) // key.n)) * key.n - 1
    distances = torch.arange(first, last + 1, device=key.position.device)[None]
    table = bias(Tokens(torch.zeros_like(distances[:, :1])), Tokens(distances))
    assert table is not None
    each = table[0, :, 0]  # [heads or 1, distance]
    of_query, of_key = query.position, key.position

    def added(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at = of_key[row if of_key.shape[0] > 1 else 0, j] - of_query[row if of_query.shape[0] > 1 else 0, i]
        return each[head if each.shape[0] > 1 else 0, at - first]

    return added
