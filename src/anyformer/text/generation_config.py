"""What a generation_config.json says: which tokens begin and end what a model writes, and how each is chosen.

transformers writes it beside weights. Without one it takes the same fields from config.json, where older releases have them.
"""

from __future__ import annotations

import json
import math
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
    *("num_beams", "length_penalty", "early_stopping", "renormalize_logits", "bad_words_ids", "suppress_tokens"),
    *("forced_eos_token_id", "min_length", "min_new_tokens", "max_length", "max_new_tokens"),
)
# What GGUF files have a key for too: how texts are drawn.
KEYS: Mapping[str, str] = {
    "temperature": "general.sampling.temp",
    **{name: f"general.sampling.{name}" for name in ("top_k", "top_p", "min_p")},
}
# The same as CHOOSING, of what is not done here, each with the values that change nothing.
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
    return json_object(files[GENERATION], f"{GENERATION} beside the tokenizer")


def json_object(content: bytes, where: str) -> dict[str, Any]:
    """What a file of settings says. Raises TextError, which calls it as `where` does, for what is no JSON object."""
    found = parse_json(content, where, TextError, "restore or delete it")
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


def of_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a GGUF file says of how texts are drawn, as generation_config.json says it. Raises TextError for what is no number."""
    said = {name: metadata[key] for name, key in KEYS.items() if key in metadata}
    for name, value in said.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TextError(
                f"the file's {KEYS[name]} = {value!r} is no number; take the model's Hugging Face directory"
            )
    # A file holds 32 bits of a number: 0.6 is 0.6000000238418579 there.
    said = {name: value if type(value) is int else float(f"{value:.7g}") for name, value in said.items()}
    return {"do_sample": True, **said} if said else {}


def as_metadata(said: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(what a GGUF file says of how texts are drawn, the names of what it has no key for)."""
    draws = said.get("do_sample") is True
    held = {name: said[name] for name in KEYS if draws and name in said and _is_held(said[name])}
    idle = ("do_sample", *held, *(() if draws else KEYS))
    lost = [name for name in CHOOSING if name not in idle and said.get(name) is not None]
    lost += [name for name, neutral in NEUTRAL.items() if said.get(name) not in (None, *neutral)]
    found = {KEYS[name]: value if name == "top_k" else float(value) for name, value in held.items()}
    return found, lost


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


def _is_held(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST_IDS


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_IDS
