"""YaRN: long waves stretched, short ones kept, attention sharpened. Peng et al. 2023, arXiv:2309.00071."""

from __future__ import annotations

import math

from anyformer.layers import RotaryScalingSpec
from anyformer.spec import Length


class StretchedByParts(RotaryScalingSpec):
    """A user's own scaling of rotary frequencies, complete."""

    factor: float
    original_context: Length = Length(4096)
    fast: float = 32.0  # turns within the original context above which a wave is kept
    slow: float = 1.0  # … below which it is stretched
    whole: bool = True  # the ramp starts and ends at whole pairs
    sharpen: float | None = None  # of cos and sin; None: 0.1 ln(factor) + 1

    def scaled(self, frequencies: list[float]) -> list[float]:
        step = -math.log(frequencies[1])  # of the logarithm of the frequency, from pair to pair
        low, high = (math.log(self.original_context / (2 * math.pi * turns)) / step for turns in (self.fast, self.slow))
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(frequencies) - 1)
        ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(frequencies))]
        return [f / self.factor * r + f * (1 - r) for f, r in zip(frequencies, ramp, strict=True)]

    def magnitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.sharpen is None else self.sharpen
