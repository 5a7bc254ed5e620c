"""Sentence embeddings: each text is to be nearest to its own counterpart among all those of its batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from anyformer.spec import Positive
from anyformer.training.objectives.specification import FramedTexts, Reads


class Contrastive(FramedTexts):
    """Which target of the batch belongs to a source, by the cosines of their vectors over a temperature.

    In-batch negatives: arXiv:1705.00652, section 4.4; encoders that pool: arXiv:1908.10084, section 3; the loss, its
    temperature, and a text as its own target under other dropout: SimCSE, arXiv:2104.08821, equations 1 and 4.
    A batch is batch_tokens // seq_len pairs, or as many more as its longest text leaves room for.
    """

    temperature: Positive = 0.05  # SimCSE's; 1 leaves cosines as they are
    symmetric: bool = False  # each target is to find its source too: LaBSE, arXiv:2007.01852

    reads: ClassVar[Reads] = "pairs"
    trivial: ClassVar[Literal["frequency", "mean", "chance"]] = "chance"
    guess: ClassVar[str] = "an even guess"
    unit: ClassVar[str] = "nats a pair"
    predicts: ClassVar[str] = "pair"
    divisible: ClassVar[bool] = False
