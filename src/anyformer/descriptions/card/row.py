"""One row of a card: what it is about, in words and, where there is one, as a number."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.descriptions.grouping import in_words


@dataclass(frozen=True)
class CardRow:
    """One row, one meaning."""

    section: str  # architecture; encoder and decoder where there are both; model, training, source
    key: str  # stable within a version of the JSON keys
    name: str  # as it is shown
    words: str
    value: Any = None  # a number, or a list of them by layer; None where words alone say it


def per_layer(
    section: str, key: str, name: str, values: Sequence[Hashable], show: Callable[[Any], str]
) -> Iterator[CardRow]:
    """The row of what each layer has; nothing where no layer has it."""
    if all(value is None for value in values):
        return
    said = in_words([None if value is None else show(value) for value in values])
    numbers: Any = values[0] if len(set(values)) == 1 else list(values)
    yield CardRow(section, key, name, said, None if isinstance(_some(values), str) else numbers)


def joined(said: Iterable[str | None]) -> str | None:
    """The different ones in one line, None where there is none."""
    return ", ".join(dict.fromkeys(filter(None, said))) or None


def _some(values: Iterable[Hashable]) -> Hashable:
    return next(value for value in values if value is not None)
