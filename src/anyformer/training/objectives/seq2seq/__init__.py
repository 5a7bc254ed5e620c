"""Sequence to sequence with teacher forcing: each token of the target from the source and the true tokens before it."""

from __future__ import annotations

from typing import ClassVar

from anyformer.training.objectives.specification import ObjectiveSpec, Reads


class Seq2Seq(ObjectiveSpec):
    """The next token of the translation, given the source and the true tokens before it (teacher forcing).

    The languages are special tokens by their spelling: one where the tokenizer's rules put a language beside a source, or before
    it, one that every target begins with. A tokenizer that is trained on the way gets them.
    """

    reads: ClassVar[Reads] = "pairs"

    source_language: str | None = None
    target_language: str | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        """The tokens that a new vocabulary has for them."""
        return tuple(dict.fromkeys(each for each in (self.source_language, self.target_language) if each is not None))
