"""What every objective is: a function from model and batch to the sum of losses and their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from anyformer.layers.head import Head
from anyformer.layers.tokens import Dropout, Notes
from anyformer.memory import SegmentMemory
from anyformer.spec import ModelSpec
from anyformer.training.cross_entropy import PLAIN, LossOptions, cross_entropy

Rows = Any  # a NamedTuple of NumPy arrays [batch, token] with `labels` among them: text.Batch, text.PairBatch
Forward = Callable[..., Any]  # the model, compiled or not

NOTHING: Mapping[str, Any] = {}


class LossPart(NamedTuple):
    """What else is predicted beside `Losses.each`: tokens further ahead, say."""

    nats: Tensor  # plain cross-entropy, summed over labels; has no gradient
    labels: Tensor  # how many
    right: Tensor | None = None  # of them, those whose label is the likeliest class; None: not counted


class Losses(NamedTuple):
    """The losses of some rows."""

    total: Tensor  # what is minimised, summed over labels: has the gradient
    each: Tensor  # shaped as the labels: plain cross-entropy in nats, 0 where nothing is predicted
    notes: Sequence[Notes] = ()  # of the model's mixers
    parts: Mapping[str, LossPart] = NOTHING  # by name; `each` is of the objective's first concern alone
    # shaped as the labels: which of a few each was, where only the pass could tell; else None
    classes: Tensor | None = None


class LossContext(NamedTuple):
    """A way through a model: what is run, whose logits are judged, where, and how. By default as in evaluation."""

    forward: Forward
    head: Head
    device: torch.device
    dropout: Dropout | None = None
    options: LossOptions = PLAIN
    # the same through the model that is trained beside, where an objective has one
    companion: LossContext | None = None
    memory: SegmentMemory | None = None  # of the segments before, which these rows see and add to


class Objective(Protocol):
    """One way to learn from rows."""

    def refuses(self, spec: ModelSpec) -> str | None:
        """Why this architecture cannot be trained so, and what could; None: it can."""
        ...

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses of some rows of a batch."""
        ...


def losses_of_labels(by: LossContext, inputs: Mapping[str, Any], labels: Tensor) -> Losses:
    """The losses of a label for each token of the stack; without ever holding all logits."""
    out = by.forward(**inputs, output_logits=False, dropout=by.dropout, cache=by.memory)
    return Losses(*cross_entropy(by.head, out.read_by(by.head), labels, by.options), out.notes)


def on(device: torch.device, array: np.ndarray) -> Tensor:
    """The array as a tensor there."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def no_vocabulary_head(spec: ModelSpec, name: str = "lm") -> str | None:
    """Why a model's first head predicts no tokens, or None; `name` is what such a head is called."""
    if not spec.heads:
        return f"it has no head that predicts tokens; give the model one over its vocabulary, called {name}"
    head = spec.heads[0]
    if head.pool is not None or head.table is None or head.table.rows < spec.vocab_size:
        return (
            f"its first head, {head.name!r}, does not predict tokens; put one over its vocabulary, called {name}, first"
        )
    return None
