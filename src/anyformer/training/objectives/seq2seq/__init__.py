"""Sequence to sequence with teacher forcing: each token of the target from the source and the true tokens before it."""

from __future__ import annotations

from typing import ClassVar

from anyformer.training.objectives.specification import ObjectiveSpec, Reads


class Seq2Seq(ObjectiveSpec):
    """The next token of the translation, given the source and the true tokens before it (teacher forcing)."""

    reads: ClassVar[Reads] = "pairs"
