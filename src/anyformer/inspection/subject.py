"""A model that is looked into, and what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from anyformer.errors import TextError, UsageError, errors_of
from anyformer.inference.judging import Judging, goal_of, judging, refuse_unknown
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.inspection.sites import Sites
from anyformer.model import Transformer
from anyformer.recipe import ObjectiveSpec, Reads
from anyformer.text import Corpus, LabelledCorpus, Tokenizer
from anyformer.text.conversations import ExchangeCorpus
from anyformer.text.labelled import Kind
from anyformer.text.places import refuse_surrogates
from anyformer.text.sources import Document
from anyformer.training.prepare import Sources

TOKENS = 4096  # that figures are the mean over


@dataclass(frozen=True)
class OneText(Sources):
    """A text itself, as data; whatever is not judged by plain text refuses it."""

    text: str = ""

    def __post_init__(self) -> None:
        if not self.text:
            raise UsageError("--text is empty; give one that holds words")
        with errors_of("--text", TextError):
            refuse_surrogates(self.text)

    def corpus(self) -> Corpus:
        return Corpus.of([Document("text", self.text)])

    def labelled(self, kind: Kind) -> LabelledCorpus:
        raise UsageError("this model is judged by labels, and a text alone has none; give --data")

    def exchanges(self, reads: Reads) -> ExchangeCorpus:
        raise UsageError(
            "this model is judged by conversations, and --text is none; give --data, or --objective causal-lm"
        )


class Subject(NamedTuple):
    """A model in evaluation, its objective, and the rows by which it is judged."""

    found: Opened
    goal: ObjectiveSpec
    judging: Judging
    sites: Sites

    @property
    def model(self) -> Transformer:
        return self.found.model


@contextmanager
def subject(
    model: TrainedModel,
    given: Sources,
    *,
    tokens: int | None = None,
    seq_len: int | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    objective: str | None = None,
    chat_template: str | Path | None = None,
    truncate: bool = False,
    device: str | None = None,
) -> Iterator[Subject]:
    """A model as it is judged by some data meanwhile; the options are those of `evaluate`, and what is loaded is in float32."""
    refuse_unknown(objective, given)
    at_least_one("--tokens", tokens)
    at_least_one("--seq-len", seq_len)
    found = opened(model, tokenizer, device=device, dtype=torch.float32).by_template(chat_template)
    goal = goal_of(found, given, objective, truncate=truncate)
    if goal.reads == "prompts":
        raise UsageError(
            f"{goal.kind} judges what a model writes itself, and what is inside shows on what is given; take --objective "
            "causal-lm on a text, or sft on conversations"
        )
    judge = judging(found, goal, given, seq_len=seq_len)
    training = found.model.training
    found.model.eval()
    try:
        yield Subject(found, goal, judge, Sites.of(found.model.spec))
    finally:
        found.model.train(training)
