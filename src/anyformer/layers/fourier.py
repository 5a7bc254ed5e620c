"""A Fourier transform over tokens and features, in attention's place. Lee-Thorp et al. 2021, arXiv:2105.03824, section 3."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.execution import as_given, exact
from anyformer.layers.part import Part
from anyformer.spec import MixerSpec


class FourierSpec(MixerSpec):
    """Re F_n (F_d x): the discrete transform of each token's features, then of each feature's n tokens; nothing is learnt.

    For encoders: every token sees every other of its document. The n tokens are those of a document. Released models were
    trained on rows filled up with padding, all of which counts there; without a mask it does here too.
    """

    counted_as: ClassVar[str | None] = "Fourier transform"

    def shows_later(self) -> bool:
        return True

    def together(self) -> str | None:
        return "mixes each token with all others"


class Fourier(Part[FourierSpec]):
    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """The real part [batch, token, d_model] of the transform of x of that shape; no notes."""
        document = context.tokens.document
        if not x.numel():
            return x, {}
        with as_given(x):
            wide = exact(x)
            if document is None:
                return torch.fft.fftn(wide, dim=(1, 2)).real.to(x.dtype), {}
            cos, sin = context.once(self.digest, lambda: waves(document, wide.dtype))
            turned = torch.fft.fft(wide, dim=-1)
            return (cos @ turned.real + sin @ turned.imag).to(x.dtype), {}


def waves(document: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cosines, sines) [batch or 1, token, token] of a transform over each document [batch or 1, token] of a row."""
    same = document[:, :, None] == document[:, None, :]
    place, length = same.tril(-1).sum(-1), same.sum(-1)
    turns = place[:, :, None] * place[:, None, :] % length[:, None, :]
    angles = 2 * math.pi * turns.double() / length[:, None, :]
    return angles.cos().where(same, 0.0).to(dtype), angles.sin().where(same, 0.0).to(dtype)
