"""A text, a pair of texts or a row of words as one input: opened, parted and closed as the tokenizer's own rules say.

Those rules are the post-processor of its `tokenizer.json`: BERT's is `[CLS] a [SEP] b [SEP]` with the types 0 and 1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.tokenizer_file import guarded

if TYPE_CHECKING:
    import tokenizers


class Framed(NamedTuple):
    """One input."""

    ids: np.ndarray  # [token] int64, special tokens included
    types: np.ndarray  # [token] int64, which text of a pair, as the tokenizer says
    firsts: tuple[int, ...]  # of words: the place of each one's first token; -1 for one that was cut away
    cut: int  # tokens that there was no room for


def framed(inner: tokenizers.Tokenizer, texts: Sequence[str], longest: int | None, *, words: bool) -> Framed:
    """One or two texts, or `words`, as one input of at most `longest` tokens; the longer text is cut first.

    `inner` takes what is spelled like a special token for text.
    Raises TextError where there is no room for the special tokens, and for a word that no token stands for.
    """
    sides = [" ".join(texts)] if words else list(texts)
    each = [inner.encode(side, add_special_tokens=False) for side in sides]
    firsts = _firsts(texts, each[0]) if words else ()
    specials = inner.num_special_tokens_to_add(len(each) > 1)
    lengths = [len(side.ids) for side in each]
    kept = _kept(lengths, None if longest is None else longest - specials)
    for side, length in zip(each, kept, strict=True):
        side.truncate(length)
    whole = inner.post_process(each[0], each[1] if len(each) > 1 else None, True)
    places = np.flatnonzero(np.array(whole.special_tokens_mask) == 0)
    at = tuple(int(places[first]) if first < len(places) else -1 for first in firsts)
    ids, types = (np.array(each, dtype=np.int64) for each in (whole.ids, whole.type_ids))
    return Framed(ids, types, at, sum(lengths) - sum(kept))


def around(inner: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer's own rules put before a text, and those behind it. Raises TextError unless it is there once."""
    from tokenizers import Tokenizer, models

    text = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).encode("a")  # a token, whatever `inner` makes of text
    with guarded("the rules of this tokenizer (post_processor) cannot be followed"):
        whole = inner.post_process(text)
    if (n := whole.special_tokens_mask.count(0)) != 1:
        raise TextError(f"the rules of this tokenizer (post_processor) have a text {n} times, not once; mend them")
    at = whole.special_tokens_mask.index(0)
    return whole.ids[:at], whole.ids[at + 1 :]


def with_frame(inner: tokenizers.Tokenizer, before: list[int], behind: list[int]) -> tokenizers.Tokenizer:
    """A tokenizer whose rules put these ids before every input, and those behind each text of it."""
    from tokenizers import Tokenizer, processors

    own = Tokenizer.from_str(inner.to_str())
    first, last = ([own.id_to_token(i) for i in side] for side in (before, behind))
    frame = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{each}:1" for each in ("$B", *last))],
        special_tokens=[(own.id_to_token(i), i) for i in dict.fromkeys((*before, *behind))],
    )
    # Byte-level rules, where there are any, only trim offsets.
    rules = json.loads(inner.to_str())["post_processor"] or {}
    trims = [each for each in rules.get("processors", [rules]) if each.get("type") == "ByteLevel"]
    kept = [processors.ByteLevel(trim_offsets=each.get("trim_offsets", True)) for each in trims]
    own.post_processor = processors.Sequence([*kept, frame]) if kept else frame
    return own


def _kept(lengths: list[int], room: int | None) -> list[int]:
    """How many tokens of each text are kept."""
    if room is None or sum(lengths) <= room:
        return lengths
    if room < len(lengths):
        raise TextError(
            f"inputs of {max(room, 0)} tokens beside the special ones have no room for text; make them longer"
        )
    if len(lengths) == 1:
        return [room]
    short = min(*lengths, room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]


def _firsts(words: Sequence[str], encoding: tokenizers.Encoding) -> tuple[int, ...]:
    """The number of the first token of each word of a text that they make with a space between two."""
    found, token, start, offsets = [], 0, 0, encoding.offsets
    for word in words:
        end = start + len(word)
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        if token == len(offsets) or offsets[token][0] >= end or (found and found[-1] == token):
            raise TextError(
                f"the word {word!r} has no token of its own in this tokenizer; leave it out, or use another"
            )
        found.append(token)
        start = end + 1
    return tuple(found)
