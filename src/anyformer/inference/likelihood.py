"""How likely a model finds a text after another: the log-likelihood of its tokens, and whether it would have written them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.prompt import check_writes, parting
from anyformer.generation.prompt import padded as padded_on_the_left
from anyformer.inference.writing import batches
from anyformer.layers.embedding import learned_positions
from anyformer.layers.head import chunks_of, rows_at_once
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
from anyformer.text.packing import padded
from anyformer.text.prompts import encode_prompt, encode_source
from anyformer.training.run.checks import check_vocabulary
from anyformer.training.step.device import autocast

BATCH_TOKENS = 4096
SHOWN = 8  # tokens of an answer that is refused, by which to find it


class Likelihood(NamedTuple):
    """Of what follows, given what stands before it."""

    log: float  # the sum over its tokens, in nats; at most 0
    greedy: bool  # each of its tokens is the likeliest
    cut: int  # tokens before it that there was no room for


class ScoredText(NamedTuple):
    """Ids of what is read and of what follows; an encoder reads the first, and a decoder writes the second."""

    before: list[int]
    after: list[int]


def pair_of(model: Transformer, tokenizer: Tokenizer, before: str, after: str) -> ScoredText:
    """A text and what follows it as ids: those of both at once, cut where those of the first alone end.

    A text begins as it does for `generate`; with nothing before it, what opens or closes a text stands there. Raises
    InputError where the tokenizer has neither.
    """
    if model.encoder is not None:
        return ScoredText(encode_source(tokenizer, before), tokenizer.encode(after))
    if not before:
        opening = tokenizer.end_of_text if tokenizer.begin_of_text is None else tokenizer.begin_of_text
        if opening is None:
            raise InputError(
                "nothing stands before the text, and this tokenizer has no token that begins one; give a text"
            )
        return ScoredText([opening], tokenizer.encode(after))
    ids, first = encode_prompt(tokenizer, before + after), encode_prompt(tokenizer, before)
    at = min(len(first), len(ids) - 1)  # where a token reaches over the end of the first
    return ScoredText(ids[:at], ids[at:])


def pass_length(spec: ModelSpec, seq_len: int | None) -> int | None:
    """Tokens of a pass: as many as asked for, at most the positions learned, by default the context; None: any number."""
    most = [n for n in (seq_len or spec.context, learned_positions(spec.stack)) if n is not None]
    return min(most, default=None)


def log_likelihoods(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[ScoredText],
    seq_len: int | None = None,
    precision: Precision = "float32",
) -> list[Likelihood]:
    """The likelihood of what follows in each pair. What does not fit into `seq_len` tokens is left out from the front.

    `seq_len` None: the model's context. Raises InputError for a model that predicts no next token, and where what follows does
    not fit alone; `check_vocabulary`'s error for a tokenizer with more tokens than the model.
    """
    check_writes(model.spec)
    check_vocabulary(model.spec, tokenizer.vocab_size)
    longest = pass_length(model.spec, seq_len)
    opening = tokenizer.answer_opening
    if model.encoder is not None and not opening:
        raise InputError(
            "this tokenizer has no token that begins an answer, which a decoder beside an encoder reads first"
        )
    rows = list[ScoredRow]()
    for before, after in pairs:
        if not after:
            raise InputError("what follows has no tokens, so nothing can be said of it; give it a text")
        if longest is not None and len(after) > longest:
            raise InputError(
                f"what follows, {tokenizer.decode(after[:SHOWN])!r} …, is {len(after):,} tokens long, beyond the "
                f"{longest:,} of a pass; shorten it"
            )
        whole = [*(before if model.encoder is None else opening), *after]
        kept = whole if longest is None else whole[-(longest + 1) :]
        source = None if model.encoder is None else before
        rows.append(ScoredRow(tuple(kept[: -len(after)]), after, source, len(whole) - len(kept)))
    alike: dict[tuple[int, ...], list[int]] = {}  # rows by what they begin with
    in_parts = parting(model.spec, max((len(row.before) + len(row.after) for row in rows), default=1)) is None
    for i, row in enumerate(rows):
        alike.setdefault(row.before if in_parts else (i,), []).append(i)
    groups = list(alike.values())
    found: dict[int, tuple[float, bool]] = {}
    for several, score in ((False, _scores), (True, _scores_alike)):
        sizes = {
            number: sum(rows[i].n_read for i in group)
            for number, group in enumerate(groups)
            if (len(group) > 1) == several
        }
        for batch in batches(sizes, BATCH_TOKENS):
            numbers = [i for number in batch for i in groups[number]]
            scored = score(model, [rows[i] for i in numbers], precision)
            found |= dict(zip(numbers, scored, strict=True))
    return [Likelihood(*found[i], row.cut) for i, row in enumerate(rows)]


class ScoredRow(NamedTuple):
    """What a decoder reads, and how much of its end counts."""

    before: tuple[int, ...]
    after: list[int]
    source: list[int] | None  # of the encoder where there is one
    cut: int  # tokens before it that there was no room for

    @property
    def n_read(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.before) + len(self.after), len(self.source or ()))


@torch.no_grad()
def _scores(model: Transformer, rows: list[ScoredRow], precision: Precision) -> list[tuple[float, bool]]:
    """For each row: the sum of the log-likelihoods of its end's tokens, and whether all of them are the likeliest."""
    device = next(model.parameters()).device
    ids, mask = _padded([[*row.before, *row.after[:-1]] for row in rows], device)
    sources = [row.source for row in rows if row.source is not None]
    with autocast(precision, device):
        if not sources:
            out = model(ids, mask, output_logits=False)
        else:
            out = model(
                *_padded(sources, device), decoder_input_ids=ids, decoder_attention_mask=mask, output_logits=False
            )
        # An end's tokens are predicted from the place before its first on.
        made = out.read_by(model.head())
        read = [made[i, len(row.before) - 1 :][: len(row.after)] for i, row in enumerate(rows)]
        return _judged(model, torch.cat(read), [row.after for row in rows])


