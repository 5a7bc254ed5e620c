"""Conversations, prompts with completions, and answers of which one is preferred: files of JSON Lines, as TRL reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.errors import TextError, did_you_mean
from anyformer.text.chat import Message
from anyformer.text.corpus import held_out_places
from anyformer.text.places import refuse_surrogates
from anyformer.text.sources import json_lines, lines, read_text, short, wrong

Said = str | tuple[Message, ...]
"""A text, or messages of a conversation."""


# (what is said before, the answers) of an object of a file's line.
_Reader = Callable[[Mapping[str, Any], str, int], tuple[Said, tuple[Said, ...]]]


class Exchange(NamedTuple):
    """What is said before, and what may be said to it: one answer to be learnt, or a preferred one and a rejected one.

    Of messages, the assistant's are learnt, wherever they stand.
    """

    before: Said
    answers: tuple[Said, ...]
    line: int  # of its file, from 1


@dataclass(frozen=True)
class ExchangeCorpus:
    """The exchanges of one file."""

    rows: tuple[Exchange, ...]
    where: str  # the file

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all that is said, in order."""
        return hashlib.sha256(json.dumps([row[:2] for row in self.rows]).encode()).hexdigest()

    def texts(self) -> Iterator[str]:
        """All that is said, to train a tokenizer on."""
        for row in self.rows:
            for said in (row.before, *row.answers):
                yield from (said,) if isinstance(said, str) else (str(each["content"]) for each in said)


def read_conversations(path: str | Path) -> ExchangeCorpus:
    """Conversations, each a line: an object with `messages`, or with `prompt` and `completion`, texts or lists of messages.

    Raises TextError, naming file and line, for what is missing, empty or of another kind.
    """
    return _read(path, _conversation)


def read_preferences(path: str | Path) -> ExchangeCorpus:
    """Answers to one thing, each pair a line: an object with `chosen` and `rejected`, and `prompt`, texts or lists of messages.

    Without a prompt it is the messages that both begin with. Raises TextError likewise.
    """
    return _read(path, _preference)


def split_exchanges(corpus: ExchangeCorpus, share: float) -> tuple[ExchangeCorpus, ExchangeCorpus]:
    """(training, validation) exchanges, the second evenly spread. Raises TextError where one would be empty."""
    unseen = set(held_out_places(len(corpus.rows), share, "conversations"))
    parts = ([row for i, row in enumerate(corpus.rows) if (i in unseen) is held_out] for held_out in (False, True))
    train, held_out = (replace(corpus, rows=tuple(rows)) for rows in parts)
    return train, held_out


def _read(path: str | Path, read: _Reader) -> ExchangeCorpus:
    path, where = Path(path), str(path)
    if Path(path.name.removesuffix(".gz")).suffix.lower() != ".jsonl" or not path.is_file():
        raise TextError(
            f"no conversations at {path}; give a file of JSON Lines, whose name ends in .jsonl or .jsonl.gz"
        )
    rows = []
    for line, entry in json_lines(lines([read_text(path)], where), where):
        if not isinstance(entry, dict):
            raise wrong(where, line, f"{short(entry)} is not an object with messages, or with a prompt and answers")
        if entry.get("tools"):
            raise wrong(where, line, "it has tools, which are not read here; leave it out")
        before, answers = read(entry, where, line)
        rows.append(Exchange(before, answers, line))
    if not rows:
        raise TextError(f"{path} holds no conversations; give at least one")
    return ExchangeCorpus(tuple(rows), where)


def _conversation(entry: Mapping[str, Any], where: str, line: int) -> tuple[Said, tuple[Said, ...]]:
    if "messages" in entry:
        before, answer = (), _messages(entry["messages"], "messages", where, line)
    elif "prompt" in entry or "completion" in entry:
        before, answer = _alike(entry, ("prompt", "completion"), where, line)
    else:
        wanted = 'there is no "messages", and no "prompt" with a "completion"'
        raise wrong(where, line, f"{wanted}, among {short(list(entry))[1:-1] or 'nothing'}")
    _refuse_silence(answer, "messages" if before == () else "completion", where, line)
    return before, (answer,)


def _preference(entry: Mapping[str, Any], where: str, line: int) -> tuple[Said, tuple[Said, ...]]:
    names = ("chosen", "rejected")
    if "prompt" in entry:
        before, *answers = _alike(entry, ("prompt", *names), where, line)
    else:
        both = _alike(entry, names, where, line)
        if isinstance(both[0], str):
            raise wrong(where, line, 'there is no "prompt"; give what both texts answer')
        n = next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
        before, answers = both[0][:n], [each[n:] for each in both]
    if answers[0] == answers[1]:
        raise wrong(where, line, "chosen and rejected are the same; remove the line")
    for name, answer in zip(names, answers, strict=True):
        _refuse_silence(answer, name, where, line)
    return before, tuple(answers)


def _alike(entry: Mapping[str, Any], names: Sequence[str], where: str, line: int) -> list[Any]:
    """The values of these names, all texts or all messages."""
    for name in names:
        if name not in entry:
            near = did_you_mean(name, entry)
            raise wrong(where, line, f"there is no {name!r} among {short(list(entry))[1:-1] or 'nothing'}{near}")
    given = [entry[name] for name in names]
    if all(isinstance(each, str) for each in given):
        for text in given:
            refuse_surrogates(text, f"{where}, line {line}")
        return given
    return [_messages(each, name, where, line) for name, each in zip(names, given, strict=True)]


def _messages(value: Any, name: str, where: str, line: int) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise wrong(where, line, f"{name} = {short(value)} is not a list of messages, as others of its line are")
    for number, each in enumerate(value, start=1):
        said = f"message {number} of {name}"
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("role", "content")):
            raise wrong(where, line, f'{said}, {short(each)}, is not an object with texts "role" and "content"')
        refuse_surrogates(each["content"], f"{where}, line {line}")
    return tuple(value)


def _refuse_silence(answer: Said, name: str, where: str, line: int) -> None:
    """Raise TextError where there is nothing to be learnt."""
    if isinstance(answer, str) and not answer:
        raise wrong(where, line, f"{name} is empty; remove the line or give it a text")
    if not isinstance(answer, str) and all(each["role"] != "assistant" for each in answer):
        raise wrong(
            where, line, f'no message of {name} has the role "assistant": there is nothing to learn; remove the line'
        )
