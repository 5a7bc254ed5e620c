"""Text out of a model: prompts in, continuations out, whole or piece by piece, each up to its first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from anyformer.errors import InputError, cut
from anyformer.generation.beam import BeamSearch, search_ids
from anyformer.generation.compiled import CompiledStep
from anyformer.generation.decode import Decoding
from anyformer.generation.guesses import Guessing
from anyformer.generation.prefixes import Prefixes
from anyformer.generation.prompt import check_writes, padded
from anyformer.generation.sampling import GREEDY, Sampling
from anyformer.generation.speculative import SpeculativeDecoding
from anyformer.model import Transformer
from anyformer.text import Tokenizer
from anyformer.text.prompts import encode_prompt, encode_source

# tokens of the prompt that a decoder of text is shown first: how a token is spelled depends on the one before
PRIMER = 16


@dataclass
class Continuation:
    """One prompt's text while it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    ended_by: Literal["length", "end_of_text", "stop"] = "length"
    passes: int | None = None  # of the model that checked guesses; None: it wrote a token a pass, or searched


def generate_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_new_tokens: int = 50,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    stop: Sequence[str] = (),
    on_text: Callable[[int, str], None] | None = None,
    cache: bool = True,
    search: BeamSearch | None = None,
    guessing: Guessing | None = None,
    compiled: CompiledStep | None = None,
    prefixes: Prefixes | None = None,
) -> list[Continuation]:
    """What follows each prompt, a text or ids: text without the prompt and without the stop string, tokens, why it ended.

    Of a model with an encoder the prompts are what that reads, and the text is its answer. `search` looks for the
    likeliest text instead of writing token by token; then text is told of when all is found. `guessing` writes the same,
    faster where guesses are good, a row after the other; drawn, a text of the same distribution (`SpeculativeDecoding`).
    `compiled` is the model's step behind the prompts as one graph, which writes the same text. `prefixes`: what was read before,
    of which one prompt alone reads no common beginning again; it leaves there what it read.

    `on_text(row, piece)` is called as text becomes certain: whole characters, and nothing that a stop string would take
    back. Row i draws with seed + i, alone or in a batch. A text begins with what the tokenizer puts there
    (`text.prompts.opening`) and ends at any of its `closing_ids`. Raises TextError for an empty prompt that nothing begins,
    InputError for prompts and new tokens that the model cannot take.
    """
    if guessing is not None and (search is not None or not cache):
        raise InputError("guesses are checked through the cache, and not by beam search; leave one of them out")
    if compiled is not None and (search is not None or guessing is not None):
        raise InputError(
            "a compiled step writes a token of each row, and searches nothing; leave the search or the guesses out"
        )
    if prefixes is not None and (search is not None or not cache or len(prompts) != 1 or model.encoder is not None):
        raise InputError(
            "what was read before serves one prompt of a decoder alone, through the cache and without beam search"
        )
    check_writes(model.spec)
    ids = _ids_of(prompts, model, tokenizer)
    if not ids:
        return []
    device = model.head().table.weight.device
    given = (model, *padded(ids, device))
    before, answer = ids, None
    if model.encoder is not None:
        before, answer = [[] for _ in ids], torch.tensor([_opening(tokenizer)] * len(ids), device=device)
    texts = [GrowingText(tokenizer, row, stop, i, on_text) for i, row in enumerate(before)]
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "decoder_input_ids": answer,
        "closing_ids": tokenizer.closing_ids,
        "sampling": sampling,
    }
    if search is not None:
        counted = 0 if answer is None else answer.shape[1] - 1
        found = search_ids(*given, how=search, counted=counted, **options)
        return [text.whole(best.token_ids) for text, (best, *_) in zip(texts, found, strict=True)]
    options["seed"] = seed
    begun = None
    if prefixes is not None and (guessing is None or not guessing.follows):
        begun = prefixes.taken(ids[0], 0 if guessing is None else guessing.most)
    steps = (
        Decoding(*given, cache=cache if begun is None else begun, compiled=compiled, **options)
        if guessing is None
        else SpeculativeDecoding(*given, guessing, begun=begun, **options)
    )
    said = list[int]()
    for step in steps:
        if prefixes is not None and not said and isinstance(steps, Decoding):
            prefixes.keep_prompt(ids[0], steps.cache, max_new_tokens)
        for row, token in step.items():
            said.append(token)
            texts[row].push(token)
            if texts[row].done:
                steps.stop(row)
    if prefixes is not None:
        read = steps.read()
        prefixes.keep([*ids[0], *said][: read.n], read)  # of tokens told: guesses that stood may go on behind an end
    written = [text.finish() for text in texts]
    if isinstance(steps, SpeculativeDecoding):
        for each, passes in zip(written, steps.passes, strict=True):
            each.passes = passes
    return written


