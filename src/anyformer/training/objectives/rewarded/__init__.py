"""Answers that the model writes itself while it learns, and what each is worth: reinforcement learning by rules."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from anyformer.errors import SpecError, UsageError, among
from anyformer.spec import Few, Passage, Positive, Range, SomeShare, Spec
from anyformer.training.objectives.specification import ObjectiveSpec, Reads

REWARD = "reward"  # the part of the losses that is no loss: what answers are worth
LENGTH = "length"  # the same: tokens of an answer
ENDED = "ended"  # the share of answers that ended by themselves, before the most tokens that one may have

_NUMBER = re.compile(r"-?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)")
_BOXED = r"\boxed{"


class RewardSpec(Spec, abstract=True):
    """What says what an answer is worth, from 0 to 1; that much counts `weight` times."""

    weight: Positive = 1.0


class Judge(RewardSpec):
    """A reward model's number r: the probability that the answer is preferred to one of the number `beside`, sigmoid(r - beside).

    As of Bradley & Terry's model, by which it was trained. An end at 1 keeps what the judge is wrong about from being driven
    on and on: arXiv:2502.18770, section 3.
    """

    model: str  # the directory of its weights
    beside: float = 0.0


class RewardRule(RewardSpec, abstract=True):
    """A rule by which an answer is worth something."""

    @abstractmethod
    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        """What an answer is worth to a prompt whose line of the file says this beside it."""

    def lacks(self, line: Mapping[str, Any]) -> str | None:
        """Why no answer can be judged by what a line says; None: it can."""
        return None


class AgainstAnswer(RewardRule, abstract=True):
    """A rule that knows the right answer: what a line says by the name of `field`."""

    field: str = "answer"

    def lacks(self, line: Mapping[str, Any]) -> str | None:
        said = type(line.get(self.field)) in (str, int, float)
        return None if said else f"has no text or number {self.field!r}"

    def right(self, line: Mapping[str, Any]) -> str:
        """The right answer."""
        return str(line[self.field])


class Equal(AgainstAnswer):
    """The answer is the right one, but for blanks around it."""

    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        return float(answer.strip() == self.right(line).strip())


class Contains(AgainstAnswer):
    """The right answer is said in it, as it is written."""

    def lacks(self, line: Mapping[str, Any]) -> str | None:
        blank = f"has nothing but blanks in {self.field!r}, which any answer has"
        return super().lacks(line) or (None if self.right(line).strip() else blank)

    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        return float(self.right(line).strip() in answer)


class LastNumber(AgainstAnswer):
    """The last number of the answer is the last one of the right one: GSM8K's rule, whose answers end with "#### 42"."""

    def lacks(self, line: Mapping[str, Any]) -> str | None:
        return super().lacks(line) or (None if numbers(self.right(line)) else f"has no number in {self.field!r}")

    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        said = numbers(answer)
        return float(bool(said) and said[-1] == numbers(self.right(line))[-1])


class Boxed(AgainstAnswer):
    r"""What the answer puts last into \\boxed{…} is the right one, or what that puts there, as texts or numbers: MATH's rule."""

    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        said, right = boxed(answer), self.right(line)
        return float(said is not None and _same(said, boxed(right) or right))


class Matches(RewardRule):
    """Somewhere in the answer the pattern, a regular expression, matches: of a form that is wanted, say."""

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise SpecError(f"{self.kind}.pattern = {self.pattern!r} is no regular expression: {error}") from None

    def of(self, answer: str, line: Mapping[str, Any]) -> float:
        return float(re.search(self.pattern, answer, re.DOTALL) is not None)


REWARDS: Mapping[str, RewardSpec] = {
    "equal": Equal(),
    "contains": Contains(),
    "last-number": LastNumber(),
    "boxed": Boxed(),
}
"""Rules that need nothing said, by the names that a command takes."""


class RewardedSpec(ObjectiveSpec, abstract=True):
    """To each prompt a group of answers is drawn, and those that are worth more than the others become likelier.

    Answers are drawn from the model as it is: no temperature, and no choice among likely tokens alone, would have this gradient.
    What is reported is what the reward lacks of the highest one, of one answer.
    """

    rewards: tuple[RewardSpec, ...] = (Equal(),)
    group: Annotated[int, Range(2, 2**16)] = 8  # answers to a prompt
    max_new_tokens: Few = 128  # of an answer
    stop: tuple[Passage, ...] = ()  # texts that end an answer, and are no part of what is judged
    updates: Annotated[int, Range(1, 64)] = 1  # of the weights, by the same answers
    # How far from 1 further updates take the ratio of a token's new and old probability.
    clip_below: SomeShare = 0.2
    clip_above: Positive = 0.2

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


class DAPO(RewardedSpec):
    """GRPO over the tokens of a group's answers together, so that those of long answers count as much; clipped later above.

    arXiv:2503.14476, equations 8 and 9; whose prompts are drawn anew until no group is alike, and whose penalty of long
    answers, are not there.
    """

    clip_above: Positive = 0.28


class DrGRPO(RewardedSpec):
    """GRPO done right: by reward - mean alone, over the most tokens of an answer, so that neither ease nor length is favoured.

    arXiv:2503.20783, section 3.1.
    """


class RLOO(RewardedSpec):
    """REINFORCE, leave one out: by the reward less the mean of the others of its group, over nothing.

    arXiv:2402.14740, section 3.3.
    """


def rewards_of(named: Sequence[str | RewardSpec]) -> tuple[RewardSpec, ...]:
    """Rules by their names, those of one's own by their kinds, a `Judge` by its directory; rewards as they are.

    Raises UsageError, with the nearest name.
    """
    if isinstance(named, str):
        named = (named,)
    kinds = {kind: each for kind, each in Spec.kinds.items() if issubclass(each, RewardSpec) and not each.abstract}
    found = list[RewardSpec]()
    for each in named:
        if isinstance(each, str) and each not in REWARDS and each not in kinds and not Path(each).exists():
            others = "give the directory of a reward model, or import a rule of your own (--import)"
            raise UsageError(f"there is no reward {each!r}{among(each, REWARDS)}; or {others}")
        if isinstance(each, str):
            each = REWARDS.get(each) or (kinds[each]() if each in kinds else Judge(model=each))
        found.append(each)
    return tuple(found)


def numbers(text: str) -> list[Decimal]:
    """The numbers of a text, "1,234.5" as one, in their order."""
    return [Decimal(each.replace(",", "")) for each in _NUMBER.findall(text)]


def boxed(text: str) -> str | None:
    r"""What stands in the last \\boxed{…} of a text whose braces are closed; None: there is none."""
    begins = text.rfind(_BOXED)
    while begins >= 0:
        depth, start = 1, begins + len(_BOXED)
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if not depth:
                return text[start:at]
        begins = text.rfind(_BOXED, 0, begins)
    return None


def _same(one: str, other: str) -> bool:
    one, other = one.strip(), other.strip()
    whole = [_NUMBER.fullmatch(each) for each in (one, other)]
    return numbers(one) == numbers(other) if all(whole) else one == other
