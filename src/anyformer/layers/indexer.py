"""A choice of keys: DeepSeek sparse attention, whose lightning indexer says which keys each query attends to.

DeepSeek-AI 2025, the report of DeepSeek-V3.2 (from memory). No gradient of what attention gives reaches the choice. The
report trains the indexer by a loss of its own, the divergence between its scores and attention's weights; that loss is not
here, so that training by any other leaves its weights as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.layers.linear import LinearSpec
from anyformer.layers.norm import LayerNormSpec
from anyformer.layers.part import Part
from anyformer.layers.rotary import RotarySpec
from anyformer.layers.tokens import ForwardContext, as_given
from anyformer.spec import Cost, Count, MapSpec, PartSpec, Place, Placed, Sizes, Width, Window, Workload


class IndexerSpec(PartSpec):
    """The `top_k` visible keys of the best scores: the sum over heads of w · relu(q·k / √head_dim) / √n_heads.

    Its queries are made of what attention's queries are made of, the latent where there is one; w, a number a head, and the
    one key a token of the stream. The shape of its place is the width of the former.
    """

    observed_as: ClassVar[str | None] = "indexer"

    n_heads: Count
    head_dim: Width
    top_k: Window
    rotary: RotarySpec | None = None
    norm_key: MapSpec | None = LayerNormSpec(eps=1e-6)

    def __post_init__(self) -> None:
        if self.rotary is not None:
            self.rotary.dims(self.head_dim)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        stream = place.at(place.d_model)
        heads = Width(self.n_heads * self.head_dim)
        return {
            "q": (LinearSpec(d_out=heads, axes=("heads", "query_rank")), place),
            "k": (LinearSpec(d_out=self.head_dim, axes=("head_dim", "d_model")), stream),
            "norm_key": self.norm_key and (self.norm_key, place.at(self.head_dim)),
            "weigh": (LinearSpec(d_out=Width(self.n_heads), axes=("heads", "d_model")), stream),
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The products that are made of tokens; those of pairs are `pair` FLOPs each."""
        queries = self.n_heads * self.head_dim * place.shape[-1]
        return Cost({"indexer": 2 * (queries + (self.head_dim + self.n_heads) * place.d_model) * workload.tokens})

    @property
    def pair(self) -> int:
        """FLOPs of one score: the heads' products, and their weighted sum."""
        return 2 * self.n_heads * (self.head_dim + 1)

    def resized(self, to: Sizes) -> IndexerSpec:
        small = super().resized(to)
        return small.but(rotary=self.rotary and self.rotary.resized(to).fitted(small.head_dim))


class Indexer(Part[IndexerSpec]):
    q: nn.Module
    k: nn.Module
    norm_key: nn.Module | None
    weigh: nn.Module

    @torch.no_grad()
    def keys(self, x: Tensor, context: ForwardContext) -> Tensor:
        """What is kept of x [batch, token, d_model]: its keys [batch, token, head_dim]."""
        k = self.k(x)
        k = k if self.norm_key is None else self.norm_key(k)
        return k if self.spec.rotary is None else self.spec.rotary.rotate(k[:, None], context)[:, 0]

    @torch.no_grad()
    def forward(self, narrow: Tensor, x: Tensor, keys: Tensor, seen: Tensor | None, context: ForwardContext) -> Tensor:
        """0 for a chosen key and -inf for another, [batch, 1, query, key].

        `narrow` [batch, query, …] is what queries are made of, `seen` [batch or 1, 1, query, key] the visible pairs. Of
        equal scores the earlier keys' are the better, so that a choice does not hang on how many keys are behind it.
        """
        spec = self.spec
        q = self.q(narrow).unflatten(-1, (spec.n_heads, spec.head_dim)).transpose(1, 2)
        q = q if spec.rotary is None else spec.rotary.rotate(q, context)
        weights = self.weigh(x)
        with as_given(x):
            exact = torch.promote_types(x.dtype, torch.float32)
            each = (q.to(exact) @ keys[:, None].to(exact).mT * spec.head_dim**-0.5).relu()  # [batch, heads, query, key]
            scores = (weights.to(exact)[:, :, None] * spec.n_heads**-0.5 @ each.transpose(1, 2)).transpose(1, 2)
            scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
            least = scores.topk(min(spec.top_k, scores.shape[-1]), -1).values[..., -1:]
            better, equal = scores > least, scores == least
            chosen = better | equal & (equal.cumsum(-1) <= spec.top_k - better.sum(-1, keepdim=True))
            return torch.zeros_like(scores).masked_fill(~chosen, -torch.inf)
