"""Which rows of a table of tokens a model of another vocabulary begins with.

A token that both have keeps its row; one that is new begins as the mean of what its text was spelled by, or of all, which is
known to disturb predictions least (Hewitt 2021, "Initializing new word embeddings for pretrained language models").
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from anyformer.surgery.plans import NEW, AxisPlan
from anyformer.text import Tokenizer
from anyformer.text.byte_level import token_bytes

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte that falls back to a token of its own


def rows_in_order(n: int, given: int) -> AxisPlan:
    """The same rows in the same order, and the mean of all for what is beyond."""
    if n <= given:
        return AxisPlan(torch.arange(n), given, f"the first {n:,} of {given:,} tokens")
    places = torch.cat((torch.arange(given), torch.full((n - given,), NEW)))
    everything = torch.arange(given)
    return AxisPlan(
        places, given, f"{n - given:,} more tokens, each the mean of all", dict.fromkeys(range(given, n), everything)
    )


def rows_by_text(new: Tokenizer, old: Tokenizer, n: int, given: int) -> AxisPlan:
    """The row of the token of the same text, or that opens or closes one; else the mean of those that its text is spelled by."""
    theirs = {_text(old, token): token for token in reversed(range(min(given, old.vocab_size)))}
    parts = [(each.begin_of_text, each.end_of_text, each.unknown, each.padding) for each in (new, old)]
    same = {token: other for token, other in zip(*parts, strict=True) if token is not None and other is not None}
    places, means, everything = torch.full((n,), NEW), dict[int, Tensor](), torch.arange(given)
    for token in range(n):
        text = _text(new, token) if token < new.vocab_size else None
        place = theirs.get(text, same.get(token)) if text is not None else None
        if place is not None and place < given:
            places[token] = place
            continue
        spelled = old.encode(text.decode(errors="ignore")) if isinstance(text, bytes) else []
        means[token] = torch.tensor(spelled) if spelled and max(spelled) < given else everything
    how = f"{n - len(means):,} of {n:,} tokens by their text, the others means of what they were spelled by"
    return AxisPlan(places, given, how, means)


def _text(tokenizer: Tokenizer, token: int) -> str | bytes | None:
    """The bytes that a token stands for, the spelling of one that stands for no text; None for an id without a token."""
    spelling = tokenizer.spelling(token)
    if spelling is None or token in tokenizer.special_ids:
        return spelling
    if tokenizer.kind == "byte-level-bpe":
        return token_bytes(spelling)
    if byte := BYTE.fullmatch(spelling):
        return bytes([int(byte[1], 16)])
    if tokenizer.kind == "wordpiece":
        return (spelling.removeprefix("##") if spelling.startswith("##") else f" {spelling}").encode()
    return spelling.replace("\u2581", " ").encode()
