"""What every objective is: a function from model and batch to the sum of losses and their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.head import Head
from anyformer.layers.mask import Prefix, visible
from anyformer.layers.tokens import Dropout, Notes, plain_tokens
from anyformer.spec import ModelSpec, StackSpec
from anyformer.train.cross_entropy import PLAIN, LossOptions, cross_entropy

Rows = Any  # a NamedTuple of NumPy arrays [batch, token] with `labels` among them: text.Batch, text.PairBatch
Forward = Callable[..., Any]  # the model, compiled or not

_PROBE = 16  # tokens that a mask is tried on


class Losses(NamedTuple):
    """The losses of some rows."""

    total: Tensor  # what is minimised, summed over labels: has the gradient
    each: Tensor  # [batch, token], plain cross-entropy in nats, 0 where nothing is predicted
    notes: Sequence[Notes] = ()  # of the model's mixers


class Objective(Protocol):
    """One way to learn from rows."""

    def refuses(self, spec: ModelSpec) -> str | None:
        """Return why this architecture cannot be trained so, and what could; None: it can."""
        ...

    def __call__(
        self,
        forward: Forward,
        head: Head,
        rows: Rows,
        device: torch.device,
        dropout: Dropout | None,
        options: LossOptions = PLAIN,
    ) -> Losses:
        """Return the losses of some rows of a batch."""
        ...


def losses_of_labels(
    forward: Forward,
    head: Head,
    inputs: Mapping[str, Tensor | None],
    labels: Tensor,
    dropout: Dropout | None,
    options: LossOptions = PLAIN,
) -> Losses:
    """Return the losses of a label for each token of the stack; without ever holding all logits."""
    out = forward(**inputs, output_logits=False, dropout=dropout)
    return Losses(*cross_entropy(head, out.last_hidden_state, labels, options), out.notes)


def on(device: torch.device, array: np.ndarray) -> Tensor:
    """Return the array as a tensor there."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def later_tokens_seen(stack: StackSpec) -> str | None:
    """Return the kind of a mask of the stack that shows a token what comes after it; None where all hide it."""
    tokens = plain_tokens(_PROBE, torch.device("cpu"))
    for value in stack.nested():
        if not isinstance(value, AttentionSpec) or value.reads == "memory":
            continue
        mask = value.mask
        if any(isinstance(part, Prefix) for part in mask.nested()):
            return mask.kind
        seen = visible(mask, tokens, tokens, n_heads=_PROBE)
        if seen is None or bool(seen.expand(1, -1, _PROBE, _PROBE).triu(1).any()):
            return mask.kind
    return None