def _ids_of(prompts: Sequence[str | Sequence[int]], model: Transformer, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each prompt. Raises InputError for one without a token, and for a tokenizer of another model."""
    if isinstance(prompts, str):  # whose letters would be prompts
        raise InputError(f"prompts = {cut(prompts, 40)!r} must be a list; put one prompt into brackets")
    ids = [encode_read(model, tokenizer, prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    if not all(ids):
        raise InputError("a prompt without a token cannot be continued; give it at least one")
    limit = model.spec.vocab_size
    if tokenizer.vocab_size > limit and any(max(row) >= limit for row in ids):
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {limit}; they do not belong together"
        )
    return ids


def _opening(tokenizer: Tokenizer) -> Sequence[int]:
    """The tokens that begin an answer beside an encoder. Raises InputError where nothing says which."""
    if not tokenizer.answer_opening:
        raise InputError(
            "nothing says which token begins an answer: name it as decoder_start_token_id in generation_config.json"
        )
    return tokenizer.answer_opening


def encode_read(model: Transformer, tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that a model reads: of an encoder's source, or else of a prompt."""
    return (encode_prompt if model.encoder is None else encode_source)(tokenizer, text)


class GrowingText:
    """A continuation, the decoder that spells it and the stop strings that end it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: list[int],
        stop: Sequence[str],
        row: int,
        on_text: Callable[[int, str], None] | None,
    ) -> None:
        self.row, self.on_text, self.closing_ids = row, on_text, tokenizer.closing_ids
        self.stops, self.stream = StopStrings(stop), tokenizer.stream()
        self.result = Continuation()
        self.newest = ""  # what the last token has made certain, be it shown or waiting for a stop string
        primer = prompt[-PRIMER:]
        shown = sum(len(self.stream.push(token)) for token in primer)
        self.due = len(tokenizer.decode(primer)) - shown  # characters of the prompt that the stream still holds back

    @property
    def done(self) -> bool:
        return self.stops.met is not None

    def push(self, token: int) -> None:
        if token in self.closing_ids:
            self.newest = ""
            self.result.ended_by = "end_of_text"
            return
        self.result.token_ids.append(token)
        self._show(self.stops.push(self._new(self.stream.push(token))))

    def whole(self, token_ids: Sequence[int]) -> Continuation:
        """The continuation of tokens that are all known."""
        for token in token_ids:
            self.push(token)
            if self.done:
                break
        return self.finish()

    def finish(self) -> Continuation:
        self._show(self.stops.push(self._new(self.stream.finish())) + self.stops.finish())
        if self.done:
            self.result.ended_by = "stop"
        return self.result

    def _new(self, text: str) -> str:
        skipped = min(self.due, len(text))
        self.due -= skipped
        self.newest = text[skipped:]
        return self.newest

    def _show(self, text: str) -> None:
        self.result.text += text
        if text and self.on_text is not None:
            self.on_text(self.row, text)


class StopStrings:
    """Lets text through up to the stop string that is complete first (of several at once, the one that starts first).

    What may be the beginning of a stop string waits until it is clear, so where pieces are cut changes nothing.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise InputError(f"stop = {stops!r} must be a list of strings that are not empty")
        self._stops = tuple(stops)
        self._waiting = ""
        self.met: str | None = None  # the stop string that ended the text

    def push(self, piece: str) -> str:
        """What of the text is certain to come before a stop string; nothing once one is met."""
        if self.met is not None:
            return ""
        text = self._waiting + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.met = min(found)
            self._waiting = ""
            return text[:at]
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        begins = (i for i in range(len(text) - longest, len(text)) if any(s.startswith(text[i:]) for s in self._stops))
        certain = next(begins, len(text))
        self._waiting = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What still waited when the text ended by itself."""
        text, self._waiting = self._waiting, ""
        return text
