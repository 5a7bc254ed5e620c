"""Files that others wrote, read as hostile input: names that stay in their directory, links that do, JSON within bounds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from anyformer.errors import AnyformerError

LARGEST_NBYTES = 64 << 20  # the largest tokenizer.json published has half of that
DEEPEST = 64  # lists and tables inside each other
LONGEST_NUMBER = 40  # digits; a tokenizer without a limit says 1000000000000000019884624838656
_PLAIN = re.compile(r"[^/\\:\x00-\x1f\x7f]+")


def named_in(directory: Path, name: object, said: str, error: type[AnyformerError]) -> Path:
    """What a file that lists others calls `name`: a plain name in the directory, nothing elsewhere.

    `said` is what lists it, for the message. Raises `error` for any other name, and for a link that `inside` refuses.
    """
    plain = isinstance(name, str) and _PLAIN.fullmatch(name) and len(name.encode()) <= 255 and name not in (".", "..")
    if not isinstance(name, str) or not plain:
        raise error(f"{said} names {name!r}, which is no plain name of a file beside it; copy the directory again")
    return inside(directory / name, error)


def inside(path: Path, error: type[AnyformerError]) -> Path:
    """A path in a directory, be there anything or not. A link may lead to its neighbours, and where the hub's cache keeps them.

    Raises `error` for links that lead elsewhere, to nothing or in a circle.
    """
    if not path.is_symlink():
        return path
    root = path.parent.resolve()
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop is a RuntimeError before Python 3.13
        raise error(f"{path} is a link to nothing, or in a circle; copy the file itself there") from None
    caches = [above.parent / "blobs" for above in root.parents if above.name == "snapshots"]
    if not any(real.is_relative_to(allowed) for allowed in (root, *caches)):
        raise error(f"{path} is a link that leads out of its directory, to {real}; copy the file itself there")
    return path


def read_json(path: Path, error: type[AnyformerError]) -> Any:
    """What a JSON file says. Raises `error` for a file that `read_bytes` or `parse_json` refuses."""
    return parse_json(read_bytes(path, error), str(path), error)


def read_bytes(path: Path, error: type[AnyformerError]) -> bytes:
    """What a file of settings, or a vocabulary, holds. Raises `error` for one that cannot be read or is far too large."""
    try:
        if path.stat().st_size > LARGEST_NBYTES:
            raise error(f"{path} has more than {LARGEST_NBYTES:,} bytes, which no settings take; copy it again")
        return path.read_bytes()
    except OSError as reason:
        raise error(f"{path} cannot be read ({reason.strerror}); copy it again") from None


def parse_json(content: bytes, where: str, error: type[AnyformerError], remedy: str = "copy it again") -> Any:
    """What JSON says; `where` names it in messages.

    Infinity, as transformers 5 spells it, is a table that says so. Raises `error` for what is no JSON (NaN among it), for numbers
    that float64 does not hold, for keys that stand twice and say two things, for half characters, and beyond the bounds of this
    module.
    """
    try:
        found = json.loads(
            content.decode("utf-8"),
            parse_int=_integer,
            parse_float=_real,
            parse_constant=_constant,
            object_pairs_hook=keys_once,
        )
        _refuse_deep(found)
        if b"\\ud" in content.lower():
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise error(f"{where} holds half a character (a lone surrogate); {remedy}") from None
    except RecursionError:
        raise error(f"{where} is nested deeper than {DEEPEST} times; {remedy}") from None
    except ValueError as reason:
        raise error(f"{where} is not JSON ({reason}); {remedy}") from None
    return found


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _real(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:LONGEST_NUMBER]} is beyond the numbers that are held")
    return found


def _constant(word: str) -> dict[str, str]:
    """What is no JSON: infinity as transformers 5 writes it, which only a setting that may be infinite is read from."""
    if word != "Infinity":
        raise ValueError(f"{word} is no number")
    return {"__float__": word}


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `json.loads`. Raises ValueError for a key that stands twice and says two things."""
    found = dict(pairs)
    if len(found) < len(pairs):
        said = next((name for name, value in pairs if found[name] != value), None)
        if said is not None:
            raise ValueError(f"{said!r} stands twice and says two things")
    return found


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise RecursionError
