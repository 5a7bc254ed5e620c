"""The JSON of answers, whole and piece by piece: completions and chats differ in names, and are otherwise one thing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anyformer.generation import Chosen
from anyformer.serving.asked import Asked
from anyformer.serving.choice import Choice, chat_logprobs, completion_logprobs, read_tokens
from anyformer.text import Tokenizer

Route = Literal["completion", "chat"]
HEADINGS: Mapping[Route, tuple[str, str, str]] = {  # how an id begins; the kinds of a whole answer and of a piece
    "completion": ("cmpl-", "text_completion", "text_completion"),
    "chat": ("chatcmpl-", "chat.completion", "chat.completion.chunk"),
}


class Answer:
    """The answer to one request. `prompts` are the token ids that its choices go on from."""

    def __init__(
        self, route: Route, name: str, asked: Asked, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]
    ) -> None:
        self.route, self.asked, self.tokenizer, self.prompts = route, asked, tokenizer, prompts
        begin, self.whole_object, self.piece_object = HEADINGS[route]
        self.heading = {"id": begin + secrets.token_hex(12), "created": int(time.time()), "model": name}

    def usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Tokens read and written; a prompt with several choices is counted once."""
        read, written = sum(map(len, self.prompts)), sum(choice.n_written for choice in choices)
        known = sum(choice.n_known for choice in choices[:: self.asked.n])
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": known},
        }

    def whole(self, choices: Sequence[Choice], echoed: Sequence[tuple[str, list[Chosen]]] = ()) -> dict[str, Any]:
        """The answer as one object; `echoed` are the text and the tokens that each choice begins with."""
        found = []
        for choice in choices:
            text, tokens = choice.taken()
            before, read = echoed[choice.index] if echoed else ("", [])
            said, reason = self._said(choice, text)
            content = {"text": before + text}
            if self.route == "chat":
                content = {"message": {"role": "assistant", "content": text, **said}}
            placed = read_tokens(self.tokenizer, read, before)
            placed += [(token, len(before) + at) for token, at in tokens]
            found.append(self._choice(choice, content, placed, reason))
        return {**self.heading, "object": self.whole_object, "choices": found, "usage": self.usage(choices)}

    def begin(self, choice: Choice) -> dict[str, Any] | None:
        """The piece before the first text of a choice: a chat says who speaks."""
        if self.route == "completion":
            return None
        return self._piece(self._choice(choice, {"delta": {"role": "assistant", "content": ""}}, [], None))

    def piece(self, choice: Choice) -> dict[str, Any] | None:
        """What is new of a choice; None where nothing is. What may be a call is told when it is whole."""
        if not choice.ended and (not choice.text or self.asked.tools.callable):
            return None
        text, tokens = choice.taken()
        said, reason = self._said(choice, text)
        for i, call in enumerate(said.get("tool_calls", [])):
            call["index"] = i
        content = {"text": text} if self.route == "completion" else {"delta": said}
        return self._piece(self._choice(choice, content, tokens, reason))

    def last(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The piece of how many tokens there were."""
        return {**self.heading, "object": self.piece_object, "choices": [], "usage": self.usage(choices)}

    def _said(self, choice: Choice, text: str) -> tuple[dict[str, Any], str | None]:
        """(content and calls of tools, those that there are, why the choice ended) of what is new of a chat."""
        said, calls = self.asked.tools.read(text)
        if not calls:
            return {"content": said} if said else {}, choice.finish_reason
        reason = "tool_calls" if choice.finish_reason == "stop" else choice.finish_reason
        return {"content": said or None, "tool_calls": calls}, reason

    def _piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self.heading, "object": self.piece_object, "choices": [choice]}

    def _choice(
        self, choice: Choice, content: dict[str, Any], tokens: Sequence[tuple[Chosen, int]], reason: str | None
    ) -> dict[str, Any]:
        said = None
        if self.asked.likeliest is not None and tokens:
            describe = completion_logprobs if self.route == "completion" else chat_logprobs
            said = describe(self.tokenizer, tokens)
        return {
            "index": choice.index,
            **content,
            "logprobs": said,
            "finish_reason": reason,
        }
