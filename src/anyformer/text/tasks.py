"""Tasks: questions whose answers are known, one of several choices or what follows a text; JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anyformer.errors import TextError
from anyformer.text.places import refuse_surrogates
from anyformer.text.sources import lacks, read_json_lines, reading, short, wrong

SUFFIX = ".jsonl"
FEWEST = 2  # choices of a question


class Question(NamedTuple):
    """What is read, what may follow, and which of that is right."""

    context: str
    choices: tuple[str, ...]  # of a text to be completed its one answer
    answer: int
    line: int  # of its file, from 1

    def follows(self, choice: str) -> tuple[str, str]:
        """(context, continuation): a space stands between them where there is none yet, and belongs to what follows."""
        context = self.context.rstrip()
        space = self.context[len(context) :] or ("" if choice[:1].isspace() or not context else " ")
        return context, space + choice


@dataclass(frozen=True)
class Task:
    """The questions of one file, all of one kind."""

    questions: tuple[Question, ...]
    kind: Literal["multiple choice", "completion"]
    where: str  # the file

    @property
    def chance(self) -> float | None:
        """The accuracy of a blind guess; None of completions."""
        if self.kind == "completion":
            return None
        return sum(1 / len(question.choices) for question in self.questions) / len(self.questions)


def read_task(path: str | Path) -> Task:
    """The task in a .jsonl file (or .jsonl.gz): objects of `question`, `answer` and, where one is to be chosen, `choices`.

    The answer is one of the choices or its number, from 0; without choices, the text that follows. Other keys are passed over.
    Raises TextError, naming file and line, for what is missing, empty, of two kinds, or an answer that is no choice.
    """
    path = Path(path)
    if not path.is_file():
        raise TextError(f"no task at {path}: it is not a file; give one of JSON Lines, {SUFFIX}")
    where = str(path)
    questions = []
    for line, entry in read_json_lines(path):
        with reading(where, line):
            questions.append(_question(entry, line))
    if not questions:
        raise TextError(f"{where} holds no questions; give at least one")
    chosen = [len(question.choices) >= FEWEST for question in questions]
    if (other := next((q for q, each in zip(questions, chosen, strict=True) if each != chosen[0]), None)) is not None:
        these, those = ("has choices", "has none") if chosen[0] else ("has none", "has choices")
        raise wrong(where, other.line, f"it {those}, and that of line {questions[0].line} {these}; write all alike")
    return Task(tuple(questions), "multiple choice" if chosen[0] else "completion", where)


def _question(entry: Any, line: int) -> Question:
    if not isinstance(entry, Mapping):
        raise TextError("not an object with question, choices and answer")
    for name in ("question", "answer"):
        if name not in entry:
            raise lacks(name, entry)
    context, answer, choices = entry["question"], entry["answer"], entry.get("choices")
    if not isinstance(context, str):
        raise TextError(f"question = {short(context)} is not a text; put it in quotes")
    if choices is None:
        choices, number = [answer], 0
    elif not isinstance(choices, list) or len(choices) < FEWEST:
        raise TextError(f"choices = {short(choices)} is not a list of {FEWEST} or more texts")
    else:
        number = _number(answer, choices)
    for text in choices:
        if not isinstance(text, str) or not text.strip():
            raise TextError(f"{short(text)} is no text that could be chosen; give one that is not empty")
    for text in (context, *choices):
        refuse_surrogates(text)
    if len(set(choices)) < len(choices):
        raise TextError(f"choices = {short(choices)} has one twice; leave one of them out")
    return Question(context, tuple(choices), number, line)


def _number(answer: Any, choices: list[Any]) -> int:
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    remedy = f"give one, or its number from 0 to {len(choices) - 1}"
    raise TextError(f"answer = {short(answer)} is none of the choices; {remedy}")
