"""Ways in which the tensors of one name of several models become one: their mean, and what is known of models that were trained
on from one. Each is a formula on the tensors of one name, so that no model is ever held."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, UsageError, among
from anyformer.hub.weights import narrowed
from anyformer.spec import Positive, SomeShare, Spec, decode
from anyformer.spec.phrase import parse

PARALLEL = 1e-4  # the sine of an angle; below it an arc and its chord differ by less than float32 tells


class Merge(Spec, abstract=True):
    """A way of merging."""

    def check(self, weights: Sequence[float], base: bool) -> None:
        """Raise UsageError for models that cannot be merged so: by their weights, or with or without a base."""
        if base:
            raise UsageError("--base is of --by task-arithmetic, ties and dare; give one of them, or leave --base out")

    def merged(self, name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The tensor that those of the models become, each with its weight; the base's stands behind them, where there is one."""
        raise TypeError(f"{self.kind} is a way of merging without a formula; give it one")


class Mean(Merge):
    """Σ wᵢ Wᵢ / Σ wᵢ, added up in float64 (Vaswani et al. 2017, section 6.1; soups: Wortsman et al. 2022, arXiv:2203.05482)."""

    def check(self, weights: Sequence[float], base: bool) -> None:
        super().check(weights, base)
        if abs(math.fsum(weights)) <= 1e-9 * max(map(abs, weights)):
            raise UsageError("--with: the weights add up to 0, and a mean is divided by their sum; give others")

    def merged(self, name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return _sum(weights, (each.double() for each in tensors)) / math.fsum(weights)


class Slerp(Merge):
    """The point at t = w_b / (w_a + w_b) of the arc from a to b: (sin((1 - t) Ω) a + sin(t Ω) b) / sin Ω, Ω the angle between
    the two tensors as vectors (Shoemake 1985, section 3.3, of quaternions).

    On the chord, (1 - t) a + t b, where there is no one arc: between vectors that are parallel, or of which one is 0.
    """

    def check(self, weights: Sequence[float], base: bool) -> None:
        super().check(weights, base)
        if len(weights) != 2 or min(weights) < 0:
            raise UsageError("--by slerp: an arc has two models as its ends; give one --with, and no weight below 0")

    def merged(self, name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        a, b = (each.double() for each in tensors)
        t = weights[1] / math.fsum(weights)
        lengths = float(a.norm() * b.norm())
        angle = math.acos(max(-1.0, min(1.0, float((a * b).sum()) / lengths))) if lengths > 0 else 0.0
        if math.sin(angle) < PARALLEL:
            return (1 - t) * a + t * b
        return (math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle)


class OnBase(Merge, abstract=True):
    """A way that merges what models changed of the one that all began as, W + f(W₁ - W, W₂ - W, …), in float32."""

    def check(self, weights: Sequence[float], base: bool) -> None:
        if not base:
            raise UsageError("task-arithmetic, ties and dare merge what models changed of one; name that by --base")

    def merged(self, name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        *models, base = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors)
        return base + self.change(name, [each - base for each in models], weights)

    def change(self, name: str, changes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The change that those of the models become, each with its weight."""
        raise TypeError(f"{self.kind} is a way of merging without a formula; give it one")


class TaskArithmetic(OnBase):
    """W + Σ wᵢ (Wᵢ - W): what models learnt is added up, or taken away by weights below 0 (Ilharco et al. 2022,
    arXiv:2212.04089)."""

    def change(self, name: str, changes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return _sum(weights, changes)


class TIES(OnBase):
    """W + scale · the mean of those changes that agree (Yadav et al. 2023, arXiv:2306.01708, algorithm 1).

    Of each tensor's change the share `density` stays that is largest. A number's sign is that of the sum of what stayed, and
    the changes of this sign have their mean there; where they cancel, nothing changes. Sum and mean count each change by
    its weight, and one below 0 turns it round. The paper has no weights, and trims the changes of all tensors at once, for
    which they would have to be held.
    """

    density: SomeShare = 0.2
    scale: Positive = 1.0

    def change(self, name: str, changes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        trimmed = (_largest(each, self.density) for each in changes)
        kept = torch.stack([weight * each for weight, each in zip(weights, trimmed, strict=True)])
        agree = kept.sign() == kept.sum(0).sign()
        n = _sum([abs(weight) for weight in weights], agree.to(kept.dtype))
        return self.scale * (kept * agree).sum(0) / n.where(n > 0, 1)


class DARE(OnBase):
    """W + Σ wᵢ mᵢ (Wᵢ - W) / density: of each change the share `density` stays, drawn at random (mᵢ is 0 or 1), and is scaled up
    by what was dropped (Yu et al. 2023, arXiv:2311.03099, section 3.2). The draws go by seed, model and tensor alone."""

    density: SomeShare = 0.5
    seed: int = 0

    def change(self, name: str, changes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return _sum(weights, (self._dropped(each, f"{i}:{name}") for i, each in enumerate(changes)))

    def _dropped(self, change: Tensor, what: str) -> Tensor:
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}:{what}".encode()).digest()[:8], "big")
        stays = torch.rand(change.shape, generator=torch.Generator().manual_seed(seed)) < self.density
        return change * stays / self.density


WAYS = {"mean": Mean, "slerp": Slerp, "task-arithmetic": TaskArithmetic, "ties": TIES, "dare": DARE}


class Merging(NamedTuple):
    """How models become one: the way, and each model's weight, in their order."""

    way: Merge
    weights: tuple[float, ...]
    dtype: torch.dtype | None = None  # of what is made; None: that which holds all that it is made of

    def of(self, name: str, tensors: Sequence[Tensor]) -> Tensor:
        """The tensor that those of one name become, rounded once. Raises CheckpointError for whole numbers that differ."""
        first, *others = tensors
        if not first.is_floating_point():
            if not all(torch.equal(first, each) for each in others):
                raise CheckpointError(f"{name} holds whole numbers that differ between the models: no way merges these")
            return first
        made = self.way.merged(name, tensors, self.weights)
        return narrowed(name, made, self.dtype or reduce(torch.promote_types, (each.dtype for each in tensors)))


def way_of(text: str) -> Merge:
    """The way that "ties,density=0.2" says; what is left out is as by default. Raises UsageError, SpecError."""
    word, _, options = text.partition(",")
    if word not in WAYS:
        raise UsageError(f"--by {text}: {word!r} is no way to merge{among(word, WAYS)}")
    return decode(parse(f"{WAYS[word].kind}({options})"), Merge, "--by")


def _sum(weights: Sequence[float], tensors: Iterable[Tensor]) -> Tensor:
    """Σ wᵢ tᵢ, of which one is there at a time, where they are made one by one."""
    return reduce(torch.add, (weight * each for weight, each in zip(weights, tensors, strict=True)))


def _largest(change: Tensor, density: float) -> Tensor:
    """The change, 0 where it is less than the last of the share `density` that is largest; what is no number stays none."""
    size = change.abs()
    least = size.flatten().kthvalue(size.numel() - max(1, int(density * size.numel())) + 1).values
    return change.where(~(size < least), 0)
