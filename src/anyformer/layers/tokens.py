"""Tokens as facts: where each stands, in which document, and what else masks, scores and positions go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Span = tuple[int, int]  # positions from the first up to, not including, the second


@dataclass(frozen=True)
class Tokens:
    """Facts about tokens, each [batch or 1, token]; masks and scores are functions of these, never of indices."""

    position: Tensor
    document: Tensor | None = None  # 0: padding; equal numbers see each other; None: all are of one document
    order: Tensor | None = None  # what causality goes by; None: the position
    segment: Tensor | None = None
    language: Tensor | None = None  # read as tokens are embedded, and kept nowhere; None: none is said
    # not 0: what a mask singles out (Longformer's global tokens, XLNet's blanks); None: no token
    mark: Tensor | None = None
    # the position of the last token of each token's document, where whoever asks of a part of the tokens worked it out
    end: Tensor | None = None
    span: Span | None = None  # positions are start … stop - 1 in every row, one document, no padding; else None
    turned: bool = False  # the span's positions are in another order: keys of a ring that has come round
    # a query and a key may be further apart than the keys of a row are many: positions leave numbers out, or are of two texts
    leaps: bool = False
    name: str = ""  # of the set of tokens, for memos within one pass: "" the new ones, else those of a cache

    @property
    def n(self) -> int:
        """How many tokens a row has."""
        return self.position.shape[1]

    @property
    def marked(self) -> Tensor:
        """Whether each token is marked, of the facts' shape."""
        return self.position < 0 if self.mark is None else self.mark > 0

    @property
    def documents(self) -> Tensor:
        """The document of each token, of the facts' shape: 1 where all are of one."""
        return torch.ones_like(self.position) if self.document is None else self.document

    @property
    def ends(self) -> Tensor:
        """The position of the last token of each token's document, of the facts' shape, or one for each row."""
        if self.end is not None:
            return self.end
        if self.document is None:
            return self.position.amax(-1, keepdim=True)
        together = self.document[..., :, None] == self.document[..., None, :]
        return torch.where(together, self.position[..., None, :], -1).amax(-1)

    def each(self, function: Callable[[Tensor], Tensor]) -> Tokens:
        """Apply `function` to every fact that is there."""
        facts = {n: getattr(self, n) for n in (*FACTS, "language", "end")}
        return replace(self, **{n: None if fact is None else function(fact) for n, fact in facts.items()})

    def as_queries(self) -> Tokens:
        """The facts as [batch, 1, token, 1]."""
        return self.each(lambda fact: fact[:, None, :, None])

    def as_keys(self) -> Tokens:
        """The facts as [batch, 1, 1, token]."""
        return self.each(lambda fact: fact[:, None, None, :])


FACTS = ("position", "document", "order", "segment", "mark")

# What positions add to scores [batch or 1, heads or 1, query, key], asked of some queries and keys; None: nothing.
Bias = Callable[[Tokens, Tokens], Tensor | None]


def flagged_first(flags: Tensor) -> Tensor:
    """The places [batch, token] of flags [batch, token] that are set, in turn, and behind them those of the others, in turn."""
    return torch.argsort((~flags).to(torch.int8), dim=1, stable=True)


def plain_tokens(n: int, device: torch.device, start: int = 0) -> Tokens:
    """`n` tokens of one document, at positions from `start` on."""
    return Tokens(torch.arange(start, start + n, device=device)[None], span=(start, start + n))


def unmarked(n: int, start: int = 0) -> Tokens:
    """Plain tokens none of which is of a prefix that only token_type_ids tell: no mask says how long that is."""
    tokens = plain_tokens(n, torch.device("cpu"), start)
    return replace(tokens, segment=torch.ones_like(tokens.position))
