"""A mixture of experts token by token, in Python's own lists: slow, and written from the papers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Choice = list[tuple[int, Tensor]]  # (expert, weight), best first


def softmax_of(scores: list[Tensor]) -> list[Tensor]:
    total = sum(score.exp() for score in scores)
    return [score.exp() / total for score in scores]  # type: ignore[operator]


def best(scores: list[float], n: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:n]


def chosen_by(
    logits: list[Tensor],
    *,
    score: str,
    top_k: int,
    correction: list[float] | None = None,
    corrects: str = "scores",
    n_groups: int = 1,
    top_groups: int = 1,
    group_score: str = "max",
    renormalise: bool = False,
    eps: float = 0.0,
    factor: float = 1.0,
    tolerance: float = 0.01,
) -> Choice:
    """Return the experts of one token with their weights."""
    if score == "sparsemixer":
        return sparsemixer(logits, top_k, tolerance)
    if score == "softmax":
        scores = softmax_of(logits)
    else:
        scores = [1 / (1 + (-logit).exp()) for logit in logits] if score == "sigmoid" else logits
    compared = logits if corrects == "logits" else scores
    ranked = [s.item() + (correction[i] if correction else 0.0) for i, s in enumerate(compared)]
    size = len(ranked) // n_groups
    if top_groups < n_groups:
        groups = [ranked[g * size : (g + 1) * size] for g in range(n_groups)]
        of_group = [max(g) if group_score == "max" else sum(sorted(g)[-2:]) for g in groups]
        open_groups = best(of_group, top_groups)
        ranked = [s if i // size in open_groups else -math.inf for i, s in enumerate(ranked)]
    experts = best(ranked, top_k)
    weights = [scores[i] for i in experts]
    if score == "softmax-of-chosen":
        weights = softmax_of(weights)
    if renormalise:
        total: Any = sum(weights)
        weights = [w / (total + eps) for w in weights]
    return [(i, w * factor) for i, w in zip(experts, weights, strict=True)]


def sparsemixer(logits: list[Tensor], top_k: int, tolerance: float) -> Choice:
    """Algorithm 1 of arXiv:2409.12136 without sampling, the masks as in the released model."""
    taken: list[int] = []
    found: Choice = []
    for _ in range(top_k):
        left = [i for i in range(len(logits)) if i not in taken]
        top = max(left, key=lambda i: logits[i].item())
        peak = logits[top].item()
        near = [i for i in left if (peak - logits[i].item()) / max(abs(logits[i].item()), peak) <= 2 * tolerance]
        found.append((top, softmax_of([logits[i] for i in near])[near.index(top)]))
        taken.append(top)
    return found


def mixture(
    x: Tensor,
    router: Callable[[Tensor], list[Tensor]],
    expert: Callable[[int, Tensor], Tensor],
    places: Callable[[int], int | None],
    real: list[list[bool]] | None = None,
    weighs: str = "output",
    **options: Any,
) -> Tensor:
    """Return the sum over the chosen experts for x [batch, token, d_model]; each takes its `places` tokens of a row."""
    rows = []
    for b, sequence in enumerate(x):
        taken: dict[int, int] = {}
        for t, token in enumerate(sequence):
            total = torch.zeros_like(token)
            for i, weight in chosen_by(router(token), **options):
                if real is None or real[b][t]:
                    taken[i] = taken.get(i, 0) + 1
                if (most := places(i)) is None or taken.get(i, 0) <= most:
                    total = total + (expert(i, weight * token) if weighs == "input" else weight * expert(i, token))
            rows.append(total)
    return torch.stack(rows).view_as(x)
