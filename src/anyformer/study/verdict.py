"""The plain words for a comparison's intervals and tests: what can be claimed, and what can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyformer.amounts import signed

if TYPE_CHECKING:
    from anyformer.study.paired import Interval
    from anyformer.study.results import Score

ONE_SEED = (
    "Each architecture was trained once, so the intervals cover one thing only: the choice of validation text. "
    "No claim about training can be made: another seed could change the order."
)
NONE_FINISHED = "no run finished"
NOTHING_TO_COMPARE = "No run finished, so that nothing can be compared."
FEW_DOCUMENTS = 20


def of_documents(name: str, first: str, difference: Interval | None, score: Score) -> str:
    if name == first:
        return "the others are compared to it"
    if difference is None:
        return f"no comparison: {first} did not finish"
    if not difference.excludes_zero():
        return (
            f"as trained here, it cannot be told from {first} on text like this; with one seed, no claim about training"
        )
    does = score.better if score.is_better(difference.value) else score.worse
    return f"as trained here, it {does} {first} on text like this; one seed, no claim about training"


def of_seeds(
    name: str,
    first: str,
    difference: Interval | None,
    p_holm: float | None,
    *,
    n_shared: int,
    n_finished: int,
    score: Score,
) -> str:
    if not n_finished:
        return NONE_FINISHED
    if name == first:
        return "the others are compared to it"
    if difference is None or p_holm is None:
        seeds = "1 finished seed" if n_shared == 1 else f"{n_shared} finished seeds"
        return f"no difference can be claimed: it shares {seeds} with {first}"
    span = f"95 % interval {difference.ends(signed)}"
    text = f"{signed(difference.value)} {score.words}, {span}, corrected p = {p_holm:.2g}"
    if p_holm < 0.05:
        better = "better" if score.is_better(difference.value) else "worse"
        return f"{better} than {first}, trained this way on this data ({text})"
    return f"no difference to {first} can be claimed ({text})"


def one_seed_sentences(n_documents: int, score: Score, called: str) -> tuple[str, ...]:
    """What intervals over `n_documents` validation documents, or what they are `called`, mean."""
    if n_documents < 2:
        there = f"{'One' if n_documents else 'No'} validation {called.removesuffix('s')}"
        return ONE_SEED, f"{there}: not even the choice of text can be judged, so no intervals are given."
    sentences = [
        ONE_SEED,
        f"Intervals are 95 % bootstrap intervals over the {n_documents:,} validation {called} ({score.sums}, {called} "
        f"drawn with replacement). Differences are paired: each draw scores both models on the same {called}, which "
        "removes most of what makes one text harder than another.",
    ]
    if n_documents < FEW_DOCUMENTS:
        sentences.append(
            f"{n_documents} {called} are few: such intervals come out too narrow. Validate on more {called}."
        )
    return tuple(sentences)


def several_seeds_sentences(counts: Sequence[int], n_tests: int) -> tuple[str, ...]:
    """What intervals over `counts` finished seeds, one count an architecture, mean; `n_tests` compare to the first."""
    fewest, most = min(counts), max(counts)
    n_seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    sentences = [
        f"Values are means over {n_seeds} seeds with Student's 95 % interval: what to expect of training again with "
        "other seeds, on this data, at this size and budget. They say nothing about other data, sizes or budgets.",
        "Differences are paired by seed: the runs of one seed saw the same data in the same order.",
    ]
    if n_tests > 1:
        sentences.append(
            f"A difference is claimed if the paired t-test, corrected for {n_tests} comparisons (Holm), gives "
            "p < 0.05. The intervals are not corrected, so one can miss zero while nothing is claimed."
        )
    elif n_tests == 1:
        sentences.append("A difference is claimed if the paired t-test gives p < 0.05.")
    if fewest < 2:
        sentences.append("An architecture with a single finished seed has no interval and no test.")
    if 2 in counts:
        sentences.append(
            "With two seeds the interval is very wide (12.7 standard errors to each side): only a huge difference can "
            "be claimed. Run 3 seeds or more."
        )
    return tuple(sentences)
