"""Losses of a model on text it has not seen: nats a token, perplexity, bits a byte, by document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.text import NOT_PREDICTED
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.data.feed import Validation
from anyformer.training.objectives.objective import JudgedAnswer, LossContext, Objective
from anyformer.training.step.device import autocast
from anyformer.training.step.memories import seeing

if TYPE_CHECKING:
    from anyformer.training.step.pipeline import Pipeline

BATCH_TOKENS = 4096
SAMPLE = 4  # of a model's answers, what is shown and kept
Numbers = tuple[float, int, int | None]  # of `LossPart`: nats, labels, of them right


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
    answers: tuple[JudgedAnswer, ...] = ()  # that the model itself has written, by their lines

    @property
    def frequency_loss(self) -> float | None:
        """Nats a label that the frequencies of these very classes cost; None where no classes were told."""
        if self.class_counts is None:
            return None
        n = sum(self.class_counts)
        return math.fsum(-count / n * math.log(count / n) for count in self.class_counts if count)

    @property
    def sample(self) -> tuple[JudgedAnswer, ...]:
        """The first of the answers."""
        return self.answers[:SAMPLE]

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
        return perplexity_of(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / self.nbytes / math.log(2)


def perplexity_of(loss: float) -> float:
    """Exp of nats a token; infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf


def evaluate(
    model: Transformer,
    objective: Objective[Any],
    validation: Validation,
    *,
    precision: Precision = "float32",
    batch_tokens: int = BATCH_TOKENS,
    most_tokens: int | None = None,
    auxiliary: Transformer | None = None,
    world: World = ALONE,
    pipeline: Pipeline | None = None,
) -> Evaluation:
    """The losses of every document, or of about `most_tokens`, always the same ones; without dropout, smoothing and z-loss.

    `auxiliary` is what was trained beside the model, where the objective needs it. The processes of the `world` share the
    batches out, and all have the result; where they have some of the layers each, by a `pipeline`.
    """
    counts: np.ndarray | None = None
    parts: list[dict[str, Numbers]] = []
    answers: list[JudgedAnswer] = []
    device = next(model.parameters()).device
    beside = None if auxiliary is None else LossContext(auxiliary, auxiliary.head(), device)
    by = None if pipeline is not None else LossContext(model, model.head(), device, auxiliary=beside)
    n = len(validation.document_nbytes)
    nats, tokens = np.zeros(n), np.zeros(n, dtype=np.int64)
    for (rows, source), counts_here in world.dealt(validation.batches(batch_tokens, most_tokens)):
        if by is None:
            assert pipeline is not None
            losses = pipeline.losses(rows)
        else:
            by = seeing(by, model, validation, rows)
            with torch.no_grad(), autocast(precision, by.device):
                if objective.writes:
                    with world.all_weights(model):
                        rows = objective.answered(by, rows)
                losses = objective(by, rows)
        if not counts_here:
            continue
        parts.append({name: part.numbers() for name, part in losses.parts.items()})
        answers += losses.answers
        each = losses.each.cpu().double().numpy()
        real = rows.labels != NOT_PREDICTED
        if losses.classes is not None:
            found = np.bincount(losses.classes.cpu().numpy()[real], minlength=2)
            counts = found if counts is None else counts + found
        if pipeline is not None and not pipeline.stage.last:  # which counts them
            continue
        nats += np.bincount(source[real], each[real], minlength=n)
        tokens += np.bincount(source[real], minlength=n)
    nats, tokens = (world.summed(torch.from_numpy(each)).numpy() for each in (nats, tokens))
    each_parts, each_counts, each_answers = zip(*world.read((parts, counts, answers)), strict=True)
    parts = [batch for batches in each_parts for batch in batches]
    told = [found for found in each_counts if found is not None]
    counts = np.sum(told, axis=0) if told else None
    measured = zip(nats.tolist(), tokens.astype(np.int64).tolist(), validation.document_nbytes.tolist(), strict=True)
    documents = tuple(DocumentLoss(*document) for document in measured if document[1])
    answered = sorted(chain(*each_answers), key=attrgetter("line"))
    return Evaluation(documents, None if counts is None else tuple(counts.tolist()), _parts(parts), tuple(answered))


def _parts(batches: Sequence[Mapping[str, Numbers]]) -> dict[str, PartLoss]:
    found = {}
    for name in batches[0] if batches else ():
        nats, each, answers = zip(*(parts[name] for parts in batches), strict=True)
        labels, right = max(1, sum(each)), [n for n in answers if n is not None]
        loss = math.fsum(nats) / labels
        found[name] = PartLoss(loss, labels, sum(right) / labels if len(right) == len(answers) else None)
    return found
