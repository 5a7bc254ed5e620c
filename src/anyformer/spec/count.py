"""How many numbers a specification has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anyformer.spec.has_spec import Architecture, specification
from anyformer.spec.part import PartSpec, Place, Weight, tensors

EMBEDDING_AXES = ("vocab", "position", "segment")  # the first axis of what looks tokens, positions and segments up


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers; shared ones once."""

    total: int
    embedding: int  # tables of tokens, positions and segments, an untied head's table among them
    frozen: int = 0  # held beside them and never trained
    inactive: int = 0  # of the experts that one token does not choose

    @property
    def active(self) -> int:
        """What one token uses: all but the experts that it does not choose; tables count whole (Mixtral's convention)."""
        return self.total - self.inactive

    @property
    def non_embedding(self) -> int:
        """All but the tables."""
        return self.total - self.embedding


def parameters(architecture: PartSpec | Architecture) -> Parameters:
    """The parameters of a model or a part, from the declarations of its weights; nothing is allocated."""
    spec = architecture if isinstance(architecture, PartSpec) else specification(architecture)
    return counted(weight for _, weight in tensors(spec, Place()))


def counted(weights: Iterable[Weight]) -> Parameters:
    """The parameters that these tensors hold."""
    total = embedding = frozen = inactive = 0
    for weight in weights:
        if not weight.trainable:
            frozen += weight.numel
            continue
        total += weight.numel
        if weight.used is not None:
            inactive += weight.numel // weight.shape[0] * (weight.shape[0] - weight.used)
        if weight.role == "table" and weight.axes[0] in EMBEDDING_AXES:
            embedding += weight.numel
    return Parameters(total, embedding, frozen, inactive)
