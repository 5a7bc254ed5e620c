"""Which pairs of tokens lie together, read off attention: Rao et al. 2020, "Transformer protein language models are unsupervised
structure learners", section 3; the correction is Dunn et al. 2008's (doi:10.1093/bioinformatics/btm604)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens
from anyformer.spec import PoolSpec


class ContactsSpec(PoolSpec):
    """The weights of every head of every layer between two tokens, both ways added, less what both tokens have of all others
    (average product correction). A row's first real token and its last, which only frame it, count for nothing."""

    reads: ClassVar[Literal["tokens", "attention"]] = "attention"


class Contacts(Part[ContactsSpec]):
    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """[batch, token, token, maps] of x [batch, maps, token, token]; 0 where a token counts for nothing."""
        inner = _inner(tokens).to(x.dtype)[:, None]
        x = x * inner[..., :, None] * inner[..., None, :]
        x = x + x.transpose(-1, -2)
        of_row, total = x.sum(-1), x.sum((-1, -2))[..., None, None]
        explained = of_row[..., :, None] * of_row[..., None, :] / total.where(total != 0, 1.0)
        return (x - explained).permute(0, 2, 3, 1)


def _inner(tokens: Tokens) -> Tensor:
    """Which tokens are real and neither the first nor the last of their row, [batch or 1, token]."""
    real = tokens.documents > 0
    count = real.cumsum(1)
    return real & (count > 1) & (count < count[:, -1:])
