"""Merging number by number, in plain loops: the mean (arXiv:2203.05482), slerp (Shoemake 1985), task arithmetic
(arXiv:2212.04089), TIES (arXiv:2306.01708, algorithm 1, tensor by tensor and with weights)."""

from __future__ import annotations

import math
from collections.abc import Sequence

Numbers = Sequence[float]


def mean(models: Sequence[Numbers], weights: Numbers) -> list[float]:
    made = []
    for at in range(len(models[0])):
        total = 0.0
        for model, weight in zip(models, weights, strict=True):
            total += weight * model[at]
        made.append(total / sum(weights))
    return made


def slerp(models: Sequence[Numbers], weights: Numbers) -> list[float]:
    a, b = models
    t = weights[1] / (weights[0] + weights[1])
    product = sum(x * y for x, y in zip(a, b, strict=True))
    angle = math.acos(product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b)))
    left, right = math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
    return [left * x + right * y for x, y in zip(a, b, strict=True)]


def task_arithmetic(models: Sequence[Numbers], weights: Numbers, base: Numbers) -> list[float]:
    made = []
    for at, start in enumerate(base):
        number = start
        for model, weight in zip(models, weights, strict=True):
            number += weight * (model[at] - start)
        made.append(number)
    return made


def ties(models: Sequence[Numbers], weights: Numbers, base: Numbers, density: float, scale: float) -> list[float]:
    trimmed = []
    for model, weight in zip(models, weights, strict=True):
        change = [number - start for number, start in zip(model, base, strict=True)]
        order = sorted(range(len(change)), key=lambda at: -abs(change[at]))
        stays = set(order[: max(1, int(density * len(change)))])
        trimmed.append([weight * number if at in stays else 0.0 for at, number in enumerate(change)])
    made = []
    for at, start in enumerate(base):
        total = sum(change[at] for change in trimmed)
        agreeing, count = 0.0, 0.0
        for change, weight in zip(trimmed, weights, strict=True):
            if change[at] * total > 0:
                agreeing += change[at]
                count += abs(weight)
        made.append(start + (scale * agreeing / count if count else 0.0))
    return made
