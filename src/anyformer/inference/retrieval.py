"""How often a text's own counterpart is the nearest of all: accuracy, and the mean reciprocal rank (Voorhees 1999, TREC-8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.inference.embedding import BATCH_TOKENS, embedded
from anyformer.model import Transformer
from anyformer.text import Tokenizer

ROWS_AT_ONCE = 1024  # of the matrix of cosines


class Retrieval(NamedTuple):
    """Of all sources, each looking for its target among all of them."""

    accuracy: float  # share whose target is the first
    mrr: float  # mean of 1 / the target's rank
    pairs: int
    cut: int  # texts that were cut


def retrieve(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    longest: int | None = None,
    truncate: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> Retrieval:
    """How well the vectors of sources find those of their targets. Raises what `embed` does."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    numbers = {text: i for i, text in enumerate(texts)}
    found = embedded(model, tokenizer, texts, longest=longest, truncate=truncate, batch_tokens=batch_tokens)
    source, target = (found.vectors[[numbers[pair[side]] for pair in pairs]] for side in (0, 1))
    place = ranks(source, target, torch.tensor([[numbers[text] for text in pair] for pair in pairs]))
    return Retrieval(float((place == 1).double().mean()), float((1 / place.double()).mean()), len(pairs), found.cut)


def ranks(source: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """The rank [pair] of each target by its cosine with its source, from 1.

    `group` [pair, 2] are numbers of the texts: what is the same text as a right answer, or the answer to the same text, is
    right too, and counts for nothing. Among equal cosines the right one is the last. Raises InputError without pairs.
    """
    if not len(source):
        raise InputError("there are no pairs to rank; give one at least")
    source, target = F.normalize(source, dim=1), F.normalize(target, dim=1)
    found = []
    for start in range(0, len(source), ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        cosines = source[here] @ target.T
        own = (source[here] * target[here]).sum(1, keepdim=True)
        right = (group[here, None, :] == group[None]).any(-1)
        found.append(1 + ((cosines >= own - 1e-6) & ~right).sum(1))
    return torch.cat(found)
