"""One thing that is found in an architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "consequence", "note"]  # it cannot work; what follows from a choice; what is unusual


@dataclass(frozen=True)
class Finding:
    """A sentence about one subject."""

    severity: Severity
    about: str  # attention, cache, export, positions, vocabulary …
    text: str
