"""Answers, given what was asked: what makes a model that continues texts one that follows instructions and converses."""

from __future__ import annotations

from typing import ClassVar, Literal

from anyformer.spec import NotNegative, Positive
from anyformer.training.objectives.specification import Examples, Reads

CHOSEN = "chosen"  # the part of the losses that is of the tokens of preferred answers
MARGIN = "margin"  # the part of the losses that is no loss: by how much the preferred answer's reward is the higher one


class SFT(Examples):
    """Supervised fine-tuning: the next token of answers alone, given what was said before them.

    Instruction tuning: arXiv:2109.01652; of answers that people wrote: InstructGPT, arXiv:2203.02155, section 3.5. A
    conversation is read as the tokenizer's chat template writes it, a prompt and its completion as they stand.
    """

    reads: ClassVar[Reads] = "conversations"


class ComparedAnswers(Examples, abstract=True):
    """Of two answers people prefer one. Answers are laid out as for SFT.

    What is reported is -log sigmoid of the difference of the two answers' rewards, as the way to learn has them.
    """

    has_reference: ClassVar[bool] = False  # answers are looked at beside what the model said of them before the run

    reads: ClassVar[Reads] = "preferences"
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "chance"
    guess: ClassVar[str] = "an even guess"
    unit: ClassVar[str] = "nats a pair"
    predicts: ClassVar[str] = "pair"


class PreferenceSpec(ComparedAnswers, abstract=True):
    """The answer that people prefer is to become likelier than the other."""


class DPO(PreferenceSpec):
    """Direct preference optimisation: -log sigmoid(beta (log p(chosen) / p_0(chosen) - log p(rejected) / p_0(rejected))).

    p_0 is the model that the run begins with: arXiv:2305.18290, equation 7.
    """

    beta: Positive = 0.1  # how dear it is to leave p_0; the paper's, section 6

    has_reference: ClassVar[bool] = True


class IPO(PreferenceSpec):
    """Identity preference optimisation: the logarithms' difference in DPO is to be 1 / (2 tau), and not to grow without end.

    (log p(chosen) / p_0(chosen) - log p(rejected) / p_0(rejected) - 1 / (2 tau))²: arXiv:2310.12036, equation 17.
    """

    tau: Positive = 0.1  # how dear it is to leave p_0

    has_reference: ClassVar[bool] = True


class SimPO(PreferenceSpec):
    """Simple preference optimisation: -log sigmoid(beta (mean log p(chosen) - mean log p(rejected)) - gamma), means over tokens.

    arXiv:2405.14734, equation 6. No other model stands beside, so that nothing but the rate keeps it near where it began.
    """

    beta: Positive = 2.0
    gamma: NotNegative = 1.0  # by how much the rewards are to differ


class ORPO(PreferenceSpec):
    """Odds ratio preference optimisation: the chosen answer is learnt, and its odds beside those of the rejected one.

    -mean log p(chosen) - weight log sigmoid(log odds(chosen) - log odds(rejected)), means over tokens, odds of exp of the mean:
    arXiv:2403.07691, equations 3 to 7. It is made for models that were not yet taught to answer.
    """

    weight: Positive = 0.1
