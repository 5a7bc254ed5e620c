"""What the integrations are tried on: small, every weight random, of each kind that there is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.integrations.transformers import (
    AnyformerConfig,
    AnyformerForCausalLM,
    AnyformerForMaskedLM,
    AnyformerForSeq2SeqLM,
)
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.variants.variant import apply, parsed
from tests.laws.models import randomised

# No class of transformers computes the first: LLaMA's layers with another norm, activation and positions.
OWN, WINDOWS, STATE, HYBRID, BOTH, MASKED = (
    "llama2-7b+norm=LayerNorm+positions=alibi",
    "gemma3-1b",
    "mamba2-130m",
    "qwen3-next-80b-a3b",
    "transformer-base",
    "bert-base",
)
WRITERS = [OWN, WINDOWS, STATE, HYBRID, BOTH]
CLASSES: dict[str, Any] = {BOTH: AnyformerForSeq2SeqLM, MASKED: AnyformerForMaskedLM}
START = 1  # of what a decoder beside an encoder writes


def spec_of(name: str) -> ModelSpec:
    base, *changes = name.split("+")
    read = lambda each: preset(each).spec  # noqa: E731
    return shrink(apply(preset(base).spec, map(parsed, changes), read))


def config_of(spec: ModelSpec, **options: Any) -> AnyformerConfig:
    return AnyformerConfig.of(spec, pad_token_id=0, decoder_start_token_id=START, **options)


def theirs_and_ours(name: str, seed: int = 0) -> tuple[Any, Transformer]:
    """A model in transformers' class, and ours of the same random weights."""
    ours = randomised(spec_of(name), seed)
    theirs = CLASSES.get(name, AnyformerForCausalLM)(config_of(ours.spec)).eval()
    theirs.inner.load_state_dict(ours.state_dict())
    return theirs, ours


def start_for(ours: Transformer, batch: int) -> dict[str, Tensor]:
    """What a decoder beside an encoder begins with."""
    return {} if ours.encoder is None else {"decoder_input_ids": torch.full((batch, 1), START)}
