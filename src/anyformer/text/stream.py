"""Text of tokens that come one at a time."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from anyformer.text.byte_level import token_bytes

if TYPE_CHECKING:
    from anyformer.text.tokenizer import Tokenizer


class TextStream:
    """Decodes one token at a time: the pieces of `push` and `finish`, joined, are `tokenizer.decode` of all the ids.

    What is certain comes at once, half a character waits for its other half.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._shown = 0  # of self._ids, how many are already on the screen

    def push(self, token: int) -> str:
        """The text that `token` makes certain; empty while a character is incomplete."""
        spelling = self._tokenizer.spelling(token)
        if spelling is None or token in self._tokenizer.special_ids:
            return ""
        if self._tokenizer.kind == "byte-level-bpe":
            return self._bytes.decode(token_bytes(spelling))
        self._ids.append(token)
        # A run of <0xNN> tokens is decoded as a whole (one bad byte turns all of it into U+FFFD): it waits for its end.
        if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
            return ""
        text = self._new_text()
        if text.endswith("\ufffd"):  # half a character, for all that is known
            return ""
        if text:
            # What was shown last stays in the window: a token's leading space is kept only where it isn't the first.
            self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return text

    def finish(self) -> str:
        """What was held back, with U+FFFD for what never became a character; the stream then starts afresh."""
        text = self._bytes.decode(b"", final=True) + self._new_text()
        self._bytes.reset()
        self._ids, self._shown = [], 0
        return text

    def _new_text(self) -> str:
        return self._tokenizer.decode_behind(self._ids[: self._shown], self._ids[self._shown :])
