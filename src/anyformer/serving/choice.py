"""One text of an answer while it grows: its characters as they become certain, and what is said of its tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from anyformer.generation import Chosen, GrowingText
from anyformer.text import Tokenizer
from anyformer.text.byte_level import token_bytes

LEAST = -9999.0  # what JSON has for -inf, as OpenAI's interface writes it


class Choice:
    """Growing text number `index` of an answer.

    `text`, `tokens`: what has become certain since they were last taken, each token with the character it begins at.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.index, self.tokenizer = index, tokenizer
        self.growing = GrowingText(tokenizer, list(prompt), stop, index, self._show)
        self.text = ""
        self.tokens: list[tuple[Chosen, int]] = []
        self.n_written = self.n_said = 0
        self.n_known = 0  # tokens of its prompt that were read with an earlier one
        self.ended = False

    def push(self, token: Chosen) -> None:
        """Take a new token."""
        self.n_written += 1
        self.growing.push(token.token_id)
        piece = self.growing.newest
        self.tokens.append((token, self.n_said + _before(self.tokenizer, token.token_id, piece)))
        self.n_said += len(piece)

    def finish(self) -> None:
        """Let go what was held back."""
        if not self.ended:
            self.ended = True
            self.growing.finish()

    @property
    def done(self) -> bool:
        """Whether a stop string has ended it."""
        return self.growing.done

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it grows."""
        if not self.ended:
            return None
        return "length" if self.growing.result.ended_by == "length" else "stop"

    def taken(self) -> tuple[str, list[tuple[Chosen, int]]]:
        """(text, tokens) since the last time."""
        found = self.text, self.tokens
        self.text, self.tokens = "", []
        return found

    def _show(self, _: int, piece: str) -> None:
        self.text += piece


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    """(text, bytes) of a token within a text, its space with it; special ones as the vocabulary writes them."""
    spelling = tokenizer.spelling(token)
    if spelling is None:
        return "", []
    if tokenizer.kind == "byte-level-bpe" and token not in tokenizer.special_ids:
        content = token_bytes(spelling)
        try:
            return content.decode(), list(content)
        except UnicodeDecodeError:  # a part of a character: as OpenAI's interface writes it
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), list(content)
    special = token in tokenizer.special_ids
    text = tokenizer.decode([token], specials=True) if special else tokenizer.decode_behind([token], [token])
    return text, list(text.encode())


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[tuple[Chosen, int]]) -> dict[str, Any]:
    """What a chat's answer says of tokens."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        text, content = spelled(tokenizer, token)
        return {"token": text, "logprob": _finite(logprob), "bytes": content}

    return {
        "content": [
            {**one(each.token_id, each.logprob), "top_logprobs": [one(*pair) for pair in each.likeliest]}
            for each, _ in tokens
        ],
        "refusal": None,
    }


def read_tokens(tokenizer: Tokenizer, tokens: Sequence[Chosen], text: str) -> list[tuple[Chosen, int]]:
    """The tokens of a prompt, each with the character of its `text` at which it begins; what opens it may not be in there."""
    stream, at, found = tokenizer.stream(), 0, []
    for each in tokens:
        piece = stream.push(each.token_id)
        found.append((each, at + _before(tokenizer, each.token_id, piece)))
        special = spelled(tokenizer, each.token_id)[0] if each.token_id in tokenizer.special_ids else ""
        at += len(piece) + (len(special) if text.startswith(special, at) else 0)
    return found


def _before(tokenizer: Tokenizer, token: int, piece: str) -> int:
    """Characters of a piece, which a token has made certain, that are earlier tokens': bytes that are none after all."""
    own = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(spelled(tokenizer, token)[1]))
    return max(0, _broken(piece) - _broken(own))


def _broken(text: str) -> int:
    return len(text) - len(text.lstrip("\ufffd"))


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[tuple[Chosen, int]]) -> dict[str, Any]:
    """What a completion says of tokens, each of which begins at a character.

    Two tokens may be written alike, and are then one key: the likelier one counts.
    """
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for each, start in tokens:
        text, _ = spelled(tokenizer, each.token_id)
        tops: dict[str, float | None] | None = None
        if each.logprob is not None:
            tops = {}
            for token, value in (*each.likeliest, (each.token_id, each.logprob)):
                tops.setdefault(spelled(tokenizer, token)[0], _finite(value))
        found["tokens"].append(text)
        found["token_logprobs"].append(_finite(each.logprob))
        found["top_logprobs"].append(tops)
        found["text_offset"].append(start)
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None else max(value, LEAST)
