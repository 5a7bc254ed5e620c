"""Texts as vectors: one of each text, by the model's own head or by a pool. Reimers & Gurevych 2019, arXiv:1908.10084."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import InputError, did_you_mean
from anyformer.inference.scores import longest_of
from anyformer.layers import FirstTokenSpec, LastTokenSpec, MeanTokensSpec
from anyformer.layers.head import Head
from anyformer.model import Transformer, make_tokens
from anyformer.spec import ModelSpec, Place, PoolSpec
from anyformer.text import Tokenizer, length_batches
from anyformer.training.objectives.contrastive.loss import EMBEDDING, sentence_embedding, usual_pool

Pool = Literal["mean", "first", "last"]
POOLS: Mapping[str, PoolSpec] = {"mean": MeanTokensSpec(), "first": FirstTokenSpec(), "last": LastTokenSpec()}
BATCH_TOKENS = 4096


class Embedded(NamedTuple):
    """Texts and what stands for them."""

    vectors: Tensor  # [text, width] float32 on the CPU
    cut: int  # texts that were longer than the model was to read


def embed(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    pool: Pool | None = None,
    longest: int | None = None,
    truncate: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> Tensor:
    """Return a vector for each text, [text, width] float32, in their order.

    `pool` None asks the model's head "embedding"; without one, tokens that see all are averaged, and of those that do not the
    last is taken. "mean", "first" and "last" pool the last hidden state; vectors have length 1 unless the model's own head
    says otherwise. A text is framed as the tokenizer's own rules say; one of more than `longest` tokens, by default those
    that the model has positions for, is refused, or cut with `truncate`. `batch_tokens`: texts of a batch times the longest
    of them. Raises InputError for a blank or too long text, an unknown pool, and a model with an encoder and a decoder.
    """
    given = (model, tokenizer, texts)
    return embedded(*given, pool=pool, longest=longest, truncate=truncate, batch_tokens=batch_tokens).vectors


def embedded(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    pool: Pool | None = None,
    longest: int | None = None,
    truncate: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    on_done: Callable[[int], None] | None = None,
) -> Embedded:
    """What `embed` does, and how many texts were cut; `on_done` is told how many are done."""
    head = _head(model, pool)
    if not texts:
        raise InputError("there are no texts to embed; give one at least")
    ids, cut = _framed(tokenizer, texts, longest or longest_of(model.spec), truncate)
    lengths = np.array([len(one) for one in ids])
    vectors, done = torch.empty(0), 0
    for numbers in length_batches(lengths[:, None], max(batch_tokens, int(lengths.max()))):
        mask = np.arange(lengths[numbers].max()) < lengths[numbers, None]
        rows = np.zeros(mask.shape, dtype=np.int64)
        rows[mask] = np.concatenate([ids[i] for i in numbers])
        found = _run(model, head, torch.from_numpy(rows), torch.from_numpy(mask))
        vectors = vectors if done else torch.empty(len(texts), found.shape[-1])
        vectors[torch.from_numpy(numbers)] = found
        done += len(numbers)
        if on_done is not None:
            on_done(done)
    return Embedded(vectors, cut)


def pool_of(spec: ModelSpec, pool: Pool | None = None) -> PoolSpec:
    """What makes one vector of the tokens: what is named, else what the model's head says, else what is usual."""
    if pool is not None and pool not in POOLS:
        raise InputError(f"there is no pool {pool!r}{did_you_mean(pool, POOLS)}; there are {', '.join(get_args(Pool))}")
    own = next((head.pool for head in spec.heads if head.name == EMBEDDING), None)
    return POOLS[pool] if pool is not None else own or usual_pool(spec)


def _framed(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int | None, truncate: bool
) -> tuple[list[np.ndarray], int]:
    """The ids of each text, and how many texts were cut."""
    found, cut = [], 0
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise InputError(f"text {number} is blank, and no vector stands for nothing; leave it out")
        one = tokenizer.frame((text,), longest)
        if one.cut and not truncate:
            raise InputError(
                f"text {number} is {len(one.ids) + one.cut} tokens long, beyond the {longest} that are read; split it, or "
                "have what is too long cut (--truncate)"
            )
        if not len(one.ids):
            raise InputError(f"text {number} has no token in this vocabulary; leave it out")
        found.append(one.ids)
        cut += one.cut > 0
    return found, cut


def _run(model: Transformer, head: Head, ids: Tensor, mask: Tensor) -> Tensor:
    device = next(model.parameters()).device
    with torch.inference_mode():
        ids, attended = ids.to(device), mask.long().to(device)
        hidden = model(ids, attended, output_logits=False).last_hidden_state
        return head(hidden, make_tokens(ids, attended)).float().cpu()


def _head(model: Transformer, pool: Pool | None) -> Head:
    """The head that makes the vectors: the model's own, or one of a pool alone."""
    spec = model.spec
    if spec.encoder is not None:
        raise InputError(
            "this model is an encoder and a decoder, and no head reads the encoder; use one or the other alone"
        )
    if pool is None and any(head.name == EMBEDDING and head.pool is not None for head in spec.heads):
        return model.head(EMBEDDING)
    width = spec.stack.residual.width(spec.stack.d_model)
    return Head(sentence_embedding(pool_of(spec, pool)), Place(spec.stack.d_model, (width,)))
