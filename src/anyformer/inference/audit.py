"""Tokens that a model hardly learnt, found by their vectors: "glitch tokens".

Land & Bartolo 2024, arXiv:2405.05417, section 3: a token that training never showed keeps an input vector that only weight
decay touched, and an output vector that was only ever pushed away, like those of all others of its kind. So each token's
vectors are compared with those of tokens that no text can hold: special tokens, and those whose own text is encoded otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.inference.opened import TrainedModel, opened
from anyformer.layers import TokensSpec
from anyformer.model import Transformer
from anyformer.notebook import ShowsItself
from anyformer.text import Tokenizer, read_corpus
from anyformer.text.pieces import encoded_documents

VERSION = 1
FEWEST = 4  # tokens that no text can hold, to know what an unlearnt vector looks like


@dataclass(frozen=True)
class Suspect:
    """A token beside those that were never learnt."""

    token: int
    spelling: str
    similarity: float  # cosine of its vector to the mean of the never-learnt, the mean of all taken away; 1 is alike
    norm: float  # of its input vector, in units of the median norm
    reachable: bool  # whether encoding its own text gives it
    count: int | None  # in the corpus, where one is given


@dataclass(frozen=True)
class Audit(ShowsItself):
    """All tokens, or those that were asked for, the most suspicious first."""

    suspects: tuple[Suspect, ...]
    compared_with: str  # what the never-learnt vectors are taken to be
    n_unreachable: int

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self), "suspects": [asdict(suspect) for suspect in self.suspects]}


def audit(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None = None,
    counts: Mapping[int, int] | None = None,
    *,
    data: str | Path | None = None,
    top: int | None = None,
) -> Audit:
    """The tokens by how much their vectors are like those of tokens that training cannot have shown.

    `model` is a model, or a directory, which has its tokenizer. `counts` says how often each token occurs in a corpus, or `data`
    names that; then those that never do are what others are compared with. `top` keeps so many.
    Raises InputError for a vocabulary that is larger than the model's.
    """
    model, tokenizer, *_ = opened(model, tokenizer, device=None if isinstance(model, Transformer) else "cpu")
    if data is not None:
        counts = Counter()
        for _, ids in encoded_documents(tokenizer, read_corpus(data)):
            counts.update(ids.tolist())
    table, head = _input_table(model), _output_table(model)
    if tokenizer.vocab_size > len(table):
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {len(table)}; give the tokenizer it was trained with"
        )
    known = [i for i in range(tokenizer.vocab_size) if tokenizer.spelling(i) is not None]
    reachable = {i: tokenizer.encode(tokenizer.decode([i], specials=True)) == [i] for i in known}
    unseen = [i for i in known if counts is not None and not counts.get(i)]
    shown = (tokenizer.begin_of_text, tokenizer.end_of_text)  # by training, though no text holds them
    impossible = [i for i in known if not reachable[i] and i not in shown]
    norms = table[: tokenizer.vocab_size].norm(dim=-1)
    if len(unseen) >= FEWEST:
        reference, said = unseen, f"the {len(unseen)} tokens that the text never has"
    elif len(impossible) >= FEWEST:
        reference, said = impossible, f"the {len(impossible)} tokens that no text is encoded to"
    else:
        reference, said = [], "the mean of all vectors: too few tokens are known never to occur"
    similar = _likeness(head[: tokenizer.vocab_size], reference)
    relative = (norms / norms[known].median()).tolist()
    suspects = [
        Suspect(
            i, tokenizer.spelling(i) or "", similar[i], relative[i], reachable[i], counts.get(i, 0) if counts else None
        )
        for i in known
    ]
    suspects.sort(key=lambda s: (-s.similarity, s.norm, s.token))
    return Audit(tuple(suspects[:top]), said, sum(not reachable[i] for i in known))


def _likeness(vectors: Tensor, reference: list[int]) -> list[float]:
    """Each vector's cosine to the mean of the reference's; without a reference, how near it is to the mean of all."""
    centred = vectors - vectors.mean(0)
    if not reference:
        distance = centred.norm(dim=-1)
        return (1 - distance / distance.max().clamp(min=1e-12)).tolist()
    total = centred[reference].sum(0)
    mean = total.expand_as(centred).clone()
    mean[reference] -= centred[reference]  # a token is not compared with itself
    return torch.nn.functional.cosine_similarity(centred, mean, dim=-1).tolist()


def _input_table(model: Transformer) -> Tensor:
    terms: Any = model.stack.embedding.terms
    table = next((term.table.weight for term in terms if isinstance(term.spec, TokensSpec)), None)
    if table is None:
        raise InputError("the model has no table of tokens to audit; give one that reads tokens")
    return table.detach().float()


def _output_table(model: Transformer) -> Tensor:
    """The table of the first head that has a row for each token, tied or not; the embedding's where none has."""
    tables = [head.table.weight.detach().float() for head in model.heads if head.table is not None]
    read = _input_table(model)
    return next((table for table in tables if len(table) == len(read)), read)
