"""Answers, given what was asked: what makes a model that continues texts one that follows instructions and converses."""

from __future__ import annotations

from typing import ClassVar, Literal

from anyformer.spec import Positive
from anyformer.training.objectives.specification import Examples, Reads


class SFT(Examples):
    """Supervised fine-tuning: the next token of answers alone, given what was said before them.

    Instruction tuning: arXiv:2109.01652; of answers that people wrote: InstructGPT, arXiv:2203.02155, section 3.5. A
    conversation is read as the tokenizer's chat template writes it, a prompt and its completion as they stand.
    """

    reads: ClassVar[Reads] = "conversations"


class DPO(Examples):
    """Direct preference optimisation: of two answers the one that people prefer is to become likelier, beside what it was.

    -log sigmoid(beta (log p(chosen) / p_0(chosen) - log p(rejected) / p_0(rejected))), p_0 being the model that the run
    begins with: arXiv:2305.18290, equation 7. Answers are laid out as for SFT.
    """

    beta: Positive = 0.1  # how dear it is to leave p_0; the paper's, section 6

    reads: ClassVar[Reads] = "preferences"
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "chance"
    guess: ClassVar[str] = "an even guess"
    unit: ClassVar[str] = "nats a pair"
    predicts: ClassVar[str] = "pair"
