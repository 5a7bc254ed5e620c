"""What a model's predictions cost on text it has not seen: nats a token, perplexity, bits a byte, by document."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.text import NOT_PREDICTED
from anyformer.train.data import Validation
from anyformer.train.device import autocast
from anyformer.train.objectives import Forward, Objective, Pass

BATCH_TOKENS = 4096


class DocumentLoss(NamedTuple):
    """One document: its tokens' losses in nats, summed; how many were predicted; its UTF-8 bytes."""

    nats: float
    tokens: int
    nbytes: int


@dataclass(frozen=True)
class Evaluation:
    """The losses of documents; those of which no token was predicted are left out."""

    documents: tuple[DocumentLoss, ...]

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
    objective: Objective,
    validation: Validation,
    *,
    precision: Precision = "float32",
    forward: Forward | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Evaluation:
    """Return the losses of every document, without dropout, smoothing and z-loss."""
    n = len(validation.document_nbytes)
    nats, tokens = np.zeros(n), np.zeros(n, dtype=np.int64)
    device = next(model.parameters()).device
    for rows, source in validation.batches(batch_tokens):
        with torch.no_grad(), autocast(precision, device):
            each = objective(Pass(forward or model, model.head(), device), rows).each.cpu().double().numpy()
        real = rows.labels != NOT_PREDICTED
        nats += np.bincount(source[real], each[real], minlength=n)
        tokens += np.bincount(source[real], minlength=n)
    measured = zip(nats.tolist(), tokens.tolist(), validation.document_nbytes.tolist(), strict=True)
    return Evaluation(tuple(DocumentLoss(*document) for document in measured if document[1]))


def sample_loss(
    model: Transformer,
    objective: Objective,
    validation: Validation,
    most_tokens: int,
    *,
    precision: Precision = "float32",
    forward: Forward | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> float:
    """Return nats a token on about `most_tokens` of the validation text, always the same ones: for curves."""
    nats, tokens = 0.0, 0
    device = next(model.parameters()).device
    for rows, _ in validation.batches(batch_tokens, most_tokens):
        with torch.no_grad(), autocast(precision, device):
            nats += float(objective(Pass(forward or model, model.head(), device), rows).each.cpu().double().sum())
        tokens += int((rows.labels != NOT_PREDICTED).sum())
    return nats / tokens
