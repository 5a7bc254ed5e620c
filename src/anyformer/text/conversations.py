"""Conversations, prompts with completions, and answers of which one is preferred: files of JSON Lines, as TRL reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.disk.foreign import parse_json
from anyformer.errors import TextError, errors_of
from anyformer.text.chat import Message, Tool
from anyformer.text.corpus import set_aside
from anyformer.text.sources import fields_of, lacks, lines, read_json_lines, read_text, reading, short, suffix_of

Said = str | tuple[Message, ...]
"""A text, or messages of a conversation."""

# (what is said before, the answers) of a line's object.
_Reader = Callable[[Mapping[str, Any]], tuple[Said, tuple[Said, ...]]]


class Exchange(NamedTuple):
    """What is said before, and what may be said to it: one answer to be learnt, or a preferred one and a rejected one.

    Of messages, the assistant's are learnt, wherever they stand. Without an answer it is a prompt that one is written to.
    """

    before: Said
    answers: tuple[Said, ...]
    line: int  # of its file, from 1
    tools: tuple[Tool, ...] = ()  # that the assistant may call
    facts: Mapping[str, Any] = {}  # what the line of a prompt says beside it, by which answers are judged


@dataclass(frozen=True)
class ExchangeCorpus:
    """The exchanges of one file."""

    rows: tuple[Exchange, ...]
    where: str  # the file

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all that is said, in order."""
        said = [(row.before, row.answers, *(each for each in (row.tools, row.facts) if each)) for row in self.rows]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def texts(self) -> Iterator[str]:
        """All that is said, to train a tokenizer on."""
        for row in self.rows:
            for said in (row.before, *row.answers):
                yield from (said,) if isinstance(said, str) else map(words_of, said)


