"""XLNet: two streams as one of n + m tokens, scores of sinusoids and segments. Yang et al. 2019, arXiv:1906.08237."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.families.compose import block, post_norm, repeat
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    ByRole,
    Content,
    FeedForwardSpec,
    LayerNormSpec,
    Mask,
    Part,
    RelativeSinusoidSpec,
    ScoreSpec,
    Tokens,
    TokensSpec,
)
from anyformer.spec import (
    Count,
    EmbeddingSpec,
    HeadSpec,
    ModelSpec,
    Site,
    StackSpec,
    TableSpec,
    TermSpec,
    Vocab,
    Weight,
    Width,
)
from tests.hard_cases.case import Case, attention_heads, of_transformers


class BySegmentSpec(ScoreSpec):
    """(q + s)·e, e one of two vectors a head: the key is of the query's segment, or not."""

    n_segments: Count = Count(2)
    reads_content = True

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        n_heads, width = site.shape
        table = Weight((self.n_segments, n_heads, width), ("segment", "heads", "head_dim"), "table")
        return {"weight": table, "bias": Weight((n_heads, width), ("heads", "head_dim"), "bias", fill=0.0)}


class BySegment(Part[BySegmentSpec]):
    weight: Tensor
    bias: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        every = (content.q + self.bias[:, None]) @ self.weight.permute(1, 2, 0) * content.q.shape[-1] ** -0.5
        if query.segment is None or key.segment is None:
            return every[..., :1]
        return torch.where(query.segment == key.segment, every[..., :1], every[..., 1:])


class BlanksSpec(TermSpec):
    """The token's vector, or for marked tokens, which are those of the query stream, one that says nothing."""

    tokens: TokensSpec

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        return {"weight": Weight(site.shape, ("d_model",), "table")}


class Blanks(Part[BlanksSpec]):
    weight: Tensor
    tokens: nn.Module

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        x = self.tokens(ids, tokens)
        return x if tokens.mark is None else torch.where(tokens.mark[..., None] > 0, self.weight, x)


class TwoStreams(Mask):
    """A token sees those before it in the order of the permutation; of both streams, itself in its own alone.

    Nobody sees the query stream, whose tokens are marked; without an order the order is that of the text.
    """

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        blank_query, blank_key = (torch.zeros_like(t.position) if t.mark is None else t.mark for t in (query, key))
        when_query, when_key = (t.position if t.order is None else t.order for t in (query, key))
        return ((when_key < when_query) | ((when_key == when_query) & (blank_query == 0))) & (blank_key == 0)


def xlnet(
    *, n_layers: int = 12, d_model: int = 768, n_heads: int = 12, d_ff: int = 3072, vocab_size: int = 32_000
) -> ModelSpec:
    """Return the architecture; sizes of base: the released config."""
    norm, table = LayerNormSpec(eps=1e-12), TableSpec(rows=Vocab(vocab_size), shared="tokens")
    scores = (RelativeSinusoidSpec(bidirectional=True), BySegmentSpec())
    attend = AttentionSpec(projection=attention_heads(n_heads), mask=TwoStreams(), scores=scores)
    layer = block(post_norm(norm, attend), post_norm(norm, FeedForwardSpec(d_ff=Width(d_ff), activation=GELU())))
    terms = EmbeddingSpec(terms=(BlanksSpec(tokens=TokensSpec(table=table)),))
    stack = StackSpec(d_model=Width(d_model), embedding=terms, blocks=repeat(layer, n_layers), residual=AddSpec())
    return ModelSpec(stack=stack, heads=(HeadSpec(table=table, bias=True),), init=ByRole())


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    base = {"vocab_size": 32_000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}
    return of_transformers("XLNetLMHeadModel", "XLNetConfig", **{**base, **sizes})


CASE = Case("xlnet-base", xlnet, "117M", theirs)
