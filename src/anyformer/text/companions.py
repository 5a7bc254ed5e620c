"""What lies beside a `tokenizer.json` and belongs to it: which tokens open and close a text, chat templates, older spellings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.disk.atomic import replace_file
from anyformer.disk.foreign import inside
from anyformer.errors import TextError
from anyformer.text.generation_config import GENERATION, json_object, settings_of
from anyformer.text.tokenizer_file import FILE

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
PROMPTS = "config_sentence_transformers.json"
# What Hugging Face's tokenizers and processors of text write and read; `*` stands for the name of a template.
PATTERNS = (
    FILE,
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    TEMPLATE,
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    GENERATION,
    PROMPTS,
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
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# (opens, closes) of published vocabularies, tried in this order where no configuration says which.
_KNOWN = (
    ("<|endoftext|>", "<|endoftext|>"),
    ("<|begin_of_text|>", "<|end_of_text|>"),
    ("<s>", "</s>"),
    ("<bos>", "<eos>"),
    ("[CLS]", "[SEP]"),
)


def read_companions(directory: Path) -> dict[str, bytes]:
    """The files of a directory that travel with a tokenizer, the tokenizer's own included, by relative name.

    Raises TextError for a link that leads out of the directory: what it leads to would be copied along.
    """
    found = [inside(path, TextError) for pattern in PATTERNS for path in sorted(directory.glob(pattern))]
    for folder in {path.parent for path in found} - {directory}:
        inside(folder, TextError)
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found if path.is_file()}


def write_companions(files: Mapping[str, bytes], directory: Path) -> None:
    """Write files by relative name, `tokenizer.json` last: it makes a directory a tokenizer's."""
    for name in sorted(files, key=lambda name: name == FILE):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(directory / name, files[name])


def rewritten(
    files: Mapping[str, bytes], inner: str, config: Mapping[str, Any], said: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files with another tokenizer.json, another tokenizer_config.json, and what generation_config.json is to say too."""
    settings = {CONFIG: config, GENERATION: {**settings_of(files), **said}}
    made = {
        name: json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n" for name, told in settings.items() if told
    }
    return {**files, **made, FILE: inner.encode()}


def read_config(directory: Path) -> dict[str, Any]:
    """The `tokenizer_config.json` of a directory, or an empty one. Raises TextError where it isn't a JSON object."""
    path = inside(directory / CONFIG, TextError)
    return json_object(path.read_bytes(), str(path)) if path.is_file() else {}


def opening_and_closing(config: Mapping[str, Any], special: set[str]) -> tuple[str | None, str | None]:
    """Spellings of the tokens that open and close a text; None where there is none.

    What the configuration names wins (`bos_token`, `eos_token`); else the usual spellings among the `special` tokens.
    """
    named = [content_of(config.get(key)) for key in ("bos_token", "eos_token")]
    if any(named):
        return named[0], named[1]
    for opening, closing in _KNOWN:
        if closing in special:
            return (opening if opening in special else None), closing
    return None, None


def content_of(value: Any) -> str | None:
    """The spelling of a token that a configuration names: a string, or an object with `content`; None for none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def chat_template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    """The template that makes one text of a conversation; of several the one called "default". None where there is none.

    A file of its own wins over what tokenizer_config.json says. Raises TextError for what is no text.
    """
    if TEMPLATE in files:
        found: Any = files[TEMPLATE].decode(errors="replace")
    elif "chat_template.json" in files:
        found = json_object(files["chat_template.json"], "chat_template.json").get("chat_template")
    else:
        found = config.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise TextError(f"chat_template is a {type(found).__name__}; it must be a text, or a list of them with names")
    return found
