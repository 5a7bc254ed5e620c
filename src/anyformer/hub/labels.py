"""The classes that a model's head tells apart, in the order of its rows: as our directories and Hugging Face's name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.disk.foreign import read_json
from anyformer.disk.run_layout import LABELS
from anyformer.errors import CheckpointError
from anyformer.families.heads import JUDGES
from anyformer.families.hf.headings import numbered_labels
from anyformer.hub.source import ModelSource
from anyformer.layers.embedding import n_segments
from anyformer.spec import HeadSpec, ModelSpec
from anyformer.text import Tokenizer


def judge_of(spec: ModelSpec) -> HeadSpec | None:
    """The head whose rows are labels, or None."""
    return next((head for head in spec.heads if head.name in JUDGES and head.table is not None), None)


def with_types(tokenizer: Tokenizer, spec: ModelSpec) -> Tokenizer:
    """The tokenizer to write beside a model: one that says which text of a pair a token is of, where that is read."""
    return tokenizer.naming_types() if judge_of(spec) is not None and n_segments(spec) > 1 else tokenizer


def labels_json(labels: Sequence[str]) -> str:
    """What `labels.json` says."""
    return json.dumps({"labels": list(labels)}, ensure_ascii=False, indent=1) + "\n"


def read_labels(directory: Path) -> tuple[str, ...] | None:
    """The labels of a directory of ours; None where it has none. Raises CheckpointError for a damaged file."""
    file = directory / LABELS
    if not file.is_file():
        return None
    said = read_json(file, CheckpointError)
    found = said.get("labels") if isinstance(said, dict) else None
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise CheckpointError(f"{file} has no list of words as labels; copy it again")
    return tuple(found)


def labels_of(source: ModelSource) -> tuple[str, ...] | None:
    """The labels of a checkpoint, as its files name them; None where they don't. Raises CheckpointError."""
    if source.family is not None or source.settings:
        return _of_settings(source.settings, source.spec)
    own = read_labels(source.weights)
    return read_labels(source.run) if own is None and source.run is not None else own


def other_labels(theirs: Sequence[str] | None, ours: Sequence[str] | None) -> bool:
    """Whether labels differ, in words or in order, where both are named."""
    return theirs is not None and ours is not None and tuple(theirs) != tuple(ours)


def _of_settings(settings: Mapping[str, Any], spec: ModelSpec) -> tuple[str, ...] | None:
    head, named = judge_of(spec), settings.get("id2label")
    if head is None or head.table is None or head.table.rows == 1 or not isinstance(named, Mapping):
        return None
    if settings.get("problem_type") == "multi_label_classification":
        return None  # several labels at once: no class of one text
    rows = head.table.rows
    by_number = {str(number): str(name) for number, name in named.items()}
    if set(by_number) != {str(i) for i in range(rows)}:
        raise CheckpointError(f"config.json: id2label names other numbers than 0 to {rows - 1}, the rows of the head")
    return tuple(by_number[str(i)] for i in range(rows))


def label_settings(spec: ModelSpec, labels: Sequence[str] | None) -> dict[str, Any]:
    """What config.json says of a model's labels, LABEL_0 … where nobody named them; nothing without such a head."""
    head = judge_of(spec)
    if head is None or head.table is None:
        return {}
    said = numbered_labels(head.table.rows, labels)
    if head.pool is not None:
        said["problem_type"] = "regression" if head.table.rows == 1 else "single_label_classification"
    return said
