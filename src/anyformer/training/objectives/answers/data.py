"""Conversations as a run reads them: batches of like length to train on without end, and all of them to validate on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar

import numpy as np

from anyformer.errors import InputError, TextError
from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer, length_batches, some_of
from anyformer.text.chat import Chat
from anyformer.text.conversations import Exchange, ExchangeCorpus
from anyformer.text.packing import padded
from anyformer.text.prompts import Answered, answered_prompt, answered_turns
from anyformer.text.sources import wrong
from anyformer.training.data.examples import ExampleData, fed_by_length
from anyformer.training.data.feed import Feed


class EncodedConversations:
    """Conversations as ids, in memory: of each one text, or several where its template makes another of each answer.

    `lengths` is [text, 1] int64, tokens that are read; `cut` counts texts that lost tokens, those whose answers were all lost,
    which are left out, among them. Raises TextError for a text beyond `longest` tokens unless it may be cut (`truncate`), for
    messages without a chat template, and where nothing is left to be learnt.
    """

    def __init__(
        self, corpus: ExchangeCorpus, tokenizer: Tokenizer, longest: int | None = None, *, truncate: bool = False
    ) -> None:
        self.corpus, self.cut = corpus, 0
        self.texts: list[Answered] = []
        sources: list[int] = []
        for number, (line, text) in enumerated(corpus, tokenizer):
            n = len(text.ids) - 1
            if longest is not None and n > longest:
                if not truncate:
                    remedy = "make rows longer (--seq-len), or have what is too long cut (--truncate)"
                    raise wrong(corpus.where, line, f"it is {n} tokens long, and a row holds {longest}; {remedy}")
                self.cut += 1
                text = Answered(text.ids[: longest + 1], text.learned[: longest + 1])
                if not text.learned.any():
                    continue
            self.texts.append(text)
            sources.append(number)
        if not self.texts:
            raise TextError(f"{corpus.where}: no answer begins within {longest} tokens; make rows longer (--seq-len)")
        self.sources = np.array(sources, dtype=np.int64)
        self.lengths = np.array([len(text.ids) - 1 for text in self.texts], dtype=np.int64)[:, None]

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, numbers: np.ndarray) -> Batch:
        """The texts of these numbers, in their order, padded to the longest."""
        chosen = [self.texts[i] for i in numbers]
        ids, mask = padded([text.ids[:-1] for text in chosen], 0)
        labels, _ = padded([np.where(text.learned, text.ids, NOT_PREDICTED)[1:] for text in chosen], NOT_PREDICTED)
        document, places = mask.astype(np.int64), np.arange(mask.shape[1], dtype=np.int64)
        return Batch(ids, labels, document, places * document, np.where(mask, self.sources[numbers][:, None], -1))


def enumerated(corpus: ExchangeCorpus, tokenizer: Tokenizer) -> Iterator[tuple[int, tuple[int, Answered]]]:
    """(number of the exchange, (its line, a text of it)). Raises TextError, naming the line, for what cannot be laid out."""
    with ExitStack() as until_then:
        chat: Chat | None = None
        for number, row in enumerate(corpus.rows):
            try:
                if chat is None and not isinstance(row.before, str):
                    chat = until_then.enter_context(Chat(tokenizer))
                yield from ((number, (row.line, text)) for text in laid_out(row, tokenizer, chat))
            except (TextError, InputError) as error:
                raise wrong(corpus.where, row.line, str(error)) from None


def laid_out(row: Exchange, tokenizer: Tokenizer, chat: Chat | None) -> list[Answered]:
    """The texts of an exchange with one answer."""
    (answer,) = row.answers
    if isinstance(row.before, str) and isinstance(answer, str):
        return [answered_prompt(tokenizer, row.before, answer)]
    assert chat is not None
    assert not isinstance(row.before, str)
    assert not isinstance(answer, str)
    return answered_turns(chat, (*row.before, *answer), len(row.before))


class ConversationValidation:
    """Conversations, each a document: the bytes are those of what is learnt."""

    def __init__(self, conversations: EncodedConversations) -> None:
        self._conversations = conversations
        self.document_nbytes = np.array([nbytes_of(row) for row in conversations.corpus.rows], dtype=np.int64)

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Batch, np.ndarray]]:
        lengths = self._conversations.lengths
        batches = length_batches(lengths, max(batch_tokens, int(lengths.max())))
        for numbers in some_of(batches, most_tokens, batch_tokens):
            rows = self._conversations.batch(numbers)
            yield rows, rows.source


def nbytes_of(row: Exchange) -> int:
    """UTF-8 bytes of the answers of an exchange."""
    texts = [
        text
        for answer in row.answers
        for text in (
            [answer] if isinstance(answer, str) else [m["content"] for m in answer if m["role"] == "assistant"]
        )
    ]
    return sum(len(text.encode()) for text in texts)


class ConversationData(ExampleData[ExchangeCorpus, EncodedConversations]):
    """Conversations, and prompts with completions, whose answers are learnt."""

    reads: ClassVar[Reads] = "conversations"

    def identity(self) -> tuple[str, ...]:
        return (*super().identity(), self.tokenizer.chat_template or "")

    def encode(self, corpus: ExchangeCorpus, longest: int, truncate: bool) -> EncodedConversations:
        return EncodedConversations(corpus, self.tokenizer, longest, truncate=truncate)

    def feed(self, recipe: Recipe) -> Feed:
        found = self.encoded(recipe)
        return fed_by_length(found, recipe, self.train.where, [self.train.rows[i].line for i in found.sources])

    def validation(self, recipe: Recipe) -> ConversationValidation | None:
        return None if self.held_out is None else ConversationValidation(self.encoded(recipe, held_out=True))

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=1, query=int(np.ceil(self.encoded(recipe).lengths.mean())))

    def predicted_share(self, recipe: Recipe) -> float:
        found = self.encoded(recipe)
        return sum(int(text.learned[1:].sum()) for text in found.texts) / int(found.lengths.sum())
