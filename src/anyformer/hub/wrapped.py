"""Directories that transformers reads by `import anyformer.integrations.transformers`: the specification in config.json.

The names are those that `AnyformerForCausalLM` and its like save; nothing here imports transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from anyformer.errors import CheckpointError, SpecError
from anyformer.families.heads import CLASSES, JUDGES
from anyformer.hub.sentences import read_table, write_json
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec, dumps, loads
from anyformer.text import Tokenizer
from anyformer.text.companions import CONFIG as TOKENIZER_CONFIG

MODEL_TYPE = "anyformer"
BASE = "transformer."  # before our names in a file of the model without its head
PREFIX = f"model.{BASE}"  # and in those of every other class
Class = Literal[
    "AnyformerModel",
    "AnyformerForCausalLM",
    "AnyformerForMaskedLM",
    "AnyformerForSeq2SeqLM",
    "AnyformerForSequenceClassification",
]


def is_wrapped(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json holds a specification."""
    return settings.get("model_type") == MODEL_TYPE


def wrapped_spec(settings: Mapping[str, Any], where: str) -> ModelSpec:
    """The specification of a config.json. Raises CheckpointError without one."""
    data = settings.get("specification")
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{where}: model_type is {MODEL_TYPE} and there is no specification; convert the model again"
        )
    try:
        return loads(json.dumps(data))
    except SpecError as error:
        raise CheckpointError(f"{where}: {error}") from None


def prefix_in(names: Iterable[str], before: str = "") -> str:
    """What stands before our names in files, behind what stands before all: of an adapter, what PEFT puts there."""
    held = tuple(names)
    known = [before + prefix for prefix in (PREFIX, BASE)]
    return next((prefix for prefix in known if any(name.startswith(prefix) for name in held)), known[0])


def wrapped_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json says of a model."""
    return {
        "architectures": [class_of(spec)],
        "model_type": MODEL_TYPE,
        "specification": json.loads(dumps(spec, "json")),
        "is_encoder_decoder": spec.encoder is not None,
    }


def class_of(spec: ModelSpec) -> Class:
    """The class of ours in transformers whose answers are those of the model's heads, or the one without a head."""
    if any(head.name == CLASSES for head in spec.heads):
        return "AnyformerForSequenceClassification"
    if writes_text(spec):
        return "AnyformerForCausalLM" if spec.encoder is None else "AnyformerForSeq2SeqLM"
    return "AnyformerModel" if says_hidden_words(spec) is None else "AnyformerForMaskedLM"


def writes_text(spec: ModelSpec) -> bool:
    """Whether the first head says the next token."""
    first = spec.heads[0] if spec.heads else None
    says = first is not None and first.table is not None and first.name not in JUDGES
    return says and not later_tokens_seen(spec.stack, after_prefix=True)


def says_hidden_words(spec: ModelSpec) -> str | None:
    """The name of an encoder's head that says hidden words, the first of these; None without one."""
    if spec.encoder is not None:
        return None
    return next((head.name for head in spec.heads if (head.pool is None and head.tied) or head.name == "mlm"), None)


def names_before(spec: ModelSpec) -> str:
    """What stands before our names in the class of ours that computes the model."""
    return BASE if class_of(spec) == "AnyformerModel" else PREFIX


def name_padding(tokenizer: Tokenizer | None, directory: Path) -> int | None:
    """The id that pads, written into tokenizer_config.json where none was named: batches in transformers need one.

    The token that closes a text will do; None without a tokenizer or such a token.
    """
    if tokenizer is None:
        return None
    if tokenizer.padding is not None or tokenizer.end_of_text is None:
        return tokenizer.padding
    path = directory / TOKENIZER_CONFIG
    said = read_table(path) if path.is_file() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    closing = tokenizer.spelling(tokenizer.end_of_text)
    write_json(path, {"eos_token": closing} | said | {"pad_token": closing})
    return tokenizer.end_of_text
