"""Published architectures, a lineage a file."""

from __future__ import annotations

from anyformer.errors import SpecError, did_you_mean
from anyformer.families import (
    albert,
    bart,
    bert,
    bigbird,
    bloom,
    cohere,
    deberta,
    deepseek,
    electra,
    falcon,
    gemma,
    gopher,
    gpt2,
    gpt3,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    lamda,
    llama,
    llama_like,
    longformer,
    marian,
    mistral,
    mixtral,
    nemotron,
    olmo,
    openai_gpt,
    opt,
    palm,
    phi,
    phi3_small,
    phi_moe,
    qwen2,
    qwen_moe,
    sparse_transformer,
    switch,
    t5,
    transformer,
    xlnet,
)
from anyformer.families.classifier import with_classifier
from anyformer.families.hf import FAMILIES, Family
from anyformer.families.preset import Preset
from anyformer.families.training import trained
from anyformer.families.undisclosed import UNDISCLOSED, Undisclosed

# What is said for a lineage where the size is not meant: a preset of the size that it is known by.
ALIASES = {
    "transformer": "transformer-base",
    "marian": "opus-mt-en-de",
    "t5": "t5-base",
    "t5-v1.1": "t5-v1.1-base",
    "mt5": "mt5-base",
    "bart": "bart-base",
    "switch": "switch-base-8",
    "bert": "bert-base",
    "roberta": "roberta-base",
    "distilbert": "distilbert-base",
    "minilm": "minilm-l6-h384",
    "albert": "albert-base",
    "electra": "electra-base",
    "deberta": "deberta-base",
    "deberta-v2": "deberta-v2-xlarge",
    "deberta-v3": "deberta-v3-base",
    "longformer": "longformer-base-4096",
    "bigbird": "bigbird-base",
    "xlnet": "xlnet-base",
    "led": "led-base-16384",
    "sparse-transformer": "sparse-transformer-enwik8",
    "gpt3": "gpt3-175b",
    "gpt-neo": "gpt-neo-2.7b",
    "gptj": "gptj-6b",
    "gpt-neox": "gpt-neox-20b",
    "pythia": "pythia-6.9b",
    "opt": "opt-6.7b",
    "bloom": "bloom-7b1",
    "gopher": "gopher-280b",
    "chinchilla": "chinchilla-70b",
    "lamda": "lamda-137b",
    "palm": "palm-540b",
    "falcon": "falcon-7b",
    "llama": "llama-7b",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "mistral": "mistral-7b-v0.1",
    "mixtral": "mixtral-8x7b",
    "qwen": "qwen-7b",
    "qwen2": "qwen2-7b",
    "qwen2.5": "qwen2.5-7b",
    "gemma": "gemma-7b",
    "gemma2": "gemma2-9b",
    "gemma3": "gemma3-4b",
    "phi3": "phi3-mini-4k",
    "phi4": "phi4-14b",
    "olmo": "olmo-7b",
    "olmo2": "olmo2-7b",
    "nemotron4": "nemotron4-15b",
    "smollm2": "smollm2-135m",
    "yi": "yi-6b",
    "gpt-oss": "gpt-oss-20b",
}
LINEAGES = (  # in the order of the field's history
    transformer,
    openai_gpt,
    bert,
    albert,
    xlnet,
    electra,
    deberta,
    marian,
    t5,
    bart,
    longformer,
    bigbird,
    switch,
    sparse_transformer,
    gpt2,
    gpt3,
    gpt_neo,
    gptj,
    gopher,
    lamda,
    palm,
    gpt_neox,
    opt,
    bloom,
    falcon,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen_moe,
    phi_moe,
    gpt_oss,
    deepseek,
    gemma,
    llama_like,
    olmo,
    phi,
    cohere,
    nemotron,
    phi3_small,
)
PRESETS: dict[str, Preset] = {preset.name: trained(preset) for lineage in LINEAGES for preset in lineage.PRESETS}


def find(name: str) -> Preset | None:
    """Return a preset by its name, or by its family's short name; None where there is none."""
    return PRESETS.get(ALIASES.get(name, name))


def preset(name: str) -> Preset:
    """Return a preset by its name, or by its family's short name.

    Raises SpecError with the nearest name, or, for a model that is not public, with what is missing.
    """
    if name in UNDISCLOSED:
        raise UNDISCLOSED[name].refusal()
    found = find(name)
    if found is None:
        raise SpecError(
            f"there is no preset {name!r}{did_you_mean(name, [*PRESETS, *ALIASES])}; `anyformer presets` lists them"
        )
    return found


def presets(family: str | None = None) -> tuple[str, ...]:
    """The names of all presets, or of one family's. Raises SpecError for an unknown family."""
    families = {p.family for p in PRESETS.values()}
    if family is not None and family not in families:
        raise SpecError(
            f"there is no family {family!r}{did_you_mean(family, families)}; there are {', '.join(sorted(families))}"
        )
    return tuple(p.name for p in PRESETS.values() if family in (None, p.family))


__all__ = [
    "ALIASES",
    "FAMILIES",
    "PRESETS",
    "UNDISCLOSED",
    "Family",
    "Preset",
    "with_classifier",
    "Undisclosed",
    "find",
    "preset",
    "presets",
]
