"""Learning-rate schedules as data: pieces in sequence, each a pure function of the step."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from anyformer.errors import SpecError
from anyformer.spec import NotNegative, SomeShare, Spec, Whole


class Stretch(Spec, abstract=True):
    """A stretch of a run, as long as `steps`, `tokens` or `share` says; without any, the rest of the run."""

    steps: Whole | None = None
    tokens: Whole | None = None
    share: SomeShare | None = None  # of the run's steps

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "tokens", "share") if getattr(self, name) is not None]
        if len(given) > 1:
            raise self.refusal(given[1], f"and {given[0]} both say how long the piece is; give one of them")

    def length(self, run_steps: int, batch_tokens: int) -> int | None:
        """Its length in steps; None: whatever the other pieces leave."""
        if self.tokens is not None:
            return max(1, round(self.tokens / batch_tokens))
        return self.steps if self.share is None else round(self.share * run_steps)


class PieceSpec(Stretch, abstract=True):
    """A stretch of a schedule."""

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        """The learning rate as a factor of its peak at step `at` of 1 … n.

        `level` is the factor at the end of the piece before, `before` how many steps of the run came before this piece.
        """
        raise TypeError(f"{self.kind} is a piece of a schedule without a factor; give it one")


class Warmup(PieceSpec):
    """From `start` to the peak in equal steps; the last of them runs at the peak."""

    start: NotNegative = 0.0

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        return self.start + (1 - self.start) * at / n


class Constant(PieceSpec):
    """As it was."""

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        return level


class CosineDecay(PieceSpec):
    """Half a cosine down to `to` (a factor of the peak): Loshchilov & Hutter 2016, arXiv:1608.03983, equation 5."""

    to: NotNegative = 0.1

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        return self.to + (level - self.to) * (1 + math.cos(math.pi * at / n)) / 2


class LinearDecay(PieceSpec):
    """A straight line to `to` (a factor of the peak)."""

    to: NotNegative = 0.0

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        return level + (self.to - level) * at / n


class InverseSqrtDecay(PieceSpec):
    """Falls as 1/√step, counted from the start of the run: Vaswani et al. 2017, arXiv:1706.03762, section 5.3."""

    def factor(self, at: int, n: int, level: float, before: int) -> float:
        return level * math.sqrt(max(before, 1) / (before + at))


def lengths(pieces: tuple[Stretch, ...], run_steps: int, batch_tokens: int, what: str = "schedule") -> tuple[int, ...]:
    """The steps of each piece; shares of all the run fill it. Raises SpecError where they don't fit, or two take the rest.

    `what` it is that has the pieces.
    """
    shares = [piece.share for piece in pieces if piece.share is not None]
    if (total := sum(shares)) > 1 and not math.isclose(total, 1):
        raise SpecError(f"the shares of the {what} add up to {total:g}, more than the whole run; let them be 1 at most")
    given = [piece.length(run_steps, batch_tokens) for piece in pieces]
    if given.count(None) > 1:
        raise SpecError(f"two pieces of the {what} have no length; only one can take the rest of the run")
    fixed = sum(n for n in given if n is not None)
    if None in given and fixed >= run_steps:
        kind = pieces[given.index(None)].kind
        raise SpecError(
            f"the {what} leaves no step for {kind}: the other pieces take {fixed}, the run has {run_steps}; "
            "train on more tokens, or give their lengths as a share of the run"
        )
    if len(shares) == len(pieces) and fixed != run_steps and math.isclose(total, 1):  # each rounded by itself
        ends = [0, *(round(share * run_steps) for share in accumulate(shares))]
        return tuple(end - begin for begin, end in pairwise(ends))
    return tuple(run_steps - fixed if n is None else n for n in given)


def factor_at(step: int, pieces: tuple[PieceSpec, ...], steps: tuple[int, ...]) -> float:
    """The factor of the peak at `step`, counted from 1; after the last piece, its last factor."""
    level, ends = 1.0, accumulate(steps, initial=0)
    for piece, n, (before, end) in zip(pieces, steps, pairwise(ends), strict=True):
        if n and step <= end:
            return piece.factor(step - before, n, level, before)
        level = piece.factor(n, n, level, before) if n else level
    return level
