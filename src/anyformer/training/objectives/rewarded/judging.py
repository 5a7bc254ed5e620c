"""What answers are worth: by rules, and by reward models, which read all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import NamedTuple

import numpy as np
import torch

from anyformer.errors import RunFailed, UsageError, errors_of
from anyformer.hub import load, load_tokenizer
from anyformer.hub.source import find
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.text.sources import wrong
from anyformer.training.objectives.reward_model.loss import no_score
from anyformer.training.objectives.reward_model.scoring import scored_exchanges
from anyformer.training.objectives.rewarded import Judge, RewardRule, RewardSpec


class WrittenAnswer(NamedTuple):
    """What was written to a prompt."""

    asked: Exchange
    text: str


Worth = Callable[[Sequence[WrittenAnswer]], Sequence[float]]
"""What each of some answers is worth."""


@singledispatch
def check_prompts(reward: RewardSpec, corpus: ExchangeCorpus) -> None:
    """Raise TextError or UsageError where a reward could not judge answers to some prompts."""


@check_prompts.register
def _(rule: RewardRule, corpus: ExchangeCorpus) -> None:
    for row in corpus.rows:
        if reason := rule.lacks(row.facts):
            raise wrong(corpus.where, row.line, f"{rule.kind} judges answers by it, and it {reason}")


@check_prompts.register
def _(judge: Judge, corpus: ExchangeCorpus) -> None:
    with errors_of(f"the judge {judge.model}", UsageError):
        if reason := no_score(find(judge.model).spec):
            raise UsageError(f"{reason}; a reward model is trained by --objective reward-model")
    tokenizer = load_tokenizer(judge.model)
    if tokenizer is None:
        raise UsageError(f"the judge {judge.model} has no tokenizer beside its weights; put its tokenizer.json there")
    talk = next((row.line for row in corpus.rows if not isinstance(row.before, str)), None)
    if talk is not None and tokenizer.chat_template is None:
        reason = f"it asks by messages, and the judge {judge.model} has no chat template to read them by"
        raise wrong(corpus.where, talk, f"{reason}; put a chat_template.jinja there, or give prompts as texts")


@singledispatch
def worth_by(reward: RewardSpec, device: torch.device) -> Worth:
    """What a reward finds answers worth, by models on the device. Raises what `load` does.

    What is found raises RunFailed, which names reward and answer, where it fails or is no number.
    """
    raise TypeError(f"{reward.kind} judges no answers; make it a RewardRule, or register a function for it")


@worth_by.register
def _(rule: RewardRule, device: torch.device) -> Worth:
    def of(each: WrittenAnswer) -> float:
        try:
            return float(rule.of(each.text, each.asked.facts))
        except Exception as error:  # whatever a rule of one's own raises
            said = f"{type(error).__name__}: {error}"
            raise RunFailed(f"the reward {rule.kind} failed on {each.text[:40]!r}: {said}") from error

    return lambda answers: [of(each) for each in answers]


@worth_by.register
def _(judge: Judge, device: torch.device) -> Worth:
    model, tokenizer = load(judge.model, device=device)
    assert tokenizer is not None
    model.requires_grad_(False)

    def of(answers: Sequence[WrittenAnswer]) -> Sequence[float]:
        said = [({"role": "assistant", "content": each.text},) for each in answers]
        rows = [
            each.asked._replace(answers=(each.text if isinstance(each.asked.before, str) else message,))
            for each, message in zip(answers, said, strict=True)
        ]
        scores = scored_exchanges(model, tokenizer, ExchangeCorpus(tuple(rows), f"answers to {judge.model}"))
        return (1 / (1 + np.exp(judge.beside - scores[:, 0].astype(np.float64)))).tolist()

    return of


def judged(worths: Sequence[tuple[RewardSpec, Worth]], answers: Sequence[WrittenAnswer]) -> np.ndarray:
    """What each answer is worth by all rewards together [answer]. Raises RunFailed for what is no number."""
    total = np.zeros(len(answers))
    for reward, worth in worths:
        found = np.array(worth(answers))
        if not np.isfinite(found).all():
            at = int((~np.isfinite(found)).argmax())
            raise RunFailed(f"the reward {reward.kind} is {found[at]} of {answers[at].text[:40]!r}, which is no number")
        total += reward.weight * found
    return total
