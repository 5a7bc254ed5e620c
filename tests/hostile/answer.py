"""What a command answered, less what is of the moment: equal for equal inputs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile.arena import Ending

_OF_THE_MOMENT = re.compile(r"second|date|per_hour|share_of_peak|elapsed|command|lock", re.IGNORECASE)  # keys
_TIMES = re.compile(
    r"[\d.,]+ ?(µs|ms|s|min|h|days|tokens/s|tokens a second|[kMGTP]?FLOPs?/s|%)(?!\w)|20\d\d-\d\d-\d\d[T \d:+]*"
)


def answer_of(arguments: Sequence[str], outputs: Sequence[str], ending: Ending, folder: Path) -> str:
    """The status, what was printed, the metrics of a run that was gone on with, and the weights and settings written."""
    parts = [str(ending.status), timeless(ending.out)]
    metrics = folder / "run" / "metrics.jsonl"
    if arguments[0] == "train" and metrics.is_file():
        parts += [timeless(line) for line in metrics.read_text(encoding="utf-8", errors="replace").splitlines()]
    for pattern in outputs:
        for path in sorted((folder / pattern).rglob("*.safetensors")):
            parts.append(f"{path.relative_to(folder)} {hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()}")
        if pattern == "out":
            for path in sorted((folder / pattern).glob("*.json")):
                parts.append(f"{path.relative_to(folder)} {path.read_text(encoding='utf-8', errors='replace')}")
    return "\n".join(parts)


def timeless(text: str) -> str:
    """A text without times: JSON without the keys that are, anything else without its figures of time."""

    def without(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: without(value) for key, value in tree.items() if not _OF_THE_MOMENT.search(key)}
        return [without(each) for each in tree] if isinstance(tree, list) else tree

    try:
        return json.dumps(without(json.loads(text)), sort_keys=True)
    except ValueError:
        return re.sub(r"\s+", " ", _TIMES.sub("", text))


def first_change(before: str, after: str) -> str:
    """The first line that is another, of both."""
    for old, new in zip(before.split("\n"), after.split("\n"), strict=False):
        if old != new:
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            return f"…{old[max(0, at - 40) : at + 60]!r} became …{new[max(0, at - 40) : at + 60]!r}"
    return f"{before.count(chr(10)) + 1} lines became {after.count(chr(10)) + 1}"
