"""Bytes of activations that training holds until the backward pass, by part: those that a pass was seen to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from anyformer.errors import SpecError, unknown
from anyformer.layers.context import Dropout
from anyformer.observation.passes import DeviceKind, training_pass
from anyformer.recipe import DropoutSpec, Precision
from anyformer.spec import Architecture, Recompute, specification

NO_DROPOUT = DropoutSpec()


@dataclass(frozen=True)
class Activations:
    """Bytes by part. `saved` stays from the forward to the backward pass; `passing` is there for a while, at the worst time."""

    saved: Mapping[str, int]
    passing: Mapping[str, int]

    @property
    def saved_nbytes(self) -> int:
        """What the forward pass leaves."""
        return sum(self.saved.values())

    @property
    def nbytes(self) -> int:
        """At the peak: what stays, and the largest of what passes."""
        return self.saved_nbytes + max(self.passing.values(), default=0)


def activations(
    architecture: Architecture,
    *,
    batch: int,
    seq_len: int,
    source_len: int | None = None,
    precision: Precision = "bf16",
    recompute: Recompute = "none",
    device: DeviceKind = "cuda",
    dropout: DropoutSpec = NO_DROPOUT,
) -> Activations:
    """What one forward pass over `batch` rows of `seq_len` tokens, each one document, holds of training with `train`.

    bf16 is autocast's: the stream stays float32, products are of copies in bf16, of weights too. `source_len` is the
    encoder's length (None: as the decoder's). `device`: a GPU's fused dropout and attention, or what CPUs keep.
    Raises SpecError for names that are not known.
    """
    spec = specification(architecture)
    for name, value, known in (
        ("precision", precision, get_args(Precision)),
        ("recompute", recompute, get_args(Recompute)),
        ("device", device, get_args(DeviceKind)),
    ):
        if value not in known:
            raise SpecError(unknown(name, value, known))
    seen = training_pass(
        spec,
        batch=batch,
        seq_len=seq_len,
        source_len=source_len or seq_len if spec.encoder else 0,
        half=precision == "bf16",
        recompute=recompute,
        device=device,
        dropout=Dropout(**dropout.values()) if any(dropout.values().values()) else None,
    )
    kept = dict(seen.kept)
    return Activations(kept, {seen.peak_part: seen.peak - sum(kept.values())})
