"""How likely a model finds a text after another: the log-likelihood of its tokens, and whether it would have written them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.prompt import check_writes
from anyformer.inference.writing import batches
from anyformer.layers.embedding import learned_positions
from anyformer.layers.head import chunks_of, rows_at_once
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
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


class Pair(NamedTuple):
    """Ids of what is read and of what follows; an encoder reads the first, and a decoder writes the second."""

    before: list[int]
    after: list[int]


def pair_of(model: Transformer, tokenizer: Tokenizer, before: str, after: str) -> Pair:
    """A text and what follows it as ids: those of both at once, cut where those of the first alone end.

    A text begins as it does for `generate`; with nothing before it, what opens or closes a text stands there. Raises
    InputError where the tokenizer has neither.
    """
    if model.encoder is not None:
        return Pair(encode_source(tokenizer, before), tokenizer.encode(after))
    if not before:
        opening = tokenizer.end_of_text if tokenizer.begin_of_text is None else tokenizer.begin_of_text
        if opening is None:
            raise InputError(
                "nothing stands before the text, and this tokenizer has no token that begins one; give a text"
            )
        return Pair([opening], tokenizer.encode(after))
    ids, first = encode_prompt(tokenizer, before + after), encode_prompt(tokenizer, before)
    at = min(len(first), len(ids) - 1)  # where a token reaches over the end of the first
    return Pair(ids[:at], ids[at:])


def pass_length(spec: ModelSpec, seq_len: int | None) -> int | None:
    """Tokens of a pass: as many as asked for, at most the positions learned, by default the context; None: any number."""
    most = [n for n in (seq_len or spec.context, learned_positions(spec.stack)) if n is not None]
    return min(most, default=None)


def log_likelihoods(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
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
    rows: list[tuple[list[int], list[int], int]] = []  # what the decoder reads, how much of its end counts, what is cut
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
        rows.append((kept, after, len(whole) - len(kept)))
    found: dict[int, Likelihood] = {}
    sizes = {i: max(len(kept), len(pairs[i].before)) for i, (kept, _, _) in enumerate(rows)}
    for batch in batches(sizes, BATCH_TOKENS):
        sources = [pairs[i].before for i in batch] if model.encoder is not None else None
        scores = _scores(model, [rows[i][0] for i in batch], [rows[i][1] for i in batch], sources, precision)
        found |= {i: Likelihood(log, greedy, rows[i][2]) for i, log, greedy in zip(batch, *scores, strict=True)}
    return [found[i] for i in range(len(rows))]


@torch.no_grad()
def _scores(
    model: Transformer,
    rows: list[list[int]],
    ends: list[list[int]],
    sources: list[list[int]] | None,
    precision: Precision,
) -> tuple[list[float], list[bool]]:
    """For each row: the sum of the log-likelihoods of its end's tokens, and whether all of them are the likeliest."""
    head, device = model.head(), next(model.parameters()).device
    ids, mask = _padded([row[:-1] for row in rows], device)
    with autocast(precision, device):
        if sources is None:
            out = model(ids, mask, output_logits=False)
        else:
            out = model(
                *_padded(sources, device), decoder_input_ids=ids, decoder_attention_mask=mask, output_logits=False
            )
        # An end's tokens are predicted from the place before its first on.
        places = [
            (i, len(row) - 1 - len(end) + k)
            for i, (row, end) in enumerate(zip(rows, ends, strict=True))
            for k in range(len(end))
        ]
        at = torch.tensor(places, device=device)
        read = out.read_by(head)[at[:, 0], at[:, 1]]
        labels = torch.tensor([token for end in ends for token in end], device=device)
        logs, right = torch.empty(len(at), dtype=torch.float64), torch.empty(len(at), dtype=torch.bool)
        for chunk in chunks_of(len(at), rows_at_once(read, model.spec.vocab_size)):
            logits = head(read[chunk]).float()
            logs[chunk] = logits.log_softmax(-1).gather(-1, labels[chunk, None])[:, 0].double().cpu()
            right[chunk] = (logits.argmax(-1) == labels[chunk]).cpu()
    sizes = [len(end) for end in ends]
    return [float(each.sum()) for each in logs.split(sizes)], [bool(each.all()) for each in right.split(sizes)]


def _padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask [batch, token] of rows, padded on the right."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    return ids, mask
