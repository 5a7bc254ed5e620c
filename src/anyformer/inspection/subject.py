"""A model that is looked into, and what it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from anyformer.inference.judging import Judging, goal_of, judging, refuse_unknown
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.inspection.sites import Sites
from anyformer.model import Transformer
from anyformer.recipe import ObjectiveSpec
from anyformer.text import Tokenizer
from anyformer.text.sources import read_text
from anyformer.training.prepare import Sources

TOKENS = 4096  # that figures are the mean over


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
    given_itself = isinstance(model, Transformer)
    found = opened(model, tokenizer, device=device, dtype=None if given_itself else torch.float32)
    if chat_template is not None:
        found = found._replace(tokenizer=found.tokenizer.with_chat_template(read_text(Path(chat_template))))
    goal = goal_of(found, given, objective, truncate=truncate)
    directory = None if isinstance(model, Transformer) else Path(model)
    judge = judging(found, goal, given, directory=directory, seq_len=seq_len)
    training = found.model.training
    found.model.eval()
    try:
        yield Subject(found, goal, judge, Sites.of(found.model.spec))
    finally:
        found.model.train(training)
