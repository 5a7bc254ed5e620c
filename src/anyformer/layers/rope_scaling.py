"""How rotary frequencies are scaled for contexts beyond the one they were trained in; each scaling names its paper."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from anyformer.layers.execution import constant
from anyformer.spec import Caveat, Length, Positive, SomeShare, Spec
from anyformer.spec.ranges import MOST


class RotaryScalingSpec(Spec, abstract=True):
    """How the frequencies change for contexts beyond the original."""

    def scaled(self, frequencies: list[float]) -> list[float]:
        """The new frequencies, in radians a token."""
        raise TypeError(
            f"{self.kind} is a scaling of rotary frequencies that does not say how; give it a method scaled"
        )

    def magnitude(self) -> float:
        """The factor of cos and sin."""
        return 1.0

    def check(self, n_pairs: int) -> None:
        """Raise SpecError for heads of so many rotating pairs, if they cannot be scaled."""

    def fitted(self, n_pairs: int) -> Self:
        """The same scaling for heads of another number of rotating pairs."""
        return self


class ScalingByLength(RotaryScalingSpec, abstract=True):
    """A scaling that goes by the length of the text: the tokens of a document up to the last of the pass.

    What a cache holds was rotated for the lengths of earlier passes and is not rotated again, as everywhere in the field.
    """

    def stretched(self, frequencies: list[float], length: Tensor) -> Tensor:
        """[batch or 1, token or 1, pair] for the length of each token's document [batch or 1, token or 1, 1]."""
        raise TypeError(f"{self.kind} is a scaling by length that does not say how; give it a method stretched")

    def magnitudes(self, length: Tensor) -> Tensor | float:
        """The factor of cos and sin for each length [batch or 1, token or 1, 1]."""
        return self.magnitude()

    def alike(self, lengths: Tensor) -> bool:
        """Whether texts of all these lengths [1, length, 1] are rotated alike; asked of as many pairs as a list may name."""
        frequencies = self.fitted(MOST).stretched([1.0] * MOST, lengths)
        magnitudes = torch.as_tensor(self.magnitudes(lengths)).expand_as(lengths)
        return all(bool((each == each[:, :1]).all()) for each in (frequencies, magnitudes))

    def caveats(self) -> tuple[Caveat, ...]:
        frozen = (
            "keys that a cache holds stay rotated as for the length at which they came, beyond the original context"
        )
        return (Caveat("cache", frozen),)


class LinearScaling(RotaryScalingSpec):
    """Position interpolation: Chen et al. 2023, arXiv:2306.15595."""

    factor: Positive

    def scaled(self, frequencies: list[float]) -> list[float]:
        return [f / self.factor for f in frequencies]


class ProportionalRoPE(RotaryScalingSpec):
    """p-RoPE: this share of the pairs turns, those of the shortest waves, and the others stand still; Barbero et al. 2024,
    arXiv:2410.06205. Unlike a fraction of the features, it leaves each wave as long as if all turned (Gemma 4).
    """

    share: SomeShare = 0.25

    def check(self, n_pairs: int) -> None:
        self.require("share", int(self.share * n_pairs) > 0, f"of {n_pairs} pairs leaves none that turns; raise it")

    def scaled(self, frequencies: list[float]) -> list[float]:
        n = int(self.share * len(frequencies))
        return [f if i < n else 0.0 for i, f in enumerate(frequencies)]

    def fitted(self, n_pairs: int) -> Self:
        """The same share, or that of one pair."""
        return self if int(self.share * n_pairs) else self.but(share=1 / n_pairs)


class Llama3Scaling(RotaryScalingSpec):
    """Long waves are stretched, short ones kept, those between blended: Grattafiori et al. 2024, arXiv:2407.21783."""

    factor: Positive
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0
    original_context: Length = Length(8192)

    def scaled(self, frequencies: list[float]) -> list[float]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = [self.original_context * f / (2 * math.pi) for f in frequencies]
        kept = [(n - low) / (high - low) if high != low else float(n >= low) for n in turns]  # equal: none are blended
        shares = [min(max(share, 0.0), 1.0) for share in kept]
        return [s * f + (1 - s) * f / self.factor for s, f in zip(shares, frequencies, strict=True)]


def sharpening(factor: float, share: float = 1.0) -> float:
    """YaRN's 0.1 · share · ln(factor) + 1, by which cos and sin grow (Peng et al. 2023, equation 22); 1 up to factor 1.

    DeepSeek calls the share mscale, and multiplies attention's scale by the square instead (mscale_all_dim).
    """
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


