"""Guesses at the next tokens, which a model checks several at a time: a smaller model's, the text's own, the model's own.

Prompt look-up: Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding). The model's own modules for later tokens:
DeepSeek-V3, arXiv:2412.19437, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import InputError
from anyformer.generation.decode import growing_cache
from anyformer.generation.prompt import check_prompts, competing, prompt_types, reads_more, rotating_by_length
from anyformer.generation.sampling import Sampling, pick
from anyformer.model import Output, Transformer
from anyformer.spec import ModelSpec, cached_calls


class Guessed(NamedTuple):
    """Tokens that may come next."""

    token_ids: list[int]
    probabilities: Tensor | None = None  # that they were drawn by, float64 [guess, vocab]; None: they were not drawn


class Prompt(NamedTuple):
    """What one row begins with."""

    ids: Tensor  # [1, token], of the decoder
    source: Tensor | None  # [1, source token], of the encoder where there is one
    max_new_tokens: int


class Guesser(Protocol):
    """Guesses at one growing text."""

    def __call__(
        self, text: Sequence[int], hidden: Tensor | None, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Guessed:
        """At most n tokens after `text`, of which the model has read all but the last.

        `hidden` [1, token, width] is what the model made of those tokens that were new since it was asked last; None: it has
        read none yet. What is drawn is drawn by `sampling`.
        """
        ...


class Guessing(Protocol):
    """A way to guess; `most` tokens a pass."""

    follows: ClassVar[bool]  # whether it must be told what the model makes of every token, from the first on

    @property
    def most(self) -> int: ...

    def begin(self, model: Transformer, prompt: Prompt) -> Guesser:
        """Who guesses at a row that `model` writes. Raises InputError where that cannot be."""
        ...


@dataclass(frozen=True)
class PromptLookup:
    """What followed the last tokens where they stood before: the latest place where `ngram` of them did, or else fewer."""

    follows: ClassVar[bool] = False
    most: int = 10
    ngram: int = 3

    def __post_init__(self) -> None:
        _check_most(self.most)
        if self.ngram < 1:
            raise InputError(f"ngram = {self.ngram} must be at least 1 token to look up")

    def begin(self, model: Transformer, prompt: Prompt) -> Guesser:
        """Looks up in the source too, which stands before the text."""
        source = [] if prompt.source is None else prompt.source[0].tolist()
        return _Lookup(source, self.ngram)


@dataclass(frozen=True)
class DraftModel:
    """What a smaller model of the same vocabulary writes."""

    follows: ClassVar[bool] = False
    model: Transformer
    most: int = 4

    def __post_init__(self) -> None:
        _check_most(self.most)

    def begin(self, model: Transformer, prompt: Prompt) -> Guesser:
        """Reads the prompt too. Raises InputError for a draft of another vocabulary, or one that cannot read the prompt."""
        ours, theirs = model.spec, self.model.spec
        if ours.vocab_size != theirs.vocab_size:
            raise InputError(
                f"the draft has {theirs.vocab_size} tokens and the model {ours.vocab_size}; take a draft of the same vocabulary"
            )
        if (ours.encoder is None) != (theirs.encoder is None):
            raise InputError("of the model and its draft one has an encoder; both must read the same prompt")
        check_can_forget(theirs, "the draft")
        read = prompt.ids if prompt.source is None else prompt.source
        decoder_ids = None if prompt.source is None else prompt.ids
        try:
            check_prompts(self.model, read, None, decoder_ids, prompt.max_new_tokens)
        except InputError as error:
            raise InputError(f"the draft cannot go along: {error}") from None
        return _Draft(Reader(self.model, prompt, self.most))


@dataclass(frozen=True)
class OwnModules:
    """What the model's own modules for later tokens (`ModelSpec.ahead`) say, a token each."""

    follows: ClassVar[bool] = True
    most: int = 1

    @classmethod
    def of(cls, spec: ModelSpec) -> OwnModules:
        """As many as the model has. Raises InputError for a model without."""
        if not spec.ahead:
            raise InputError(
                "this model has no modules that predict further ahead (Model.ahead); guess with a draft or by look-up"
            )
        return cls(len(spec.ahead))

    def begin(self, model: Transformer, prompt: Prompt) -> Guesser:
        """Raises InputError for a model without, or one whose modules hold a state."""
        if self.most > OwnModules.of(model.spec).most:
            raise InputError(f"most = {self.most} guesses, and the model has {len(model.spec.ahead)} modules for them")
        return _Own(model, prompt, self.most)


class Reader:
    """A model that reads a growing text of one row: its cache holds all but what is read next."""

    def __init__(self, model: Transformer, prompt: Prompt, slack: int, begun: KVCache | None = None) -> None:
        """`slack`: tokens that may be taken back at once, as in a cache that holds the beginning of the prompt."""
        self.n_prompt = prompt.ids.shape[1]
        length = self.n_prompt + prompt.max_new_tokens
        self.model, self.source = model, prompt.source
        self.cache = growing_cache(model, 1, self.n_prompt, length, slack=slack, begun=begun)
        self.types = prompt_types(model.spec, prompt.ids)

    def read(self, text: Sequence[int], n: int) -> Output:
        """The pass over what of `text` the cache does not hold, with the logits of the last n tokens."""
        at = self.cache.n
        ids = torch.tensor([text[at:]], device=self.cache.last.device)
        types = self.types
        if types is not None:
            types = torch.cat((types[:, at:], torch.ones_like(ids[:, max(0, self.n_prompt - at) :])), -1)
        read, written = (ids, None) if self.model.encoder is None else (self.source, ids)
        return self.model(read, token_type_ids=types, decoder_input_ids=written, cache=self.cache, logits_to_keep=n)

    def keep(self, n: int) -> None:
        """Forget all tokens but the first n."""
        if n < self.cache.n:
            self.cache.rewind(self.cache.n - n)


