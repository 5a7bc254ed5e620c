"""Attention written out: the slow, plain oracle that takes every option and gives the weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import soft_capped
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.execution import exact
from anyformer.layers.mask import Mask, visible
from anyformer.layers.tokens import Bias, Tokens


class Dense(NamedTuple):
    """Who sees whom, and what is added to the scores, each [batch or 1, heads or 1, query, key]."""

    mask: Tensor | None
    bias: Tensor | None


class Eager:
    """Every option, in the memory of all scores."""

    name = "eager"
    brings = False

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why the kernel cannot compute this attention: it always can."""
        return None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Dense:
        """The mask and the bias, as they are, each [batch or 1, heads or 1, query, key]."""
        return Dense(visible(mask, query, key, n_heads), None if bias is None else bias(query, key))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Dense, how: SoftmaxOptions) -> tuple[Tensor, Tensor]:
        """Values [batch, heads, query, value_dim] and weights [batch, heads, query, key]; a row that sees no key gives 0."""
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
        s = exact(q @ k.mT) * how.scale
        s = soft_capped(s, how.softcap)
        for more in (how.scores, seen.bias):
            s = s if more is None else s + more
        if seen.mask is not None:
            s = s.masked_fill(~seen.mask, torch.finfo(s.dtype).min)
        if how.sink is not None:
            s = torch.cat((s, how.sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)), -1)
        weights = s.softmax(-1)
        if how.sink is not None:
            weights = weights[..., :-1]
        if seen.mask is not None:
            weights = weights.masked_fill(~seen.mask, 0.0)
        if how.dropout:
            weights = F.dropout(weights, how.dropout)
        return weights.to(v.dtype) @ v, weights
