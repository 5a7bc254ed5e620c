"""What a model reads before it writes, as ids: prompts, an encoder's sources; and what it is to learn to write behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.chat import Chat, Message, Tool
from anyformer.text.tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt, behind what opens one; an empty prompt is `begin_of_text`. Raises TextError where there is none."""
    ids, before = tokenizer.encode(prompt, specials=True), opening(tokenizer)
    if ids[: len(before)] != before:
        ids = [*before, *ids]
    if not ids and tokenizer.begin_of_text is not None:
        ids = [tokenizer.begin_of_text]
    if not ids:
        raise TextError("the prompt is empty and this tokenizer has no token that begins a text; give a prompt")
    return ids


def opening(tokenizer: Tokenizer) -> list[int]:
    """The ids before a prompt: those that the tokenizer's rules put before a text, as transformers has them.

    Where it has no rules, `begin_of_text` if the configuration says `add_bos_token: true`; tokenizers trained here say so.
    """
    begin = tokenizer.begin_of_text
    if not any(tokenizer.around) and begin is not None and tokenizer.config.get("add_bos_token", False):
        return [begin]
    return tokenizer.around[0]


def encode_source(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of what an encoder reads, between those `around_source` unless the text has them."""
    ids, (before, behind) = tokenizer.encode(text, specials=True), tokenizer.around_source
    begun, ended = ids[: len(before)] == before, ids[len(ids) - len(behind) :] == behind
    return [*([] if begun else before), *ids, *([] if ended else behind)]


class Answered(NamedTuple):
    """A text, and which of its tokens a model is to learn to write; the last one is."""

    ids: np.ndarray  # [token] int64
    learned: np.ndarray  # [token] bool


def answered_prompt(tokenizer: Tokenizer, prompt: str, answer: str) -> Answered:
    """A prompt as `generate` reads it, and the answer, which `end_of_text` closes. Raises TextError as `encode_prompt` does."""
    asked = encode_prompt(tokenizer, prompt)
    own, closing = _behind(tokenizer, asked, encode_prompt(tokenizer, prompt + answer), answer), tokenizer.end_of_text
    own = _written(tokenizer, own if closing is None or own[-1:] == [closing] else [*own, closing])
    return _answered(asked + own, [False] * len(asked) + [True] * len(own))


def answered_turns(
    chat: Chat, messages: Sequence[Message], first: int = 0, tools: Sequence[Tool] = ()
) -> list[Answered]:
    """A conversation in which the assistant's messages, from number `first` on, are the answers; calls of `tools` too.

    Before each of them stand the very tokens that a model is given when it is to write it. So turns stand in one text as long
    as the template and the tokenizer leave what was before as it was; where they don't, where a template drops what was
    reasoned in past turns, say, another text begins. Raises TextError for what the template refuses, or opens otherwise than
    it says that an answer is opened.
    """
    tokenizer, found = chat.tokenizer, list[tuple[list[int], list[bool]]]()
    for i, message in enumerate(messages):
        if i < first or message["role"] != "assistant":
            continue
        before = chat.text(messages[:i], tools=tools)
        whole = chat.text(messages[: i + 1], tools=tools, answers=False)
        if not whole.startswith(before):
            raise TextError(
                f"the chat template writes message {i + 1} otherwise than it opens an answer that is to be written, so that "
                'no model would be asked as it was taught; give "prompt" and "completion" as texts'
            )
        asked, said = (tokenizer.encode(text, specials=True) for text in (before, whole))
        if not (own := _written(tokenizer, _behind(tokenizer, asked, said, whole[len(before) :]))):
            continue
        ids, learned = found[-1] if found else ([], [])
        if found and asked[: len(ids)] == ids:
            found.pop()
        else:
            learned = []
        unlearned = [False] * (len(asked) - len(learned))
        found.append((asked + own, learned + unlearned + [True] * len(own)))
    return [_answered(ids, learned) for ids, learned in found]


def _behind(tokenizer: Tokenizer, asked: list[int], both: list[int], answer: str) -> list[int]:
    """The tokens of an answer: those of both texts at once, unless one reaches over the end of what was asked."""
    n = len(asked)
    return both[n:] if both[:n] == asked else tokenizer.encode(answer, specials=True)


def _written(tokenizer: Tokenizer, answer: list[int]) -> list[int]:
    """What a model is to write of an answer: nothing behind the first token that ends a text, where it would stop."""
    ends = (i + 1 for i, token in enumerate(answer) if token in tokenizer.closing_ids)
    return answer[: next(ends, len(answer))]


def _answered(ids: list[int], learned: list[bool]) -> Answered:
    return Answered(np.array(ids, dtype=np.int64), np.array(learned))