def words_of(message: Message) -> str:
    """What is said in a message, calls of tools as JSON; what a template writes beside it is its own."""
    calls = message.get("tool_calls")
    return (message.get("content") or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def read_conversations(path: str | Path) -> ExchangeCorpus:
    """Conversations, each a line: an object with `messages`, or with `prompt` and `completion`, texts or lists of messages.

    Raises TextError, naming file and line, for what is missing, empty or of another kind.
    """
    return _read(path, _conversation)


def of_conversations(path: str | Path) -> bool:
    """Whether a file is one for `read_conversations`, by its first line."""
    if suffix_of(Path(path)) != ".jsonl" or not Path(path).is_file():
        return False
    _, first = next(iter(read_json_lines(Path(path))), (0, None))
    return isinstance(first, dict) and bool({"messages", "completion"} & set(first))


def read_preferences(path: str | Path) -> ExchangeCorpus:
    """Answers to one thing, each pair a line: an object with `chosen` and `rejected`, and `prompt`, texts or lists of messages.

    Without a prompt it is the messages that both begin with, also where a text beside them says one of those again.
    Raises TextError likewise.
    """
    return _read(path, _preference)


def read_prompts(path: str | Path) -> ExchangeCorpus:
    """Prompts, each a line: an object with `prompt`, a text or a list of messages, and whatever answers are judged by.

    Raises TextError likewise.
    """
    return _read(path, _prompt)


def split_exchanges(corpus: ExchangeCorpus, share: float) -> tuple[ExchangeCorpus, ExchangeCorpus]:
    """(training, validation) exchanges, the second evenly spread. Raises TextError where one would be empty."""
    train, held_out = set_aside(corpus.rows, share, "conversations")
    return replace(corpus, rows=train), replace(corpus, rows=held_out)


def _read(path: str | Path, read: _Reader) -> ExchangeCorpus:
    path, where = Path(path), str(path)
    if suffix_of(path) != ".jsonl" or not path.is_file():
        raise TextError(
            f"no conversations at {path}; give a file of JSON Lines, whose name ends in .jsonl, .jsonl.gz or .jsonl.zst"
        )
    rows = []
    for line, written in enumerate(lines([read_text(path)], where), start=1):
        if not written.strip():
            continue
        entry = _parsed(written, f"{where}, line {line}")
        with reading(where, line):
            if not isinstance(entry, dict):
                raise TextError(f"{short(entry)} is not an object with messages, or with a prompt and answers")
            (before, answers), tools = read(entry), _tools(entry.get("tools"))
            if tools and isinstance(before, str):
                raise TextError("tools are for messages, which a template writes; put them into the prompt itself")
        facts = {} if answers else {name: value for name, value in entry.items() if name not in ("prompt", "tools")}
        rows.append(Exchange(before, answers, line, tools, facts))
    if not rows:
        raise TextError(f"{path} holds no conversations; give at least one")
    return ExchangeCorpus(tuple(rows), where)


def _conversation(entry: Mapping[str, Any]) -> tuple[Said, tuple[Said, ...]]:
    if "messages" in entry:
        before, answer = (), _messages(entry["messages"], "messages")
    elif "prompt" in entry or "completion" in entry:
        before, answer = _alike(entry, ("prompt", "completion"))
    else:
        raise TextError(f'there is no "messages", and no "prompt" with a "completion", among {fields_of(entry)}')
    _refuse_silence(answer, "messages" if before == () else "completion")
    return before, (answer,)


def _preference(entry: Mapping[str, Any]) -> tuple[Said, tuple[Said, ...]]:
    names, said = ("chosen", "rejected"), entry.get("prompt")
    again = isinstance(said, str) and isinstance(entry.get("chosen"), list)  # as UltraFeedback's
    if "prompt" in entry and not again:
        before, *answers = _alike(entry, ("prompt", *names))
    else:
        both = _alike(entry, names)
        if isinstance(both[0], str):
            raise TextError('there is no "prompt"; give what both texts answer')
        n = next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
        before, answers = both[0][:n], [each[n:] for each in both]
        if again and all(each.get("content") != said for each in before):
            told = f"prompt = {short(said)} is none of the messages that both answers begin with"
            raise TextError(f"{told}; leave it out, or give it as messages")
    if answers[0] == answers[1]:
        raise TextError("chosen and rejected are the same; remove the line")
    for name, answer in zip(names, answers, strict=True):
        _refuse_silence(answer, name)
    return before, tuple(answers)


def _prompt(entry: Mapping[str, Any]) -> tuple[Said, tuple[Said, ...]]:
    if "prompt" not in entry:
        raise lacks("prompt", entry)
    if not (said := entry["prompt"]) or not isinstance(said, str | list):
        raise TextError(f"prompt = {short(said)} asks nothing; give a text, or a list of messages")
    return said if isinstance(said, str) else _messages(said, "prompt"), ()


def _alike(entry: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The values of these names, all texts or all messages."""
    for name in names:
        if name not in entry:
            raise lacks(name, entry)
    given = [entry[name] for name in names]
    if not any(isinstance(each, list) for each in given):
        for name, each in zip(names, given, strict=True):
            if not isinstance(each, str):
                raise TextError(f"{name} = {short(each)} is neither a text nor a list of messages")
        return given
    return [_messages(each, name) for name, each in zip(names, given, strict=True)]


def _messages(value: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise TextError(f"{name} = {short(value)} is not a list of messages, as others of its line are")
    return tuple(_message(each, f"message {n} of {name}") for n, each in enumerate(value, start=1))


def read_tools(path: Path) -> tuple[Tool, ...]:
    """The tools that a file lists: JSON, each the schema of a function. Raises TextError."""
    given = _parsed(read_text(path), str(path))
    with errors_of(str(path), TextError):
        return _tools(given)


def _message(given: Any, said: str) -> Message:
    message = given if isinstance(given, dict) else {}
    calls, content = message.get("tool_calls") or [], message.get("content")
    if not isinstance(message.get("role"), str) or not (isinstance(content, str) or (content is None and calls)):
        raise TextError(f'{said}, {short(given)}, is not an object with texts "role" and "content"')
    if not isinstance(calls, list) or not all(isinstance(each, dict) for each in calls):
        raise TextError(f"{said}: tool_calls = {short(calls)} is not a list of objects")
    return message | {"tool_calls": [_call(each, said) for each in calls]} if calls else message


def _call(call: Mapping[str, Any], said: str) -> Mapping[str, Any]:
    """A call of a tool, whose arguments are an object, as templates want them; OpenAI writes them as a text of JSON."""
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _call(function, said)}
    if not isinstance(arguments := call.get("arguments"), str):
        return call
    return {**call, "arguments": _parsed(arguments, f"{said}: arguments = {short(arguments)} of a tool call")}


def _tools(given: Any) -> tuple[Tool, ...]:
    """The tools that a value of JSON lists, itself or as a text."""
    tools = (_parsed(given, f"tools = {short(given)}") if isinstance(given, str) and given else given) or []
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise TextError(f"tools = {short(given)} is not a list of objects, each the JSON schema of a function")
    return tuple(tools)


def _parsed(written: str, where: str) -> Any:
    return parse_json(written.encode(), where, TextError, "mend it")


def _refuse_silence(answer: Said, name: str) -> None:
    """Raise TextError where there is nothing to be learnt."""
    if isinstance(answer, str) and not answer:
        raise TextError(f"{name} is empty; remove the line or give it a text")
    if not isinstance(answer, str) and all(each["role"] != "assistant" for each in answer):
        raise TextError(f'no message of {name} has the role "assistant": there is nothing to learn; remove the line')
