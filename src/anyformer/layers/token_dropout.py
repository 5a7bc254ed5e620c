"""Masked tokens as tokens that are dropped: Lin et al. 2023 (ESM-2, doi:10.1126/science.ade2574), as released."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.layers.tokens import Tokens
from anyformer.spec import Spec, TrueShare


class TokenDropoutSpec(Spec):
    """The vectors of masked tokens are 0, those of a text's others times (1 - share) / (1 - the share of masks in the text), also
    in evaluation: as dropout does, they are scaled to what they were on average in training."""

    token: int  # the mask's id; training on texts sets it to the tokenizer's
    share: TrueShare = 0.12  # of the tokens that training masks

    def shows_later(self) -> bool:
        """As `MixerSpec.shows_later`."""
        return True

    def together(self) -> str | None:
        """As a mixer's: why several processes cannot each compute a stretch of a row's tokens."""
        return "counts the masks of whole texts"

    def factors(self, ids: Tensor, tokens: Tokens, dtype: torch.dtype) -> Tensor:
        """What the vectors of tokens `ids` [batch, token] are multiplied by, [batch, token, 1]."""
        masked = ids == self.token
        if tokens.document is None:
            hidden, real = masked.sum(1, keepdim=True), torch.full_like(ids[:, :1], ids.shape[1])
        else:
            together = (tokens.document[:, :, None] == tokens.document[:, None, :]) & (tokens.document > 0)[:, None, :]
            hidden, real = (together & masked[:, None, :]).sum(-1), together.sum(-1)
        # Of a text that is all masks nothing is left to be scaled.
        left = (1 - hidden / real.clamp(min=1)).clamp(min=torch.finfo(torch.float32).eps)
        return ((1 - self.share) / left).masked_fill(masked, 0.0).to(dtype)[..., None]
