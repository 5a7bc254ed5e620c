"""Texts larger than memory's share, in pieces that have the ids of the whole.

A text is cut where a word ends for every rule that there is: after a letter or digit, before a blank; or after a line. Rules of
unknown kind (a tokenizer that was loaded) are asked: windows that overlap are encoded, and cut where both have the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from anyformer.errors import TextError
from anyformer.text.corpus import Corpus, by_document
from anyformer.text.tokenizer import Tokenizer

SHARE = 1 << 18  # characters of a text that are encoded at once
CONTEXT = 1 << 12  # characters by which windows overlap on either side of a cut
AGREED = 32  # tokens on either side of a cut in which they agree
WHOLE = 1 << 24  # characters at most that are encoded at once where there is no place to cut

BLANKS, MARKS = " \t\r\n", " \t\r\n!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~、。，！？：；"


def last_cut(text: str, end: int, before: str = BLANKS) -> int:
    """The last place up to `end` after a letter or digit and before one of the characters `before`, or after a line's end
    that is the only blank there; 0 if there is none."""
    for at in range(min(end, len(text) - 1), 1, -1):
        if text[at] in before and text[at - 1].isalnum():
            return at
        if text[at - 1] == "\n" and not text[at - 2].isspace() and not text[at].isspace():
            return at
    return 0


Part = str | np.ndarray
"""Of a text: some of it, whose ids are among those of the whole; or ids, where only what goes on beside it told them."""


def parts_of_documents(tokenizer: Tokenizer, corpus: Corpus) -> Iterator[tuple[int, Part]]:
    """(number of the document, the next part of it), all in order, always the same ones. Raises TextError as `parts_of` does."""
    for number, texts in by_document(corpus.same_pieces()):
        for part in parts_of(tokenizer, texts, corpus.name(number)):
            yield number, part


def encoded_documents(tokenizer: Tokenizer, corpus: Corpus) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the document, the next of its ids), all in order. Raises TextError as `parts_of` does."""
    for number, texts in by_document(corpus.pieces()):
        for part in parts_of(tokenizer, texts, corpus.name(number)):
            yield number, ids_of(tokenizer, part)


def ids_of(tokenizer: Tokenizer, part: Part) -> np.ndarray:
    """The ids of a part, in the tokenizer's `dtype`."""
    return tokenizer.array(part) if isinstance(part, str) else part


def parts_of(tokenizer: Tokenizer, pieces: Iterable[str], name: str) -> Iterator[Part]:
    """The parts of a text that comes in pieces: their ids, joined, are `tokenizer.encode` of the whole.

    Raises TextError, with the `name` of the text, where it has no place to be cut: a word of more than WHOLE characters
    that these rules make one token.
    """
    rest, text = iter(pieces), ""
    while True:
        text = _filled(text, rest, SHARE)
        if len(text) <= SHARE:
            yield text
            return
        # GPT-2's expression, which is that of all fast ones, ends a word before a mark too.
        cut = last_cut(text, SHARE, MARKS) if tokenizer.fast else 0
        if not cut:
            break
        yield text[:cut]
        text = text[cut:]
    for ids in _in_windows(tokenizer, text, rest, name):
        yield ids.astype(tokenizer.dtype)


class _Window:
    """A part of a text and its tokens, with the characters [token, 2] that each stands for."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        found = tokenizer.encoding(text)
        self.ids = np.array(found.ids, dtype=np.int64)
        self.spans = np.array(found.offsets, dtype=np.int64).reshape(-1, 2)

    def first_from(self, place: int) -> int | None:
        """The number of the first token from a place on; None where no token begins there or a token goes across."""
        number = int(np.searchsorted(self.spans[:, 1], place, side="right"))
        return number if number < len(self.ids) and self.spans[number, 0] >= place else None


def _in_windows(tokenizer: Tokenizer, text: str, rest: Iterator[str], name: str) -> Iterator[np.ndarray]:
    window, given = _Window(tokenizer, text[:SHARE]), 0
    while len(text := _filled(text, rest, 2 * SHARE)) > SHARE:
        for cut in _cuts(text, window):
            begin = cut - CONTEXT
            following = _Window(tokenizer, text[begin : begin + SHARE])
            if numbers := _agreed(window, cut, following, cut - begin):
                break
        else:
            if len(text := _filled(text, rest, WHOLE)) > WHOLE:
                where = f"{name} has no place within {SHARE:,} characters where this tokenizer's tokens could be parted"
                raise TextError(f"{where}, and is too long to be encoded at once; divide it into several documents")
            window = _Window(tokenizer, text)
            break
        yield window.ids[given : numbers[0]]
        text, window, given = text[begin:], following, numbers[1]
    yield window.ids[given:]


def _cuts(text: str, window: _Window) -> Iterator[int]:
    """Places to try, the surest kind first at each of several distances from the window's end."""
    for end in range(SHARE - CONTEXT, SHARE // 2, -SHARE // 16):
        for before in (BLANKS, MARKS):
            cut = last_cut(text, end, before)
            if cut > SHARE // 2:
                yield cut
        number = int(np.searchsorted(window.spans[:, 0], end))
        if number and SHARE // 2 < (start := int(window.spans[number - 1, 0])) < SHARE - CONTEXT:
            yield start


def _agreed(one: _Window, cut: int, other: _Window, same: int) -> tuple[int, int] | None:
    """The numbers of the first token from a cut on in two windows; None where the tokens around it differ.

    The tokens of a byte-pair encoding are right where each two neighbours are, so that one on either side decides; what more
    is compared is for the rules that cut words. The tokens at the windows' own ends are left out.
    """
    i, j = one.first_from(cut), other.first_from(same)
    if i is None or j is None:
        return None
    before, after = min(AGREED, i, j - 1), min(AGREED, len(one.ids) - 1 - i, len(other.ids) - 1 - j)
    if before < 1 or after < 1:
        return None
    a, b = slice(i - before, i + after), slice(j - before, j + after)
    same_places = np.array_equal(one.spans[a] - cut, other.spans[b] - same)
    return (i, j) if same_places and np.array_equal(one.ids[a], other.ids[b]) else None


def _filled(text: str, rest: Iterator[str], size: int) -> str:
    """The text, with what comes after it, until it is longer than `size` or nothing comes."""
    parts, length = [text], len(text)
    while length <= size and (more := next(rest, None)) is not None:
        parts.append(more)
        length += len(more)
    return "".join(parts)
