"""What a generation_config.json says: which tokens begin and end what a model writes, and how each is chosen.

transformers writes it beside weights. Without one it takes the same fields from config.json, where older releases have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anyformer.disk.foreign import parse_json
from anyformer.errors import TextError

GENERATION = "generation_config.json"
MOST_IDS = 1 << 31  # what 32 bits number
# What begins the answer of a decoder beside an encoder: what it reads first, and what it always writes first.
ANSWER = ("decoder_start_token_id", "forced_bos_token_id")
# Which tokens are chosen, and when a text ends, as `generation.released` reads it.
CHOOSING = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size"),
    *(
        "num_beams",
        "length_penalty",
        "early_stopping",
        "renormalize_logits",
        "bad_words_ids",
        "suppress_tokens",
        "forced_eos_token_id",
    ),
    *("min_length", "min_new_tokens", "max_length", "max_new_tokens"),
)
# The same, of what is not done here, each with the values that change nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "guidance_scale": (1,),
    "sequence_bias": (),
    "constraints": (),
    "force_words_ids": (),
    "exponential_decay_length_penalty": (),
    "begin_suppress_tokens": ([],),
    "stop_strings": ([],),
    "watermarking_config": (),
    "remove_invalid_values": (False,),
}


def settings_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """What the file among these says; nothing where there is none. Raises TextError for one that holds no JSON object."""
    if GENERATION not in files:
        return {}
    where = f"{GENERATION} beside the tokenizer"
    found = parse_json(files[GENERATION], where, TextError, "restore or delete it")
    if not isinstance(found, dict):
        raise TextError(f"{where} holds no JSON object; restore or delete it")
    return found


def with_defaults(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files, and without a generation_config.json one of what a config.json says, as transformers makes it."""
    if GENERATION in files:
        return dict(files)
    ids = {name: config.get(name) for name in ("eos_token_id", *ANSWER)}
    said = {
        name: value
        for name, value in ids.items()
        if value not in (None, []) and all(map(_is_id, value if isinstance(value, list) else [value]))
    }
    said |= {name: config[name] for name in (*CHOOSING, *NEUTRAL) if config.get(name) is not None}
    return {**files, **({GENERATION: json.dumps(said, indent=2).encode() + b"\n"} if said else {})}


def closing_ids(said: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a text, a number or a list; none where nothing is said. Raises TextError for anything else."""
    value = said.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(_is_id(each) for each in ids):
        raise TextError(f"{GENERATION}: eos_token_id = {value!r} must be a token's id or a list of them")
    return tuple(ids)


def answer_ids(said: Mapping[str, Any]) -> list[int | None]:
    """The ids of ANSWER, None where nothing is said. Raises TextError for anything else."""
    found = [said.get(name) for name in ANSWER]
    for name, value in zip(ANSWER, found, strict=True):
        if value is not None and not _is_id(value):
            raise TextError(f"{GENERATION}: {name} = {value!r} must be a token's id")
    return found


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_IDS