@torch.no_grad()
def _scores_alike(model: Transformer, rows: list[ScoredRow], precision: Precision) -> list[tuple[float, bool]]:
    """The same of decoders' rows of which several begin alike: what they begin with is read once."""
    device, head = next(model.parameters()).device, model.head()
    numbers = {before: i for i, before in enumerate(dict.fromkeys(row.before for row in rows))}
    ids, mask = padded_on_the_left(list(numbers), device)
    longest = max(len(row.after) for row in rows) - 1
    cache = model.new_cache(len(numbers), ids.shape[1], longest=ids.shape[1] + longest)
    which = [numbers[row.before] for row in rows]
    with autocast(precision, device):
        made = model(ids, mask, cache=cache, output_logits=False).read_by(head)[which, -1:]
        if longest:
            cache.select(which)
            ids, mask = _padded([row.after[:-1] for row in rows], device)
            later = model(ids, mask, cache=cache, output_logits=False).read_by(head)
            made = torch.cat((made, later), 1)
        read = [made[i, : len(row.after)] for i, row in enumerate(rows)]
        return _judged(model, torch.cat(read), [row.after for row in rows])


def _judged(model: Transformer, read: Tensor, ends: list[list[int]]) -> list[tuple[float, bool]]:
    """What the head says of the tokens of ends, all of them after each other, by what it reads [token, width]."""
    labels = torch.tensor([token for end in ends for token in end], device=read.device)
    logs, right = torch.empty(len(read), dtype=torch.float64), torch.empty(len(read), dtype=torch.bool)
    for chunk in chunks_of(len(read), rows_at_once(read, model.spec.vocab_size)):
        logits = model.head()(read[chunk]).float()
        logs[chunk] = logits.log_softmax(-1).gather(-1, labels[chunk, None])[:, 0].double().cpu()
        right[chunk] = (logits.argmax(-1) == labels[chunk]).cpu()
    sizes = [len(end) for end in ends]
    return [
        (float(log.sum()), bool(each.all())) for log, each in zip(logs.split(sizes), right.split(sizes), strict=True)
    ]


def _padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask [batch, token] of rows, padded on the right."""
    ids, mask = map(torch.from_numpy, padded([np.array(row, dtype=np.int64) for row in rows], 0))
    return ids.to(device), mask.to(device)
