"""PyTorch's fused attention, `scaled_dot_product_attention`; exact, without softcap or sink."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.execution import at_every_length, product_dtype
from anyformer.layers.mask import Causal, Everything, Mask, visible
from anyformer.layers.tokens import Bias, Tokens

HALF = (torch.bfloat16, torch.float16)
# cuDNN takes .05 to .1 s to plan for each new shape: it is given lengths of so many tokens and their multiples.
PLANNED = 128


class Fused(NamedTuple):
    """What PyTorch takes: a flag, or a mask (booleans, or numbers to add), and rows that see nothing."""

    causal: bool
    mask: Tensor | None
    blind: Tensor | None  # [batch or 1, heads or 1, query, 1]


class SDPA:
    """Fast for plain causal, bidirectional and single-token attention; other masks are dense."""

    name = "sdpa"
    brings = False

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why the kernel cannot compute this attention, or None."""
        if spec.softcap is not None:
            return f"{self.name} cannot cap scores (softcap={spec.softcap})"
        if spec.sink:
            return f"{self.name} has no sink"
        if spec.relative_values is not None:
            return f"{self.name} gives no weights, which {spec.relative_values.kind} are made of"
        return None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Fused:
        """The cheapest form: nothing, a flag, or booleans or numbers to add [batch or 1, heads or 1, query, key]."""
        if bias is None and (causal := flagged(mask, query, key)) is not None:
            return Fused(causal, None, None)
        seen, added = visible(mask, query, key, n_heads), None if bias is None else bias(query, key)
        if seen is None:
            return Fused(False, added, None)
        blind = None if _all_see_themselves(mask, query, key) else ~seen.any(-1, keepdim=True)
        seen = seen if blind is None else seen | blind  # a row that sees nothing is let see all, then set to 0
        return Fused(False, seen if added is None else torch.where(seen, added, -torch.inf), blind)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Fused, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, value_dim], and no weights; a row that sees no key gives 0."""
        mask, causal = seen.mask, seen.causal
        if how.scores is not None:
            mask, causal = _added(mask, causal, how.scores), False
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)
        batch, heads, query, width = q.shape
        attention = _without_plans if _would_plan(query, k) else F.scaled_dot_product_attention
        groups = heads // k.shape[1]
        alone = query == groups == 1 and q.is_cpu and product_dtype(q) == torch.bfloat16
        if alone or (query == 1 and groups > 1 and (mask is None or mask.shape[1] == 1)):
            # One query a row: the heads of a group are rows of one product, and keys are read once. A row alone is no product of
            # matrices, and in bfloat16 takes a CPU three times as long as two.
            rows = torch.cat((q, q), 2) if alone else q.reshape(batch, k.shape[1], groups, width)
            y = attention(rows, k, v, mask, how.dropout, scale=how.scale)
            y = y[:, :, :groups].reshape(batch, heads, 1, v.shape[-1])
        else:
            if groups > 1 and q.is_cuda and (mask is not None or product_dtype(q) not in HALF):
                # There PyTorch's fused kernels that take a mask, or float32, want a key for each head.
                k, v = (x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for x in (k, v))
            y = attention(q, k, v, mask, how.dropout, causal, scale=how.scale, enable_gqa=heads > k.shape[1])
        return y if seen.blind is None else y.masked_fill(seen.blind, 0.0), None


def flagged(mask: Mask, query: Tokens, key: Tokens) -> bool | None:
    """Whether PyTorch's flag for causal attention is set, where that says who sees whom; None where it takes a mask."""
    if not query.span or not key.span:
        return None
    left = mask.within(query.span, key.span)
    if isinstance(left, Everything):
        return False
    return True if isinstance(left, Causal) and query.span == key.span else None


def _all_see_themselves(mask: Mask, query: Tokens, key: Tokens) -> bool:
    """Whether an interval of keys around each query is seen, and its own is among them: of another text it need not be."""
    if not query.span or not key.span or mask.band() is None:
        return False
    return at_every_length(key.span[0] <= query.span[0], query.span[1] <= key.span[1])


def _would_plan(n_queries: int, k: Tensor) -> bool:
    """Whether cuDNN, which PyTorch prefers where it can, may see these lengths once; compiled, they are seen again and again."""
    if not k.is_cuda or torch.compiler.is_compiling():
        return False
    return bool(n_queries % PLANNED or k.shape[-2] % PLANNED)


def _without_plans(*given: Any, **options: Any) -> Tensor:
    """Attention by PyTorch's other kernels, whatever else is allowed."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return F.scaled_dot_product_attention(*given, **options)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _added(mask: Tensor | None, causal: bool, scores: Tensor) -> Tensor:
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    return torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else scores + mask
