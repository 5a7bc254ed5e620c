"""Conversion: from files to files, a tensor at a time, so that the largest file decides what memory it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from anyformer.errors import UsageError
from anyformer.hub.contents import contents
from anyformer.hub.gguf import GGUF
from anyformer.hub.labels import labels_of
from anyformer.hub.loading import tokenizer_of
from anyformer.hub.saving import Form, SavedDirectory, planned, refuse_larger, special_tokens
from anyformer.hub.source import find
from anyformer.hub.writing import SHARD_NBYTES, refuse_in_use, whole, write_json, write_tensors
from anyformer.text.companions import GENERATION, read_companions, write_companions

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def convert(
    source: str | Path,
    target: str | Path,
    *,
    form: Form | None = None,
    hf_type: str | None = None,
    dtype: torch.dtype | None = None,
    shard_nbytes: int = SHARD_NBYTES,
) -> SavedDirectory:
    """Write a checkpoint (Hugging Face's, ours, a run's, GGUF) anew in a new directory, without ever holding the model.

    `form` None takes "hf" where a class of transformers computes the model, its own if it has one; `hf_type` asks for
    that of one model_type. `dtype` None keeps each tensor's. Files hold at most `shard_nbytes`, or one tensor; the memory
    needed is about that, or what the largest row of either side's table takes. Tokenizer, chat template and defaults for
    generation are copied byte for byte. Raises what `load` and `save` do.
    """
    target = Path(target)
    refuse_in_use(target)
    if form == "anyformer" and hf_type is not None:
        raise UsageError(
            f"a class of transformers ({hf_type}) is only for Hugging Face's form; leave one of the two out"
        )
    found = find(source)
    held = contents(found)
    widest = held.dtype()
    plan = planned(found.spec, form, hf_type, found.family)
    tokenizer = tokenizer_of(found)
    refuse_larger(tokenizer, found.spec)
    places = [place for place in (found.weights, found.tokenizer) if place is not None and place.is_dir()]
    files = {name: content for place in places for name, content in read_companions(place).items()}
    cast = dtype or (widest if isinstance(held.weights, GGUF) else None)
    alike = plan.family is found.family
    with whole(target) as aside:
        tokens = special_tokens(tokenizer, found.spec)
        tokens |= {name: found.settings[name] for name in IDS if name in found.settings}
        plan.describe(aside, dtype or _named(found.settings) or widest, tokens, labels_of(found))
        tensors = held.through(plan.rows(), alike=alike)
        kept = ((name, tensor if cast is None else tensor.to(cast)) for name, tensor in tensors)
        write_tensors(aside, kept, shard_nbytes, held.weights.release)
        if files:
            write_companions(files, aside)
        elif tokenizer is not None:
            tokenizer.save(aside)
        if plan.family is not None and not (aside / GENERATION).exists():
            write_json(aside / GENERATION, {"_from_model_config": True, **tokens})
    return plan.saved(target)


def _named(settings: dict[str, Any]) -> torch.dtype | None:
    """The dtype that a configuration names, which transformers loads all tensors in."""
    return DTYPES.get(str(settings.get("dtype") or settings.get("torch_dtype")).removeprefix("torch."))
