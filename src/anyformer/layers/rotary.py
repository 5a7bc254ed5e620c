"""Rotary position embedding: Su et al. 2021, arXiv:2104.09864; and the scalings that stretch its context."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from anyformer.layers.tokens import Now, Tokens
from anyformer.spec import Length, Spec


class RotaryScalingSpec(Spec, abstract=True):
    """How the frequencies change for contexts beyond the original."""

    def scaled(self, frequencies: list[float]) -> list[float]:
        """Return the new frequencies, in radians a token."""
        raise TypeError(
            f"{self.kind} is a scaling of rotary frequencies that does not say how; give it a method scaled"
        )

    def magnitude(self) -> float:
        """Return the factor of cos and sin."""
        return 1.0


class LinearScaling(RotaryScalingSpec):
    """Position interpolation: Chen et al. 2023, arXiv:2306.15595."""

    factor: float

    def scaled(self, frequencies: list[float]) -> list[float]:
        return [f / self.factor for f in frequencies]


class Llama3Scaling(RotaryScalingSpec):
    """Long waves are stretched, short ones kept, those between blended: Grattafiori et al. 2024, arXiv:2407.21783."""

    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: Length = Length(8192)

    def scaled(self, frequencies: list[float]) -> list[float]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = [(self.original_context * f / (2 * math.pi) - low) / (high - low) for f in frequencies]
        shares = [min(max(share, 0.0), 1.0) for share in kept]
        return [s * f + (1 - s) * f / self.factor for s, f in zip(shares, frequencies, strict=True)]


class RotarySpec(Spec):
    """Rotate pairs of features of queries and keys by position · theta^(-2i/r), r the features that rotate."""

    theta: float = 10000.0
    fraction: float = 1.0  # of head_dim that rotates
    where: Literal["first", "last"] = "first"  # which features rotate
    layout: Literal["half", "interleaved"] = "half"  # pairs are (i, i + r/2) or (2i, 2i + 1)
    scaling: RotaryScalingSpec | None = None

    def dims(self, head_dim: int) -> int:
        """Return r, the number of features that rotate. Raises SpecError if it is odd."""
        r = int(head_dim * self.fraction)
        if r % 2 or not 0 < r <= head_dim:
            raise self.refusal(
                "fraction", f"of head_dim {head_dim} rotates {r} features; it must be an even number above 0"
            )
        return r

    def frequencies(self, head_dim: int) -> list[float]:
        """Return radians a token for each of the r/2 pairs."""
        r = self.dims(head_dim)
        plain = [self.theta ** (-2 * i / r) for i in range(r // 2)]
        return self.scaling.scaled(plain) if self.scaling else plain

    def tables(self, tokens: Tokens, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cos, sin), each [batch or 1, 1, token, r]; sin carries the sign with which swapped features enter."""
        frequencies = torch.tensor(self.frequencies(head_dim), device=tokens.position.device)
        angles = tokens.position.float()[:, None, :, None] * frequencies
        magnitude = self.scaling.magnitude() if self.scaling else 1.0
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        if self.layout == "half":
            pairs = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            pairs = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        return pairs[0].to(dtype), pairs[1].to(dtype)

    def rotate(self, x: Tensor, now: Now) -> Tensor:
        """Return x [batch, heads, token, head_dim] rotated by its tokens' positions."""
        head_dim = x.shape[-1]
        key = f"rotary {self.key} {head_dim} {x.dtype}"
        cos, sin = now.once(key, lambda: self.tables(now.tokens, head_dim, x.dtype))
        r = cos.shape[-1]
        if r == head_dim:
            return torch.addcmul(x * cos, self.swapped(x), sin)
        start = 0 if self.where == "first" else head_dim - r
        before, turning, after = x.split((start, r, head_dim - start - r), -1)
        return torch.cat((before, torch.addcmul(turning * cos, self.swapped(turning), sin), after), -1)

    def swapped(self, x: Tensor) -> Tensor:
        """Return x with the two features of each pair exchanged."""
        if self.layout == "half":
            first, second = x.chunk(2, -1)
            return torch.cat((second, first), -1)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
