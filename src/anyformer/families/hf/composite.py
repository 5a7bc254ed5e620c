"""Models that also see or hear, of which the text model alone is read: what their configurations and files call it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from anyformer.errors import CheckpointError
from anyformer.families.hf.settings import TOKEN_IDS, Settings

TEXT, TIED = "text_config", "tie_word_embeddings"


class Composite(NamedTuple):
    """A class that reads text and something else; of text alone it computes what its text model's own class does."""

    architecture: str
    text: str  # the model_type of its text model, where its configuration does not say
    tied: bool = False  # whether logits are of the table of tokens, where its configuration does not say


# Not of Cohere's, whose class leaves logit_scale out, nor PaliGemma's, which sees all of its prefix.
COMPOSITES: Mapping[str, Composite] = {
    "apertus1p5": Composite("Apertus1p5ForConditionalGeneration", "apertus1p5_text"),
    "exaone4_5": Composite("Exaone4_5_ForConditionalGeneration", "exaone4"),
    "gemma3": Composite("Gemma3ForConditionalGeneration", "gemma3_text", tied=True),
    "gemma3n": Composite("Gemma3nForConditionalGeneration", "gemma3n_text", tied=True),
    "gemma4": Composite("Gemma4ForConditionalGeneration", "gemma4_text", tied=True),
    "idefics3": Composite("Idefics3ForConditionalGeneration", "llama"),
    "internvl": Composite("InternVLForConditionalGeneration", "qwen2", tied=True),
    "lfm2_vl": Composite("Lfm2VlForConditionalGeneration", "lfm2", tied=True),
    "lighton_ocr": Composite("LightOnOcrForConditionalGeneration", "qwen3", tied=True),
    "llama4": Composite("Llama4ForConditionalGeneration", "llama4_text"),
    "llava": Composite("LlavaForConditionalGeneration", "llama"),
    "llava_next": Composite("LlavaNextForConditionalGeneration", "llama"),
    "llava_onevision": Composite("LlavaOnevisionForConditionalGeneration", "qwen2"),
    "minimax_m3_vl": Composite("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl_text"),
    "mistral3": Composite("Mistral3ForConditionalGeneration", "mistral", tied=True),
    "qwen3_5": Composite("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "qwen3_5_moe": Composite("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    "qwen4_exp": Composite("Qwen4ExpForConditionalGeneration", "qwen4_exp_text"),
    "smolvlm": Composite("SmolVLMForConditionalGeneration", "llama"),
}
# The settings beside the text model's own that change none of its numbers; TIED and TEXT are read, TOKEN_IDS go along.
OF_SENSES = re.compile(
    r"vision|image|video|audio|project(or|ion)|multimodal|patch|pixel|spatial|downsample|upsample|thumbnail|tile|adapter|alignment|"
    r"boi_|eoi_|boa_|eoa_|merged_hidden_size|scale_factor|_token(_id|_index)?$|_tokens?_per_|mm_|vocab_offset|ignore_index"
)
# Before the names of the text model's tensors: as the classes have it now, and as files were written before.
OF_TEXT = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:model\.)?")
HEAD = "lm_head."


def composite_of(config: Mapping[str, Any]) -> Composite | None:
    """What a configuration is of; None for one of a text model alone, and of anything that is not known here."""
    return COMPOSITES.get(str(config.get("model_type")))


def text_config(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """The configuration of the text model alone inside that of a composite; None for any other.

    Its head is the composite's own, which the setting TIED beside it is of. Raises CheckpointError for one without it, and
    for a setting that is not known to leave text alone.
    """
    composite = composite_of(config)
    if composite is None:
        return None
    outer, inner = Settings(config, where), config.get(TEXT)
    if outer.section(TEXT) is None or not isinstance(inner, Mapping):
        raise CheckpointError(f"{where} has no table {TEXT}, so its text model is unknown; copy it again")
    outer.ignore(*(name for name, value in config.items() if OF_SENSES.search(name) or inner.get(name) == value))
    tied = outer.take(TIED, bool, composite.tied)
    outer.close()
    beside = {name: config[name] for name in TOKEN_IDS if name in config}
    return {"model_type": composite.text, **inner, **beside, TIED: tied}


def alone(name: str) -> str | None:
    """What the text model calls a tensor of a composite's files, its head left out; None for one that sees or hears."""
    found = OF_TEXT.match(name)
    if found is None:
        return name if name.startswith(HEAD) else None
    return name[found.end() :]
