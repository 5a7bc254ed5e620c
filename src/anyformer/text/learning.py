"""What a tokenizer learns from: a corpus in small pieces, all of them as long as what is learnt fits into memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from anyformer.text.corpus import Corpus
from anyformer.text.pieces import MARKS, last_cut

PIECE = 1 << 15  # characters; the library holds 256 pieces at a time
NBYTES = 1 << 26  # of a larger corpus evenly spread pieces are learnt from
_WORD = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class Lesson:
    """What a tokenizer learns from: a corpus, or every `stride`-th piece of it where that is too much.

    It is too much above NBYTES, and where the different words have more than `table` characters together, which the
    library holds in memory, at about 100 bytes each. Exactly the corpus otherwise.
    """

    corpus: Corpus
    table: int | None

    def pieces(self) -> Iterator[str]:
        """What is learnt from."""
        return islice(self._all(), 0, None, self.stride)

    @cached_property
    def stride(self) -> int:
        """1 where all is learnt from; else a power of 2."""
        level = max(0, -(-self.corpus.nbytes // NBYTES) - 1).bit_length()
        if self.table is None or self.corpus.nbytes <= self.table:
            return 1 << level
        held: dict[str, int] = {}  # words, with how often the number of a piece that has it can be halved
        size = 0
        for number, piece in enumerate(self._all()):
            halved = (number & -number).bit_length() - 1 if number else 64
            if halved < level:
                continue
            for word in set(_WORD.findall(piece)):
                before = held.get(word)
                if before is None:
                    size += len(word)
                if before is None or before < halved:
                    held[word] = halved
            while size > self.table and level < 64:
                level += 1
                held = {word: halvings for word, halvings in held.items() if halvings >= level}
                size = sum(map(len, held))
        return 1 << level

    def _all(self) -> Iterator[str]:
        """The documents in order; one of more than PIECE characters in pieces, which part a word only if they must."""
        left, of = "", 0
        for number, text in self.corpus.pieces():
            if number != of:
                yield left
                left, of = "", number
            left += text
            start = 0
            while len(left) - start > PIECE:
                part = left[start : start + PIECE + 1]
                cut = last_cut(part, PIECE) or last_cut(part, PIECE, MARKS) or PIECE
                yield part[:cut]
                start += cut
            left = left[start:]
        yield left
