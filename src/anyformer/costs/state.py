"""Bytes of a model beside its activations: in training weights, gradients and optimiser, in decoding the key/value cache.

Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anyformer.errors import SpecError, unknown


@dataclass(frozen=True)
class Layout:
    """Bytes of one parameter on one device, unsharded."""

    weight: int
    gradient: int
    master: int  # a float32 copy that the optimiser updates
    source: str


# What `train` does is float32 and bf16: autocast computes products in bf16, all that is kept is float32.
LAYOUTS: Mapping[str, Layout] = {
    "float32": Layout(4, 4, 0, "all in float32"),
    "bf16": Layout(4, 4, 0, "products in bf16 by autocast; weights, gradients and moments in float32"),
    "mixed": Layout(2, 2, 4, "Rajbhandari et al. 2019, section 3.1: 16-bit weights and gradients, a float32 copy"),
    "mixed-main-grads": Layout(2, 4, 4, "Megatron-LM: as mixed, gradients added up in float32"),
}
MOMENTS = 8  # bytes of a parameter's moments: AdamW's two, in float32


@dataclass(frozen=True)
class StateBytes:
    """On each device."""

    weights: int
    gradients: int
    optimizer: int  # moments, and the float32 copy where weights are of 16 bits

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def state_nbytes(n_params: int, *, precision: str = "float32", shards: int = 1, stage: int = 0) -> StateBytes:
    """The bytes on one of `shards` devices that share the state of `n_params` parameters trained by AdamW.

    `stage` is ZeRO's: 1 shares the optimiser, 2 gradients too, 3 weights too. Megatron's distributed optimiser,
    6 + 12 / shards bytes a parameter, is "mixed-main-grads" at stage 1. Raises SpecError for what is not known.
    """
    if precision not in LAYOUTS:
        raise SpecError(unknown("precision", precision, LAYOUTS))
    if stage not in range(4):
        known = "1 shards the optimiser, 2 the optimiser and gradients, 3 all"
        raise SpecError(f"stage = {stage!r} is none of ZeRO's; it is 0 to 3: {known}")
    if shards < 1 or n_params < 0:
        raise SpecError(f"shards = {shards} must be at least 1, and n_params = {n_params} at least 0")
    layout = LAYOUTS[precision]

    def each(nbytes: int, sharded_from: int) -> int:
        return nbytes * (-(-n_params // shards) if stage >= sharded_from else n_params)

    return StateBytes(
        weights=each(layout.weight, 3),
        gradients=each(layout.gradient, 2),
        optimizer=each(layout.master + MOMENTS, 1),
    )
