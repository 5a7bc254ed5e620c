"""Whether two runs of text belong together, learnt beside masked words: next-sentence prediction, sentence order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anyformer.spec import Few, Share, TrueShare
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.specification import MASK

PAIRED = {**MASK, "cls_token": "[CLS]", "sep_token": "[SEP]"}


class SentencePairs(MaskedLM, abstract=True):
    """Masked words in rows of two runs of text, and one of two classes for each row; the two means are added."""

    negatives: TrueShare = 0.5  # of the pairs are not as they stand in the text
    short: Share = 0.1  # of the pairs are shorter than a row has room for, by a length drawn evenly

    roles: ClassVar[Mapping[str, str]] = PAIRED
    head: ClassVar[str]  # that tells the classes apart
    said: ClassVar[str]  # what the loss of the pairs is reported as


class NextSentence(SentencePairs):
    """Whether the second run follows the first in its document, or is of another one.

    BERT: arXiv:1810.04805, section 3.1 and appendix A.2.
    """

    head: ClassVar[str] = "nsp"
    said: ClassVar[str] = "next sentence"


class SentenceOrder(SentencePairs):
    """Which of two neighbouring runs came first; hidden are runs of up to three words.

    ALBERT: arXiv:1909.11942, section 3.1; n-gram masking, section 4.1.
    """

    whole_words: bool = True
    max_ngram: Few = 3

    head: ClassVar[str] = "sop"
    said: ClassVar[str] = "sentence order"
