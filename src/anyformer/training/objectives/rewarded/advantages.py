"""What each way to learn from rewards makes of a group's: how much a token of each answer counts."""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor

from anyformer.training.objectives.rewarded import DAPO, GRPO, RLOO, DrGRPO, RewardedSpec

LEAST = 1e-4  # is added to a deviation, which is 0 where all answers are worth the same


@singledispatch
def advantages(way: RewardedSpec, rewards: Tensor, tokens: Tensor) -> Tensor:
    """By what -log p of each token counts [prompt, answer], of what answers are worth and how many tokens they have.

    Both are [prompt, answer]; the loss of an answer is the sum over its tokens.
    """
    raise TypeError(
        f"{way.kind} makes nothing of rewards; register a function (anyformer.training.objectives.rewarded)"
    )


@advantages.register
def _(way: GRPO, rewards: Tensor, tokens: Tensor) -> Tensor:
    return _of_deviation(rewards) / tokens


@advantages.register
def _(way: DAPO, rewards: Tensor, tokens: Tensor) -> Tensor:
    return _of_deviation(rewards) / tokens.mean(1, keepdim=True)


@advantages.register
def _(way: DrGRPO, rewards: Tensor, tokens: Tensor) -> Tensor:
    return _beyond_mean(rewards) / way.max_new_tokens


@advantages.register
def _(way: RLOO, rewards: Tensor, tokens: Tensor) -> Tensor:
    n = rewards.shape[1]
    return _beyond_mean(rewards) * n / (n - 1)  # beyond the mean of the others


def _of_deviation(rewards: Tensor) -> Tensor:
    return _beyond_mean(rewards) / (rewards.std(1, keepdim=True) + LEAST)


def _beyond_mean(rewards: Tensor) -> Tensor:
    return rewards - rewards.mean(1, keepdim=True)
