"""Files of labelled text: JSON Lines, and tables whose first line names the columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anyformer.errors import TextError
from anyformer.text.labelled import Kind, LabelledCorpus, LabelledRow, as_number
from anyformer.text.places import refuse_surrogates
from anyformer.text.sources import LONGEST_LINE, lacks, read_json_lines, read_text, reading, short, suffix_of, wrong

SUFFIXES = (".jsonl", ".csv", ".tsv")
LARGEST = 1e18  # of a label that is a number: float32 holds its square


def read_labelled(path: str | Path, *, unlabelled: bool = False) -> LabelledCorpus:
    """The examples of a .jsonl, .csv or .tsv file, packed or not: `text`, maybe `text_pair`, and `label`; or lists of
    `tokens` and `labels`, in .jsonl alone.

    Labels that are words or whole numbers are classes; with a fraction they are numbers. `unlabelled`: they are not read, be
    they there or not. Raises TextError, naming file and line, for what is missing, empty, of two kinds or of unequal lengths.
    """
    path = Path(path)
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise TextError(
            f"{path} is no labelled text; give a file that ends in {', '.join(SUFFIXES)}, or in one and .gz or .zst"
        )
    if not path.is_file():
        raise TextError(f"no labelled text at {path}: it is not a file")
    where = str(path)
    if suffix == ".jsonl":
        entries = read_json_lines(path)
    else:
        entries = _table(read_text(path), where, "\t" if suffix == ".tsv" else ",")
    rows, kinds = [], []
    for line, entry in entries:
        with reading(where, line):
            row = _row(entry, line, unlabelled)
            kinds.append(_kind(row.label))
        rows.append(row)
    if not rows:
        raise TextError(f"{path} holds no examples; give at least one")
    return _of_one_kind(rows, kinds, where)


def _row(entry: Any, line: int, unlabelled: bool) -> LabelledRow:
    """An example, its label as it is written."""
    if not isinstance(entry, dict):
        raise TextError("not an object with text and label")
    label_of = "labels" if "tokens" in entry else "label"
    for name in ("tokens" if "tokens" in entry else "text", label_of):
        if name not in entry and not (unlabelled and name == label_of):
            raise lacks(name, entry)
    if "tokens" in entry:
        texts = _words(entry["tokens"], "tokens")
        labels = () if unlabelled else _words(entry["labels"], "labels")
        if labels and len(labels) != len(texts):
            raise TextError(f"there are {len(texts)} tokens and {len(labels)} labels; give each token one")
        return LabelledRow(texts, labels, line)
    texts = (entry["text"], entry["text_pair"]) if entry.get("text_pair") is not None else (entry["text"],)
    for name, text in zip(("text", "text_pair"), texts, strict=False):
        if not isinstance(text, str):
            raise TextError(f"{name} = {short(text)} is not a text; put it in quotes")
        if not text.strip():
            raise TextError(f"{name} is empty; remove the example or give it a text")
        refuse_surrogates(text)
    label = None if unlabelled else entry["label"]
    if label is None and not unlabelled:
        raise TextError("the label is null; give it one, or remove the example")
    return LabelledRow(texts, label, line)


def _of_one_kind(rows: Sequence[LabelledRow], kinds: Sequence[str], where: str) -> LabelledCorpus:
    """The corpus with labels of one kind. Raises TextError naming the first line of another."""
    written: list[Any] = [row.label for row in rows]
    if "number" in kinds and {"whole", "number"} >= set(kinds):
        kinds = ["number"] * len(kinds)
        beyond = next((i for i, label in enumerate(written) if abs(label) > LARGEST), None)
        if beyond is not None:
            reason = f"the label {short(written[beyond])} is beyond ±{LARGEST:g}; write labels in other units"
            raise wrong(where, rows[beyond].line, reason)
    other = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        reason = (
            f"it has one of text and tokens, and line {rows[0].line} the other; write all alike"
            if "none" in kinds
            else f"the label {short(written[other])} is {_KINDS[kinds[other]][0]}, and that of line {rows[0].line}, "
            f"{short(written[0])}, is {_KINDS[kinds[0]][0]}; write all alike"
        )
        raise wrong(where, rows[other].line, reason)
    _, read, kind = _KINDS[kinds[0]]
    return LabelledCorpus(tuple(row._replace(label=read(row.label)) for row in rows), kind, where)


# Of labels as they are written: in words, how they are read, and what they are of.
_KINDS: dict[str, tuple[str, Callable[[Any], Any], Kind]] = {
    "word": ("a word", str, "classes"),
    "whole": ("a whole number", str, "classes"),
    "number": ("a number with a fraction", float, "numbers"),
    "words": ("a list of words", lambda labels: labels or None, "words"),
    "none": ("missing", lambda _: None, "classes"),
}


def _kind(label: Any) -> str:
    match label:
        case None:
            return "none"
        case tuple():
            return "words"
        case bool() | int():
            return "whole"
        case float():
            if not math.isfinite(label):
                raise TextError(f"the label {label} is no finite number; correct or remove it")
            return "number"
        case str():
            if not label.strip():
                raise TextError("the label is empty; give it one, or remove the example")
            refuse_surrogates(label)
            return "word"
    raise TextError(f"the label {short(label)} is neither a word nor a number")


def _words(value: Any, name: str) -> tuple[str, ...]:
    words = [str(word) if isinstance(word, int) else word for word in value] if isinstance(value, list) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise TextError(f"{name} = {short(value)} is not a list of words, none of them empty")
    if not words:
        raise TextError(f"{name} is empty; remove the example")
    for word in words:
        refuse_surrogates(word)
    return tuple(words)


def _table(text: str, where: str, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows by the names in the first line; a column of labels that all are numbers, some with a fraction, is numbers.

    All others are classes, and stay as they are spelled, without blanks around them: codes such as 007.
    """
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))  # the library's own holds no long text
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    found: list[tuple[int, list[str]]] = []
    start = 1
    try:
        for cells in reader:
            found += [(start, cells)] if cells else []
            start = reader.line_num + 1
    except csv.Error as error:
        raise wrong(where, start, f"not a table ({error})") from None
    header = [name.strip() for name in found[0][1]] if found else []
    if len(set(header)) < len(header):
        raise wrong(where, 1, f"two columns of the header have one name: {', '.join(header)}")
    entries = []
    for line, cells in found[1:]:
        if len(cells) != len(header):
            raise wrong(
                where, line, f"it has {len(cells)} columns and the header {len(header)}; quote what holds {delimiter!r}"
            )
        entries.append((line, dict(zip(header, cells, strict=True))))
    labels = [entry["label"] for _, entry in entries if "label" in entry]
    whole, number = (all(as_number(label, kind) is not None for label in labels) for kind in (int, float))
    read = float if number and not whole else str.strip
    for line, entry in entries:
        yield line, {**entry, "label": read(entry["label"])} if "label" in entry else entry
