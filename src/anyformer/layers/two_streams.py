"""XLNet's two streams as one of n + m tokens, what is known and blanks that ask. Yang et al. 2019, arXiv:1906.08237.

A blank is a token that is marked. It stands at the position of the token that it asks for and says nothing of it; no token
sees it. The n tokens are the content stream, the m blanks the query stream.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anyformer.layers.embedding import Table, TokensSpec, looked_up
from anyformer.layers.mask import Causal, Everything, Mask
from anyformer.layers.part import Part
from anyformer.layers.tokens import Span, Tokens
from anyformer.spec import Place, Weight


class BlanksSpec(TokensSpec):
    """The token's vector, or for marked tokens one vector that says nothing."""

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"blank": Weight(place.shape, ("d_model",), "table", plain=False)}


class Blanks(Part[BlanksSpec]):
    blank: Tensor
    table: Table
    projection: nn.Module | None

    def forward(self, ids: Tensor, tokens: Tokens) -> Tensor:
        """Vectors [batch, token, width] of `ids` [batch, token]."""
        x = looked_up(ids, tokens, self.spec, self.table, self.projection)
        return x if tokens.mark is None else torch.where(tokens.mark[..., None] > 0, self.blank.to(x.dtype), x)


class TwoStreams(Mask):
    """A token sees those that come earlier in an order, a permutation of the text, and those beside it; a blank, those earlier.

    Without an order every token sees all, and a blank all but the one it stands for. Nobody sees blanks. `forward`: of these,
    none that stands after it in the text, whatever the order.
    """

    forward: bool = False

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        seen = self._in_order(query, key)
        return seen & (key.position <= query.position) if self.forward else seen

    def _in_order(self, query: Tokens, key: Tokens) -> Tensor:
        asks, blank = query.marked, key.marked
        if query.order is None or key.order is None:
            return ~(asks & (query.position == key.position)) & ~blank
        return ((key.order < query.order) | ((key.order == query.order) & ~asks)) & ~blank

    def within(self, query: Span, key: Span) -> Mask:
        return self._plain().within(query, key)

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        return self._plain().pairs(query, past, n_heads)

    def _plain(self) -> Mask:
        """What it is to plain tokens, which have no order and no blanks among them."""
        return Causal() if self.forward else Everything()
