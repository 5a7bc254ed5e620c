"""Answers that the model writes itself while it learns, and what each is worth: reinforcement learning by rules.

An answer is learnt from once, by the weights that drew it: the ratio of old and new probabilities, which several updates of one
answer would have to clip, is 1.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from anyformer.spec import Few, Range
from anyformer.training.objectives.rewarded.rewards import Equal, RewardSpec
from anyformer.training.objectives.specification import ObjectiveSpec, Reads

REWARD = "reward"  # the part of the losses that is no loss: what answers are worth
LENGTH = "length"  # the same: tokens of an answer
ENDED = "ended"  # the share of answers that ended by themselves, before the most tokens that one may have


class RewardedSpec(ObjectiveSpec, abstract=True):
    """To each prompt a group of answers is drawn, and those that are worth more than the others become likelier.

    Answers are drawn from the model as it is: no temperature, and no choice among likely tokens alone, would have this gradient.
    What is reported is what the reward lacks of the highest one, of one answer.
    """

    rewards: tuple[RewardSpec, ...] = (Equal(),)
    group: Annotated[int, Range(2, 2**16)] = 8  # answers to a prompt
    max_new_tokens: Few = 128  # of an answer

    reads: ClassVar[Reads] = "prompts"
    whole: ClassVar[bool] = False
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "chance"
    guess: ClassVar[str] = "no reward"
    unit: ClassVar[str] = "short of the highest reward"
    predicts: ClassVar[str] = "answer"
    in_nats: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require("rewards", bool(self.rewards), "says nothing; give one rule at least")

    @property
    def highest(self) -> float:
        """What an answer is worth by which every rule is kept."""
        return sum(reward.weight for reward in self.rewards)


class GRPO(RewardedSpec):
    """Group relative policy optimisation: a token counts by (reward - mean) / deviation of its group, over the answer's length.

    DeepSeekMath: arXiv:2402.03300, equation 3 and section 4.1.2. The divergence from a reference is that from a teacher, where
    the run has one; without, it is left out, as in DAPO (arXiv:2503.14476, section 2.3).
    """


class DrGRPO(RewardedSpec):
    """GRPO done right: by reward - mean alone, over the most tokens of an answer, so that neither ease nor length is favoured.

    arXiv:2503.20783, section 3.1.
    """


class RLOO(RewardedSpec):
    """REINFORCE, leave one out: by the reward less the mean of the others of its group, over nothing.

    arXiv:2402.14740, section 3.3.
    """
