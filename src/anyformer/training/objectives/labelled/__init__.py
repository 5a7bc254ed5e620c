"""Objectives on labelled text: a class or a number for a text or a pair of texts, a class for each word."""

from __future__ import annotations

from typing import ClassVar, Literal

from anyformer.training.objectives.specification import FramedTexts, Reads


class Labelled(FramedTexts, abstract=True):
    """Labels of a text, or of its words, predicted by a head of their own."""

    reads: ClassVar[Reads] = "labelled"
    guess: ClassVar[str] = "how often each label is said"
    unit: ClassVar[str] = "nats a label"
    predicts: ClassVar[str] = "label"
    labels: ClassVar[Literal["classes", "numbers", "words"]]
    head: ClassVar[Literal["classes", "token_classes"]] = "classes"  # the head that says it


class Classification(Labelled):
    """The class of a text or of a pair of texts. BERT: arXiv:1810.04805, section 4.1; GPT: the last token's vector."""

    labels: ClassVar[Literal["classes", "numbers", "words"]] = "classes"


class Regression(Labelled):
    """A number for a text or a pair of texts, by the squared error."""

    labels: ClassVar[Literal["classes", "numbers", "words"]] = "numbers"
    trivial: ClassVar[Literal["frequency", "mean"]] = "mean"
    guess: ClassVar[str] = "the mean"
    unit: ClassVar[str] = "squared error"
    in_nats: ClassVar[bool] = False


class TokenClassification(Labelled):
    """The class of each word, said at its first token. BERT: arXiv:1810.04805, section 5.3."""

    labels: ClassVar[Literal["classes", "numbers", "words"]] = "words"
    head: ClassVar[Literal["classes", "token_classes"]] = "token_classes"