class YaRN(RotaryScalingSpec):
    """Waves of few turns within the original context are stretched, others kept: Peng et al. 2023, arXiv:2309.00071."""

    factor: Positive
    original_context: Length = Length(4096)
    beta_fast: Positive = 32.0  # turns within the original context from which on a wave is kept
    beta_slow: Positive = 1.0  # … up to which it is stretched in full
    truncate: bool = True  # the ramp between starts and ends at whole pairs
    attention_factor: Positive | None = None  # of cos and sin; None: sharpening(factor)

    def __post_init__(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise self.refusal("beta_fast", f"must be at least beta_slow = {self.beta_slow}")

    def check(self, n_pairs: int) -> None:
        if n_pairs < 2:
            raise self.refusal("factor", "needs heads with more than one rotating pair, to tell long waves from short")

    def scaled(self, frequencies: list[float]) -> list[float]:
        n = len(frequencies)
        step = -math.log(frequencies[1] / frequencies[0])  # of the logarithm of the frequency, from pair to pair
        turns = (self.beta_fast, self.beta_slow)
        low, high = (math.log(self.original_context / (2 * math.pi * turn)) / step for turn in turns)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * n - 1)
        if low == high:
            high += 0.001
        ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(n)]
        return [f / self.factor * r + f * (1 - r) for f, r in zip(frequencies, ramp, strict=True)]

    def magnitude(self) -> float:
        return sharpening(self.factor) if self.attention_factor is None else self.attention_factor


class LongRoPE(ScalingByLength):
    """A divisor for each pair, one list up to the original context and one beyond: Ding et al. 2024, arXiv:2402.13753."""

    short: tuple[Positive, ...]
    long: tuple[Positive, ...]
    factor: Positive  # the new context as a multiple of the original
    original_context: Length = Length(4096)
    # of cos and sin up to the original context; None: √(1 + ln factor / ln original)
    magnitude_short: Positive | None = None
    magnitude_long: Positive | None = None  # … beyond

    def __post_init__(self) -> None:
        if len(self.short) != len(self.long):
            raise self.refusal("long", f"must be a list as long as short, which has {len(self.short)} numbers")
        self.require("original_context", self.original_context >= 2, "must be at least 2 tokens")

    def caveats(self) -> tuple[Caveat, ...]:
        """That of scalings by length, if the length decides anything: MiniCPM3's lists are one."""
        alike = self.short == self.long and self.magnitude_short == self.magnitude_long
        return () if alike else super().caveats()

    def check(self, n_pairs: int) -> None:
        if n_pairs != len(self.short):
            raise self.refusal("short", f"must be {n_pairs} numbers, one for each pair of features that rotates")

    def stretched(self, frequencies: list[float], length: Tensor) -> Tensor:
        short, long = (
            constant([f / by for f, by in zip(frequencies, each, strict=True)], length)
            for each in (self.short, self.long)
        )
        return torch.where(length > self.original_context, long, short)

    def magnitude(self) -> float:
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context)) if self.factor > 1 else 1.0

    def magnitudes(self, length: Tensor) -> Tensor | float:
        given = (self.magnitude_short, self.magnitude_long)
        short, long = (self.magnitude() if each is None else each for each in given)
        if short == long:
            return short
        return torch.where(length > self.original_context, long, short)

    def fitted(self, n_pairs: int) -> Self:
        """The lists read at n_pairs even steps."""
        if n_pairs == len(self.short):
            return self
        at = [i * len(self.short) // n_pairs for i in range(n_pairs)]
        return self.but(short=tuple(self.short[i] for i in at), long=tuple(self.long[i] for i in at))


class DynamicNTK(ScalingByLength):
    """Theta grows with the text beyond the original context, longest waves most (bloc97 and emozilla 2023).

    theta' = theta · (factor · length / original - (factor - 1))^(r / (r - 2)), r the features that rotate.
    """

    factor: Positive
    original_context: Length = Length(2048)

    def check(self, n_pairs: int) -> None:
        self.require("factor", n_pairs >= 2, "needs heads with more than one rotating pair: one alone has no theta")

    def stretched(self, frequencies: list[float], length: Tensor) -> Tensor:
        n = len(frequencies)
        growth = (self.factor * length.clamp(min=self.original_context) / self.original_context) - (self.factor - 1)
        exponents = torch.arange(n, device=length.device) / (1 - n)  # -2i/r of theta', times r / (r - 2)
        return constant(frequencies, length) * growth**exponents
