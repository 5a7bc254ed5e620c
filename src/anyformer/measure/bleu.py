"""BLEU as sacrebleu computes it: cased, detokenised, with its signature. Papineni et al. 2002; Post 2018, arXiv:1804.08771."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anyformer.errors import TextError, UsageError


class Bleu(NamedTuple):
    """A score from 0 to 100, and how it was computed."""

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """The score of a corpus, a reference for each line.

    Raises UsageError where sacrebleu is not installed, TextError for unequal line counts.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise UsageError("BLEU needs sacrebleu; install it with `pip install anyformer[translation]`") from None
    if len(translations) != len(references):
        raise TextError(f"{len(translations)} translations have {len(references)} references; they go line by line")
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(score, str(metric.get_signature()))
