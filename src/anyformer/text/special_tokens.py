"""Which tokens open and close a text, read from what lies beside a `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyformer.errors import TextError

CONFIG_FILE = "tokenizer_config.json"

# (opens, closes) of published vocabularies, tried in this order where no configuration says which.
_KNOWN = (
    ("<|endoftext|>", "<|endoftext|>"),
    ("<|begin_of_text|>", "<|end_of_text|>"),
    ("<s>", "</s>"),
    ("<bos>", "<eos>"),
)


def read_config(directory: Path) -> dict[str, Any]:
    """The `tokenizer_config.json` of a directory, or an empty one. Raises TextError where it isn't a JSON object."""
    path = directory / CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TextError(f"{path} is not JSON ({error}); restore or delete it") from None
    if not isinstance(config, dict):
        raise TextError(f"{path} holds no JSON object; restore or delete it")
    return config


def opening_and_closing(config: dict[str, Any], special: set[str]) -> tuple[str | None, str | None]:
    """Spellings of the tokens that open and close a text; None where there is none.

    What the configuration names wins (`bos_token`, `eos_token`: a string or an object with `content`, as Hugging Face
    writes them); without any configuration, the usual spellings among the `special` tokens.
    """
    named = [content_of(config.get(key)) for key in ("bos_token", "eos_token")]
    if any(named):
        return named[0], named[1]
    for opening, closing in _KNOWN:
        if closing in special:
            return (opening if opening in special else None), closing
    return None, None


def content_of(value: Any) -> str | None:
    """The spelling of a token that a configuration names, as a string or an object; None for none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
