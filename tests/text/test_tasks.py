"""Questions with known answers, read from files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from anyformer.errors import TextError
from anyformer.text.tasks import Question, read_task


def written(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


CHOICES = {"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1}


def test_answers_are_choices_or_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "sums.jsonl", CHOICES, "", {**CHOICES, "answer": "3", "subject": "sums"})
    task = read_task(path)
    assert task.kind == "multiple choice"
    assert task.questions == (Question("2 + 2 =", ("3", "4"), 1, 1), Question("2 + 2 =", ("3", "4"), 0, 3))
    assert task.chance == 0.5
    (tmp_path / "sums.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_task(tmp_path / "sums.jsonl.gz").questions == task.questions


def test_chance_is_that_of_each_question(tmp_path: Path) -> None:
    more = {"question": "", "choices": list("abcd"), "answer": 0}
    assert read_task(written(tmp_path / "x.jsonl", CHOICES, more)).chance == (1 / 2 + 1 / 4) / 2


def test_completions(tmp_path: Path) -> None:
    task = read_task(written(tmp_path / "x.jsonl", {"question": "The sky is", "answer": "blue"}))
    assert (task.kind, task.chance) == ("completion", None)
    assert task.questions == (Question("The sky is", ("blue",), 0, 1),)


@pytest.mark.parametrize(
    ("context", "choice", "found"),
    [
        ("The sky is", "blue", ("The sky is", " blue")),
        ("The sky is ", "blue", ("The sky is", " blue")),
        ("The sky is\n\n", "blue", ("The sky is", "\n\nblue")),
        ("The sky is", " blue", ("The sky is", " blue")),
        ("", "blue", ("", "blue")),
    ],
)
def test_one_space_stands_between(context: str, choice: str, found: tuple[str, str]) -> None:
    assert Question(context, (choice,), 0, 1).follows(choice) == found


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2: not JSON"),
        ([1], "line 2: not an object"),
        (
            {"questoin": "a", "answer": "b"},
            "there is no 'question' among 'questoin', 'answer' (did you mean 'questoin'?)",
        ),
        ({"question": "a"}, "there is no 'answer'"),
        ({**CHOICES, "question": 3}, "question = 3 is not a text"),
        ({**CHOICES, "answer": 2}, "answer = 2 is none of the choices; give one, or its number from 0 to 1"),
        ({**CHOICES, "answer": -1}, "answer = -1 is none of the choices"),
        ({**CHOICES, "answer": True}, "answer = True is none of the choices"),
        ({**CHOICES, "answer": "5"}, "answer = '5' is none of the choices"),
        ({**CHOICES, "choices": "34"}, "choices = '34' is not a list of 2 or more texts"),
        ({**CHOICES, "choices": ["3"]}, "is not a list of 2 or more texts"),
        ({**CHOICES, "choices": ["3", 4]}, "4 is no text that could be chosen"),
        ({**CHOICES, "choices": ["3", " "]}, "is no text that could be chosen"),
        ({**CHOICES, "choices": ["3", "3"]}, "has one twice"),
        ({**CHOICES, "question": "\ud800"}, "half a character"),
        ({"question": "a", "answer": "b"}, "line 2: it has none, and that of line 1 has choices; write all alike"),
        ({"question": "a", "answer": None}, "None is no text that could be chosen"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(TextError) as caught:
        read_task(written(tmp_path / "x.jsonl", CHOICES, row))
    assert says in str(caught.value)
    assert "line 2" in str(caught.value)


def test_there_is_something_to_ask(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="holds no questions"):
        read_task(written(tmp_path / "x.jsonl", ""))
    with pytest.raises(TextError, match="it is not a file"):
        read_task(tmp_path)
