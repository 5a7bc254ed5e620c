"""Answers, given what was asked: what makes a model that continues texts one that follows instructions and converses."""

from __future__ import annotations

from typing import ClassVar

from anyformer.training.objectives.specification import Examples, Reads


class SFT(Examples):
    """Supervised fine-tuning: the next token of answers alone, given what was said before them.

    Instruction tuning: arXiv:2109.01652; of answers that people wrote: InstructGPT, arXiv:2203.02155, section 3.5. A
    conversation is read as the tokenizer's chat template writes it, a prompt and its completion as they stand.
    """

    reads: ClassVar[Reads] = "conversations"
