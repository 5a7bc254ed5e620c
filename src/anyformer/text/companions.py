"""What lies beside a `tokenizer.json` and belongs to it: chat templates, older spellings, defaults for generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import TextError

GENERATION = "generation_config.json"
# What Hugging Face's tokenizers and processors of text write and read; `*` stands for the name of a template.
PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    GENERATION,
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tokenizer.model.v3",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
)


def read_companions(directory: Path) -> dict[str, bytes]:
    """The files of a directory that travel with a tokenizer, the tokenizer's own included, by relative name."""
    found = [path for pattern in PATTERNS for path in sorted(directory.glob(pattern)) if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def write_companions(files: Mapping[str, bytes], directory: Path) -> None:
    """Write files by relative name."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def closing_ids(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """The ids that end a text according to generation_config.json, a number or a list; none where it is silent.

    Raises TextError for anything else.
    """
    value = _defaults(files).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(each) is int for each in ids):
        raise TextError(f"{GENERATION}: eos_token_id = {value!r} must be a token's id or a list of them")
    return tuple(ids)


def answer_start(files: Mapping[str, bytes]) -> int | None:
    """The id that begins what a decoder beside an encoder writes, according to generation_config.json.

    None where it is silent. Raises TextError for anything else.
    """
    value = _defaults(files).get("decoder_start_token_id")
    if value is not None and type(value) is not int:
        raise TextError(f"{GENERATION}: decoder_start_token_id = {value!r} must be a token's id")
    return value


def _defaults(files: Mapping[str, bytes]) -> dict[str, Any]:
    if GENERATION not in files:
        return {}
    try:
        found = json.loads(files[GENERATION])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TextError(f"{GENERATION} beside the tokenizer holds no JSON object; restore or delete it")
    return found