class _Lookup:
    def __init__(self, before: list[int], ngram: int) -> None:
        self.ngram = ngram
        self.text = before  # and what was written since
        self.n_before = len(before)
        self.ends: dict[tuple[int, ...], int] = {}  # of some tokens: the latest place right after them
        self._note(0)

    def __call__(
        self, text: Sequence[int], hidden: Tensor | None, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Guessed:
        last, start = text[-self.ngram :], len(self.text)
        self.text.extend(text[start - self.n_before :])
        # What ends with the last token is noted once it has a successor: else all would be found at the end itself.
        self._note(start - 1, len(self.text) - 1)
        for size in range(min(self.ngram, len(last)), 0, -1):
            found = self.ends.get(tuple(last[-size:]))
            if found is not None:
                return Guessed(self.text[found : found + n])
        return Guessed([])

    def _note(self, start: int, end: int | None = None) -> None:
        for i in range(max(0, start), len(self.text) if end is None else end):
            for size in range(1, min(self.ngram, i + 1) + 1):
                self.ends[tuple(self.text[i + 1 - size : i + 1])] = i + 1


class _Draft:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __call__(
        self, text: Sequence[int], hidden: Tensor | None, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Guessed:
        self.reader.keep(len(text) - 1)
        ids, drawn = list[int](), list[Tensor]()
        for _ in range(n):
            drawn.append(sampling.probabilities(self.reader.read([*text, *ids], 1).logits[:, -1]))
            ids.append(int(pick(drawn[-1], [generator])))
        return Guessed(ids, torch.cat(drawn) if drawn else None)


class _Own:
    """The k-th module reads what the one before it made of token i, and token i + k; it says token i + k + 1.

    So all but the first read guesses for their last tokens: those they take back, and read again when they are known.
    """

    def __init__(self, model: Transformer, prompt: Prompt, n: int) -> None:
        self.model = model
        n_prompt = prompt.ids.shape[1]
        length = n_prompt + prompt.max_new_tokens
        self.caches: list[KVCache] = []
        for module in model.spec.ahead[:n]:
            alone = model.spec.but(stack=model.spec.stack.but(blocks=(module.block,)), heads=(), ahead=())
            check_can_forget(alone, "a module of Model.ahead")
            self.caches.append(growing_cache(model, 1, n_prompt, length, slack=n, spec=alone))
        # what each module read before only beside a guess [1, token, width]
        self.left: list[Tensor | None] = [None] * n

    def __call__(
        self, text: Sequence[int], hidden: Tensor | None, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Guessed:
        if hidden is None or not n:
            return Guessed([])
        ids, drawn, x = list(text), list[Tensor](), hidden
        for k, cache in enumerate(self.caches[:n]):  # n grows no more: there is ever less to write
            left = self.left[k]
            x = x if left is None else torch.cat((left, x), 1)
            later = torch.tensor([ids[-x.shape[1] :]], device=x.device)
            made, logits = self.model.ahead_of(k + 1, x, later, cache)
            drawn.append(sampling.probabilities(logits[:, -1]))
            ids.append(int(pick(drawn[-1], [generator])))
            guessed = min(k, x.shape[1])
            if guessed:
                cache.rewind(guessed)
                # of these the one before this module is certain of all but k - 1
                self.left[k] = x[:, x.shape[1] - guessed : max(0, x.shape[1] - k + 1)]
            x = made
        return Guessed(ids[len(text) :], torch.cat(drawn))


def check_can_forget(spec: ModelSpec, who: str = "the model") -> None:
    """Raise InputError for a model that cannot take tokens back, or writes another text where it reads several at once."""
    if any(kept.how == "state" for kept in cached_calls(spec)):
        raise InputError(
            f"{who} has layers with a state, which cannot take wrong guesses back; generate without a draft or look-up"
        )
    if reads_more(spec):
        raise InputError(f"{who} reads tokens that it never writes, so no guess; generate without a draft or look-up")
    if part := competing(spec):
        raise InputError(f"{who} has {part}; generate without a draft or look-up")


def check_one_rotation(spec: ModelSpec, prompt: Prompt) -> None:
    """Raise InputError where kept tokens would be rotated for the length of guesses that fall, not for the text's own."""
    first = prompt.ids.shape[1]
    last = first + max(0, prompt.max_new_tokens - 1)
    if scaling := rotating_by_length(spec, first, last):
        raise InputError(
            f"the model's {scaling.kind} rotates texts from {first} to {last} tokens by their length, which wrong "
            "guesses would change; ask for fewer new tokens, or generate without a draft or look-up"
        )


def _check_most(most: int) -> None:
    if most < 1:
        raise InputError(f"most = {most} guesses a pass; it must be at least 1")
