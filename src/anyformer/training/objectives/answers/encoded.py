"""Exchanges as ids: each answer behind what a model reads when it is to write it, cut to the length of a row where it may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np

from anyformer.errors import TextError
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.text.chat import Chat
from anyformer.text.conversations import Exchange, ExchangeCorpus, Said, words_of
from anyformer.text.packing import padded
from anyformer.text.prompts import Answered, answered_prompt, answered_turns
from anyformer.text.sources import reading, wrong
from anyformer.training.data.feed import Rows

T = TypeVar("T")
Texts = Sequence[Answered]
"""Of an answer: one text, or several where a template writes what was said before each of its messages anew."""


class EncodedExchanges(ABC):
    """What is learnt from exchanges, in memory, example by example.

    `lengths` is [example, text] int64, tokens that are read; `sources` [example] are the exchanges' numbers; `cut` counts the
    texts that lost tokens. Raises TextError for a text beyond `longest` tokens unless it may be cut (`truncate`), for messages
    without a chat template, and where nothing is left to be learnt.
    """

    unread: ClassVar[int] = 1  # of a text, tokens at its end that are predicted and never read
    first = 0  # the number of its first example among all of a run

    def __init__(
        self, corpus: ExchangeCorpus, tokenizer: Tokenizer, longest: int | None = None, *, truncate: bool = False
    ) -> None:
        self.corpus, self.cut = corpus, 0
        self.examples: list[Texts] = []
        sources: list[int] = []
        answered = laid_out(corpus, tokenizer, partial(_answers, tokenizer))
        for number, answers in enumerate(answered):
            line = corpus.rows[number].line
            for texts in self.texts(answers, line):
                most = max(len(text.ids) - self.unread for text in texts)
                if longest is not None and most > longest and not truncate:
                    remedy = "make rows longer (--seq-len), or have what is too long cut (--truncate)"
                    raise wrong(corpus.where, line, f"it is {most} tokens long, and a row holds {longest}; {remedy}")
                end = None if longest is None else longest + self.unread
                kept = [Answered(text.ids[:end], text.learned[:end]) for text in texts]
                self.cut += sum(len(a.ids) < len(b.ids) for a, b in zip(kept, texts, strict=True))
                if all(text.learned.any() for text in kept):
                    self.examples.append(kept)
                    sources.append(number)
        if not self.examples:
            raise TextError(f"{corpus.where}: no answer begins within {longest} tokens; make rows longer (--seq-len)")
        self.sources = np.array(sources, dtype=np.int64)
        self.lengths = np.array(
            [[len(text.ids) - self.unread for text in texts] for texts in self.examples], dtype=np.int64
        )

    @abstractmethod
    def texts(self, answers: Sequence[Texts], line: int) -> list[Texts]:
        """The examples that the texts of an exchange's answers make: each the texts that are learnt from at once."""

    @abstractmethod
    def batch(self, numbers: np.ndarray) -> Rows:
        """The examples of these numbers, in their order."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def learned(self) -> int:
        """How many tokens are to be written, in all."""
        return sum(int(text.learned[1:].sum()) for texts in self.examples for text in texts)

    @property
    def nbytes(self) -> np.ndarray:
        """[exchange] int64: UTF-8 bytes of the answers."""
        return np.array([sum(_nbytes(answer) for answer in row.answers) for row in self.corpus.rows], dtype=np.int64)


def side_by_side(texts: Texts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, mask, labels): what is read, padded at the right, int64 and bool, and the next token of an answer, int64."""
    ids, mask = padded([text.ids[:-1] for text in texts], 0)
    labels, _ = padded([np.where(text.learned, text.ids, NOT_PREDICTED)[1:] for text in texts], NOT_PREDICTED)
    return ids, mask, labels


class EncodedConversations(EncodedExchanges):
    """Each text of an answer is an example."""

    def texts(self, answers: Sequence[Texts], line: int) -> list[Texts]:
        return [[text] for text in answers[0]]

    def batch(self, numbers: np.ndarray) -> Batch:
        ids, mask, labels = side_by_side([text for i in numbers for text in self.examples[i]])
        document, places = mask.astype(np.int64), np.arange(mask.shape[1], dtype=np.int64)
        return Batch(ids, labels, document, places * document, np.where(mask, self.sources[numbers][:, None], -1))


def laid_out(corpus: ExchangeCorpus, tokenizer: Tokenizer, made: Callable[[Exchange, Chat | None], T]) -> Iterator[T]:
    """What is made of each exchange, by the chat template where it has messages. Raises TextError, naming the line."""
    with ExitStack() as until_then:
        chat: Chat | None = None
        for row in corpus.rows:
            with reading(corpus.where, row.line):
                if chat is None and not isinstance(row.before, str):
                    if tokenizer.chat_template is None:
                        remedy = "name one (--chat-template), or give a prompt and what is said to it as texts"
                        raise TextError(f"messages need a chat template, and the tokenizer brings none; {remedy}")
                    chat = until_then.enter_context(Chat(tokenizer))
                found = made(row, chat)
            yield found


def _answers(tokenizer: Tokenizer, row: Exchange, chat: Chat | None) -> list[Texts]:
    return [_texts(row, answer, tokenizer, chat) for answer in row.answers]


def _texts(row: Exchange, answer: Said, tokenizer: Tokenizer, chat: Chat | None) -> Texts:
    if isinstance(row.before, str) or isinstance(answer, str):
        return [answered_prompt(tokenizer, str(row.before), str(answer))]  # both are texts, as the file was read
    assert chat is not None
    return answered_turns(chat, (*row.before, *answer), len(row.before), row.tools)


def _nbytes(answer: Said) -> int:
    texts = [answer] if isinstance(answer, str) else [words_of(each) for each in answer if each["role"] == "assistant"]
    return sum(len(text.encode()) for text in texts)
