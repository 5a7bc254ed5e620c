"""Masked language modelling: hidden tokens from those on both sides. Devlin et al. 2019 (BERT), arXiv:1810.04805."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anyformer.spec import Few, Share, TrueShare
from anyformer.training.objectives.specification import MASK, ObjectiveSpec


class MaskedLM(ObjectiveSpec):
    """Tokens that were hidden, from those on both sides; masks are drawn anew each time.

    BERT: arXiv:1810.04805, section 3.1; RoBERTa (dynamic masks): arXiv:1907.11692, section 4.1; ALBERT (n-grams):
    arXiv:1909.11942, section 4.1.
    """

    rate: TrueShare = 0.15  # of tokens, special ones not counted, are to be predicted
    mask_share: Share = 0.8  # of these are shown as the mask
    random_share: Share = 0.1  # as a random token; the rest as they are
    whole_words: bool = False  # hide all tokens of a word or none
    max_ngram: Few = 1  # neighbouring tokens, or words, hidden together: n of them by a probability that falls as 1/n

    roles: ClassVar[Mapping[str, str]] = MASK
    whole: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise self.refusal("random_share", f"and mask_share = {self.mask_share:g} add up to more than 1")

    @property
    def predicted_share(self) -> float:
        return self.rate
