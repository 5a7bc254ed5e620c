"""Lines in, lines out: each line of a source is translated, in batches of like length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyformer.errors import InputError
from anyformer.generation.beam import BeamSearch
from anyformer.generation.decode import n_positions
from anyformer.generation.text import encode_source, generate_text
from anyformer.model import Transformer
from anyformer.text import Tokenizer

LONGER, MORE = 2, 10  # a translation has at most twice the source's tokens and ten more (Vaswani et al. allow 50 more)


def translate(
    model: Transformer,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    search: BeamSearch | None = None,
    max_new_tokens: int | None = None,
    batch_tokens: int = 4096,
    on_done: Callable[[int], None] | None = None,
) -> list[str]:
    """Return a line for each line, in order; a blank one is answered with an empty one, and never shown to the model.

    `search` None is greedy. `max_new_tokens` None allows twice the longest source of a batch and ten more.
    `batch_tokens`: sources of a batch times the longest of them. `on_done` is told how many lines have been answered.
    Raises InputError for a model without an encoder and for a line beyond the positions it has learned.
    """
    if model.encoder is None:
        raise InputError("this model has no encoder to read a source; it continues a prompt instead")
    lengths = {i: len(encode_source(tokenizer, line)) for i, line in enumerate(lines) if line.strip()}
    _refuse_long(model, lengths)
    limit = n_positions(model.spec)
    answers = [""] * len(lines)
    done = len(lines) - len(lengths)
    for batch in batches(lengths, batch_tokens):
        most = LONGER * lengths[batch[-1]] + MORE if max_new_tokens is None else max_new_tokens
        most = most if limit is None or max_new_tokens is not None else min(most, limit - 1)
        found = generate_text(model, tokenizer, [lines[i] for i in batch], max_new_tokens=most, search=search)
        for i, each in zip(batch, found, strict=True):
            answers[i] = " ".join(each.text.split("\n")).strip()
        done += len(batch)
        if on_done is not None:
            on_done(done)
    return answers


def batches(lengths: dict[int, int], batch_tokens: int) -> list[list[int]]:
    """The numbers of the lines, shortest first, in batches that pad to at most so many tokens, or of one line."""
    found: list[list[int]] = []
    for i in sorted(lengths, key=lambda number: (lengths[number], number)):
        if found and (len(found[-1]) + 1) * lengths[i] <= batch_tokens:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _refuse_long(model: Transformer, lengths: dict[int, int]) -> None:
    assert model.spec.encoder is not None
    learned = (getattr(term, "n_positions", None) for term in model.spec.encoder.embedding.terms)
    limit = min((n for n in learned if n is not None), default=None)
    for i, length in lengths.items():
        if limit is not None and length > limit:
            raise InputError(
                f"line {i + 1} of the source is {length} tokens long, beyond the {limit} positions that this model has "
                "learned; split it"
            )
