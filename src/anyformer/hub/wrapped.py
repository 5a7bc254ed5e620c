"""Directories that transformers reads by `import anyformer.integrations.transformers`: the specification in config.json.

The names are those that `AnyformerForCausalLM` and its like save; nothing here imports transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import CheckpointError, SpecError
from anyformer.families.heads import JUDGES
from anyformer.hub.sentences import read_table, write_json
from anyformer.hub.weights import Weights
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec, dumps, loads
from anyformer.text import Tokenizer
from anyformer.text.companions import CONFIG as TOKENIZER_CONFIG

MODEL_TYPE = "anyformer"
BASE = "transformer."  # before our names in a file of the model without its head
PREFIX = f"model.{BASE}"  # and in those of every other class


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


def prefix_in(weights: Weights) -> str:
    """What stands before our names in the files."""
    return next((prefix for prefix in (PREFIX, BASE) if any(n.startswith(prefix) for n in weights.listed())), PREFIX)


def wrapped_config(spec: ModelSpec) -> dict[str, Any]:
    """What config.json says of a model."""
    return {
        "architectures": [_class_of(spec)],
        "model_type": MODEL_TYPE,
        "specification": json.loads(dumps(spec, "json")),
        "is_encoder_decoder": spec.encoder is not None,
    }


def _class_of(spec: ModelSpec) -> str:
    if not spec.heads:
        return "AnyformerModel"
    if any(head.name in JUDGES for head in spec.heads):
        return "AnyformerForSequenceClassification"
    if later_tokens_seen(spec.stack, after_prefix=True):
        return "AnyformerForMaskedLM"
    return "AnyformerForCausalLM" if spec.encoder is None else "AnyformerForSeq2SeqLM"


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
