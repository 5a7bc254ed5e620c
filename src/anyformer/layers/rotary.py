"""Rotary position embedding: Su et al. 2021, arXiv:2104.09864; frequencies that are learned, LeRoPE (Mistral AI 2026)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import constant
from anyformer.layers.part import Part
from anyformer.layers.rope_scaling import RotaryScalingSpec, ScalingByLength
from anyformer.layers.tokens import Tokens
from anyformer.spec import PartSpec, Place, Positive, SomeShare, Spec, Weight


class LearnedFrequenciesSpec(PartSpec):
    """Each frequency times exp(alpha), a number for each pair of features that turns; scaled ones are scaled first (LeRoPE, as in
    Mistral Large 4, from transformers' class).

    Its place's shape is how many pairs there are. With a `shared` name all layers have the same.
    """

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"alpha": Weight(place.shape, ("pairs",), "bias", fill=0.0)}


class LearnedFrequencies(Part[LearnedFrequenciesSpec]):
    alpha: Tensor

    def forward(self, frequencies: Tensor) -> Tensor:
        """Radians a token […, pair], of those that are given."""
        return frequencies * self.alpha.to(frequencies.dtype).exp()


class RotarySpec(Spec):
    """Rotate pairs of features of queries and keys by position · theta^(-2i/r), r the features that rotate."""

    theta: Positive = 10000.0
    fraction: SomeShare = 1.0  # of head_dim that rotates
    where: Literal["first", "last"] = "first"  # which features rotate
    layout: Literal["half", "interleaved"] = "half"  # pairs are (i, i + r/2) or (2i, 2i + 1)
    backwards: bool = False  # pairs turn the other way, by minus the position (nanochat)
    scaling: RotaryScalingSpec | None = None
    learned: LearnedFrequenciesSpec | None = None  # what frequencies, scaled or not, are multiplied by (LeRoPE)

    def __post_init__(self) -> None:
        self.require(
            "theta",
            self.scaling is None or self.theta >= 2,
            "must be at least 2 where long waves are scaled: at 1 all are alike",
        )

    def dims(self, head_dim: int) -> int:
        """The number r of features that rotate. Raises SpecError if it is odd, or not what the scaling is for."""
        r = self._dims(head_dim)
        if self.scaling is not None:
            self.scaling.check(r // 2)
        return r

    def _dims(self, head_dim: int) -> int:
        r = int(head_dim * self.fraction)
        if r % 2 or not 0 < r <= head_dim:
            raise self.refusal(
                "fraction", f"of head_dim {head_dim} rotates {r} features; it must be an even number above 0"
            )
        return r

    def frequencies(self, head_dim: int, length: int = 1) -> list[float]:
        """Radians a token for each of the r/2 pairs, in a text of `length` tokens where the scaling goes by it."""
        r = self.dims(head_dim)
        plain = [self.theta ** (-2 * i / r) for i in range(r // 2)]
        if isinstance(self.scaling, ScalingByLength):
            return self.scaling.stretched(plain, torch.tensor([[[length]]])).flatten().tolist()
        return self.scaling.scaled(plain) if self.scaling else plain

    def fitted(self, head_dim: int) -> Self:
        """The same for heads of another width: as nearly as an even number of features allows."""
        r = int(head_dim * self.fraction)
        least = 1 if self.scaling is None else 2  # pairs, of long waves and of short ones
        n = min(head_dim - head_dim % 2, 2 * max(least, round(r / 2)))
        spec = self if n == r else self.but(fraction=fraction_of(n, head_dim))
        return spec if self.scaling is None else spec.but(scaling=self.scaling.fitted(spec._dims(head_dim) // 2))

    def tables(
        self, tokens: Tokens, head_dim: int, dtype: torch.dtype, learned: LearnedFrequencies | None = None
    ) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [batch or 1, 1, token, r]; sin carries the sign with which swapped features enter.

        `learned`: the part of that name, where there is one.
        """
        scaling, position = self.scaling, tokens.position
        if isinstance(scaling, ScalingByLength):
            length, plain = lengths(tokens), self.but(scaling=None).frequencies(head_dim)
            frequencies, magnitude = scaling.stretched(plain, length), scaling.magnitudes(length)
        else:
            frequencies = constant(self.frequencies(head_dim), position)
            magnitude = scaling.magnitude() if scaling else 1.0
        frequencies = frequencies if learned is None else learned(frequencies)
        angles = position.float()[..., None] * (-frequencies if self.backwards else frequencies)
        cos, sin = ((wave * magnitude)[:, None] for wave in (angles.cos(), angles.sin()))
        if self.layout == "half":
            pairs = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            pairs = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        return pairs[0].to(dtype), pairs[1].to(dtype)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The x [batch, heads, token, head_dim] rotated by what `tables` gives."""
        r, head_dim = cos.shape[-1], x.shape[-1]
        if r == head_dim:
            return torch.addcmul(x * cos, self.swapped(x), sin)
        start = 0 if self.where == "first" else head_dim - r
        before, turning, after = x.split((start, r, head_dim - start - r), -1)
        return torch.cat((before, torch.addcmul(turning * cos, self.swapped(turning), sin), after), -1)

    def swapped(self, x: Tensor) -> Tensor:
        """The x [batch, heads, token, r] with the two features of each pair exchanged."""
        if self.layout == "half":
            first, second = x.chunk(2, -1)
            return torch.cat((second, first), -1)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class Rotation(NamedTuple):
    """How vectors turn, with the part that learns the frequencies, where there is one."""

    spec: RotarySpec
    learned: LearnedFrequencies | None

    def rotate(self, x: Tensor, context: ForwardContext, *, back: bool = False) -> Tensor:
        """The x [batch, heads, token, width] rotated by the positions of a pass's tokens, or by minus these: back."""
        cos, sin = self.tables(context, x.shape[-1], x.dtype)
        return self.spec.turned(x, cos, -sin if back else sin)

    def rotate_as(self, x: Tensor, tokens: Tokens) -> Tensor:
        """The x [batch, heads, token, width] rotated by the positions of these tokens."""
        return self.spec.turned(x, *self.spec.tables(tokens, x.shape[-1], x.dtype, self.learned))

    def tables(self, context: ForwardContext, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The `tables` of a pass; those of frequencies that a layer learns for itself are made anew."""
        own = self.spec.learned is not None and self.spec.learned.shared is None
        key = None if own else f"rotary {self.spec.key} {width} {dtype}"
        return context.once(key, lambda: self.spec.tables(context.tokens, width, dtype, self.learned))


def fraction_of(n: int, head_dim: int) -> float:
    """The fraction of head_dim that n features are: the least of which `RotarySpec.dims`, which rounds down, makes n again."""
    fraction = n / head_dim
    return fraction if int(head_dim * fraction) == n else math.nextafter(fraction, math.inf)


def lengths(tokens: Tokens) -> Tensor:
    """How long each token's document is so far, in tokens [batch or 1, token or 1, 1]: its last position and one."""
    return tokens.ends[..., None] + 1
