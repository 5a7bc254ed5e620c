"""One text of an answer while it grows: its characters as they become certain, and what is said of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.generation import Chosen, GrowingText
from anyformer.text import Tokenizer
from anyformer.text.byte_level import token_bytes

LEAST = -9999.0  # what JSON has for -inf, as OpenAI's interface writes it


class Choice:
    """Growing text number `index` of an answer.

    `text`, `tokens`: what has become certain since they were last taken.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.index, self.tokenizer = index, tokenizer
        self.growing = GrowingText(tokenizer, list(prompt), stop, index, self._show)
        self.text = ""
        self.tokens: list[Chosen] = []
        self.n_written = 0
        self.ended = False

    def push(self, token: Chosen) -> None:
        """Take a new token."""
        self.tokens.append(token)
        self.n_written += 1
        self.growing.push(token.token_id)

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

    def taken(self) -> tuple[str, list[Chosen]]:
        """(text, tokens) since the last time."""
        found = self.text, self.tokens
        self.text, self.tokens = "", []
        return found

    def _show(self, _: int, piece: str) -> None:
        self.text += piece


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    """(text, bytes) of a token by itself; special ones as the vocabulary writes them."""
    spelling = tokenizer.spelling(token)
    if spelling is None:
        return "", []
    if tokenizer.kind == "byte-level-bpe" and token not in tokenizer.special_ids:
        content = token_bytes(spelling)
        try:
            return content.decode(), list(content)
        except UnicodeDecodeError:  # a part of a character: as OpenAI's interface writes it
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), list(content)
    text = tokenizer.decode([token], specials=True)
    return text, list(text.encode())


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Chosen]) -> dict[str, Any]:
    """What a chat's answer says of tokens."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        text, content = spelled(tokenizer, token)
        return {"token": text, "logprob": _finite(logprob), "bytes": content}

    return {
        "content": [
            {**one(each.token_id, each.logprob), "top_logprobs": [one(*pair) for pair in each.likeliest]}
            for each in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[Chosen], start: int = 0) -> dict[str, Any]:
    """What a completion says of tokens, the first of which begins at character `start`.

    Two tokens may be written alike, and are then one key: the likelier one counts.
    """
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for each in tokens:
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
        start += len(text)
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None else max(value, LEAST)
