"""Losses of a model on text it has not seen: nats a token, perplexity, bits a byte, by document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Validation
from anyformer.training.objectives.objective import LossContext, LossPart, Objective
from anyformer.training.step.device import autocast
from anyformer.training.step.memories import seeing

BATCH_TOKENS = 4096


class DocumentLoss(NamedTuple):
    """One document: its tokens' losses in nats, summed; how many were predicted; its UTF-8 bytes."""

    nats: float
    tokens: int
    nbytes: int


class PartLoss(NamedTuple):
    """A further prediction, as `Losses.parts` has it."""

    loss: float  # nats a label
    labels: int
    accuracy: float | None  # share of the labels that are the likeliest class; None where that was not counted


@dataclass(frozen=True)
class Evaluation:
    """The losses of documents; those of which no token was predicted are left out."""

    documents: tuple[DocumentLoss, ...]
    class_counts: tuple[int, ...] | None = None  # of `Losses.classes`, where the objective tells them
    parts: Mapping[str, PartLoss] = field(default_factory=dict)  # by name

    @property
    def frequency_loss(self) -> float | None:
        """Nats a label that the frequencies of these very classes cost; None where no classes were told."""
        if self.class_counts is None:
            return None
        n = sum(self.class_counts)
        return math.fsum(-count / n * math.log(count / n) for count in self.class_counts if count)

    @property
    def nats(self) -> float:
        """Summed over all documents."""
        return math.fsum(document.nats for document in self.documents)

    @property
    def tokens(self) -> int:
        """Predicted."""
        return sum(document.tokens for document in self.documents)

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of the text, without delimiters."""
        return sum(document.nbytes for document in self.documents)

    @property
    def loss(self) -> float:
        """Nats a predicted token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); only models of one tokenizer can be compared by it."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / self.nbytes / math.log(2)


def evaluate(
    model: Transformer,
    objective: Objective[Any],
    validation: Validation,
    *,
    precision: Precision = "float32",
    batch_tokens: int = BATCH_TOKENS,
    most_tokens: int | None = None,
    auxiliary: Transformer | None = None,
) -> Evaluation:
    """The losses of every document, or of about `most_tokens`, always the same ones; without dropout, smoothing and z-loss.

    `auxiliary` is what was trained beside the model, where the objective needs it.
    """
    counts: np.ndarray | None = None
    parts: list[Mapping[str, LossPart]] = []
    device = next(model.parameters()).device
    beside = None if auxiliary is None else LossContext(auxiliary, auxiliary.head(), device)
    by = LossContext(model, model.head(), device, auxiliary=beside)
    n = len(validation.document_nbytes)
    nats, tokens = np.zeros(n), np.zeros(n, dtype=np.int64)
    for rows, source in validation.batches(batch_tokens, most_tokens):
        by = seeing(by, model, validation, rows)
        with torch.no_grad(), autocast(precision, by.device):
            losses = objective(by, rows)
        parts.append(losses.parts)
        each = losses.each.cpu().double().numpy()
        real = rows.labels != NOT_PREDICTED
        if losses.classes is not None:
            found = np.bincount(losses.classes.cpu().numpy()[real], minlength=2)
            counts = found if counts is None else counts + found
        nats += np.bincount(source[real], each[real], minlength=n)
        tokens += np.bincount(source[real], minlength=n)
    measured = zip(nats.tolist(), tokens.tolist(), validation.document_nbytes.tolist(), strict=True)
    documents = tuple(DocumentLoss(*document) for document in measured if document[1])
    return Evaluation(documents, None if counts is None else tuple(counts.tolist()), _parts(parts))


def _parts(batches: Sequence[Mapping[str, LossPart]]) -> dict[str, PartLoss]:
    found = {}
    for name in batches[0] if batches else ():
        same = [parts[name] for parts in batches]
        labels = max(1, sum(int(part.labels) for part in same))
        right = [int(part.right) for part in same if part.right is not None]
        loss = math.fsum(float(part.nats) for part in same) / labels
        found[name] = PartLoss(loss, labels, sum(right) / labels if len(right) == len(same) else None)
    return found
