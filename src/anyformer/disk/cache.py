"""The user's cache directory, and answers kept in it by their question: what is lost or damaged is worked out again."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyformer.disk.atomic import create_directories, replace_file

MOST_NBYTES = 16 << 20  # of the answers of one room; the oldest go


def cache_directory() -> Path:
    """Where what can be made again is kept: `$ANYFORMER_CACHE`, else `anyformer` in `$XDG_CACHE_HOME` or `~/.cache`."""
    own, shared = os.environ.get("ANYFORMER_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(shared or Path.home() / ".cache") / "anyformer"


def recall(room: str, question: Any) -> Any:
    """The answer that was kept; None where there is none, or where its file is not what was written."""
    try:
        digest, _, body = _file(room, question).read_text(encoding="utf-8").partition("\n")
        asked, answer = json.loads(body)
    except (OSError, ValueError, TypeError):
        return None
    return answer if digest == _digest(body) and asked == json.loads(json.dumps(question)) else None


def remember(room: str, question: Any, answer: Any) -> None:
    """Keep an answer of plain data; where that cannot be, it is worked out again next time."""
    path, body = _file(room, question), json.dumps([question, answer])
    with suppress(OSError):
        create_directories(path.parent)
        replace_file(path, f"{_digest(body)}\n{body}".encode())
        _forget_the_oldest(path.parent)


def _forget_the_oldest(directory: Path) -> None:
    found = sorted(((entry.stat(), entry.path) for entry in os.scandir(directory)), key=lambda one: -one[0].st_mtime)
    total = 0
    for stat, path in found:
        total += stat.st_size
        if total > MOST_NBYTES:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _file(room: str, question: Any) -> Path:
    return cache_directory() / room / f"{_digest(json.dumps(question, sort_keys=True))[:32]}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
