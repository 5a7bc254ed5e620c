"""Models that also see or hear, of which the text model alone is read: what their configurations and files call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anyformer.errors import CheckpointError
from anyformer.families.hf.settings import TOKEN_IDS, Settings

TEXT, TIED = "text_config", "tie_word_embeddings"


class Composite(NamedTuple):
    """A class that reads text and something else; of text alone it computes what its text model's own class does."""

    architecture: str
    text: str  # the model_type of its text model, where its configuration does not say
    tied: bool = False  # whether logits are of the table of tokens, where its configuration does not say
    tied_within: bool = False  # they are, too, where its text model's own configuration says so
    part: str = ""  # of a whole that also speaks, what reads: the word before its settings and its tensors


class Alike(NamedTuple):
    """A text model that has no class with a head: of text alone it computes what the class of another type does."""

    hf_type: str
    usual: Mapping[str, Any] = {}  # what it takes where nothing is said, if that class takes something else
    always: Mapping[str, Any] = {}  # what it does whatever is said


def _conditional(name: str, text: str, *, tied: bool = False, tied_within: bool = False) -> Composite:
    return Composite(f"{name}ForConditionalGeneration", text, tied, tied_within)


THINKER = "thinker"
OMNI = {
    "qwen2_5_omni": _conditional("Qwen2_5OmniThinker", "qwen2_5_omni_text"),
    "qwen3_omni_moe": _conditional("Qwen3OmniMoeThinker", "qwen3_omni_moe_text"),
}


# Not of Cohere's, whose class leaves logit_scale out, nor PaliGemma's, which sees all of its prefix.
COMPOSITES: Mapping[str, Composite] = {
    "apertus1p5": _conditional("Apertus1p5", "apertus1p5_text"),
    "audioflamingo3": _conditional("AudioFlamingo3", "qwen2"),
    "deepseek_vl": _conditional("DeepseekVL", "llama", tied=True),
    "deepseek_vl_hybrid": _conditional("DeepseekVLHybrid", "llama", tied=True),
    "exaone4_5": _conditional("Exaone4_5_", "exaone4"),
    "gemma3": _conditional("Gemma3", "gemma3_text", tied=True),
    "gemma3n": _conditional("Gemma3n", "gemma3n_text", tied=True),
    "gemma4": _conditional("Gemma4", "gemma4_text", tied=True),
    "gemma4_unified": _conditional("Gemma4Unified", "gemma4_unified_text", tied=True),
    "glm46v": _conditional("Glm46V", "glm4v_text", tied_within=True),
    "glm4v": _conditional("Glm4v", "glm4v_text", tied_within=True),
    "glm4v_moe": _conditional("Glm4vMoe", "glm4v_moe_text", tied_within=True),
    "glm5_next": _conditional("Glm5Next", "glm5_next_text"),
    "glm_ocr": _conditional("GlmOcr", "glm_ocr_text", tied_within=True),
    "glmasr": _conditional("GlmAsr", "llama", tied=True),
    "got_ocr2": _conditional("GotOcr2", "qwen2", tied=True),
    "hunyuan_vl": _conditional("HunYuanVL", "hunyuan_vl_text", tied=True, tied_within=True),
    "hyperclovax_vision_v2": _conditional("HyperCLOVAXVisionV2", "hyperclovax", tied=True),
    "idefics2": _conditional("Idefics2", "mistral"),
    "idefics3": _conditional("Idefics3", "llama"),
    "inkling_mm_model": _conditional("Inkling", "inkling_text"),
    "internvl": _conditional("InternVL", "qwen2", tied=True),
    "janus": _conditional("Janus", "llama", tied=True),
    "kimi_k25": _conditional("Kimi_K25", "deepseek_v3", tied=True),
    "lfm2_vl": _conditional("Lfm2Vl", "lfm2", tied=True),
    "lfm3_vl": _conditional("Lfm3Vl", "lfm3", tied=True),
    "lighton_ocr": _conditional("LightOnOcr", "qwen3", tied=True),
    "llama4": _conditional("Llama4", "llama4_text"),
    "llava": _conditional("Llava", "llama"),
    "llava_next": _conditional("LlavaNext", "llama"),
    "llava_next_video": _conditional("LlavaNextVideo", "llama"),
    "llava_onevision": _conditional("LlavaOnevision", "qwen2"),
    "minicpmv4_6": _conditional("MiniCPMV4_6", "qwen3_5_text"),
    "minicpmv4_7": _conditional("MiniCPMV4_7", "qwen3_5_text"),
    "minimax_m3_vl": _conditional("MiniMaxM3Sparse", "minimax_m3_vl_text"),
    "mistral3": _conditional("Mistral3", "mistral", tied=True),
    "mistral_large4": _conditional("MistralLarge4", "mistral_large4_text"),
    "muse_glimmer": _conditional("MuseGlimmer", "muse_glimmer_text"),
    "ovis2": _conditional("Ovis2", "qwen2", tied=True),
    "qianfan_ocr": _conditional("QianfanOCR", "qwen3"),
    "qwen2_5_vl": _conditional("Qwen2_5_VL", "qwen2_5_vl_text", tied_within=True),
    **{f"{name}_{THINKER}": composite for name, composite in OMNI.items()},
    **{name: composite._replace(part=THINKER) for name, composite in OMNI.items()},
    "qwen2_audio": _conditional("Qwen2Audio", "qwen2"),
    "qwen2_vl": _conditional("Qwen2VL", "qwen2_vl_text", tied_within=True),
    "qwen3_5": _conditional("Qwen3_5", "qwen3_5_text"),
    "qwen3_5_moe": _conditional("Qwen3_5Moe", "qwen3_5_moe_text"),
    "qwen3_asr": _conditional("Qwen3ASR", "qwen3", tied=True),
    "qwen3_vl": _conditional("Qwen3VL", "qwen3_vl_text"),
    "qwen3_vl_moe": _conditional("Qwen3VLMoe", "qwen3_vl_moe_text"),
    "qwen4_exp": _conditional("Qwen4Exp", "qwen4_exp_text"),
    "smolvlm": _conditional("SmolVLM", "llama"),
    "step3p7": _conditional("Step3p7", "step3p5"),
    "video_llama_3": _conditional("VideoLlama3", "qwen2"),
    "video_llava": _conditional("VideoLlava", "llama"),
    "vipllava": _conditional("VipLlava", "llama"),
    "voxtral": _conditional("Voxtral", "llama"),
}


def _per_head(text: Mapping[str, Any]) -> int | None:
    width, n_heads = text.get("hidden_size"), text.get("num_attention_heads")
    return width // n_heads if isinstance(width, int) and isinstance(n_heads, int) and n_heads else None


_QWEN2_VL = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_window_layers": 80, "rope_theta": 1e6}
_GLM4V = {"max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0}
_QWEN3_VL = {"max_position_embeddings": 128_000, "rope_theta": 5e5}
_MIXED = {"num_key_value_heads": 16, "moe_intermediate_size": 1408, "num_local_experts": 60, "num_experts_per_tok": 4}
ALIKE: Mapping[str, Alike] = {
    "gemma4_unified_text": Alike(
        "gemma4_text",
        {"max_position_embeddings": 262_144, "sliding_window": 1024},
        {"hidden_size_per_layer_input": 0, "enable_moe_block": False},
    ),
    "glm4v_moe_text": Alike(
        "glm4_moe",
        {"max_position_embeddings": 65_536, "attention_bias": True, "head_dim": _per_head},
        {"use_qk_norm": False},
    ),
    "glm4v_text": Alike("glm4", _GLM4V, {"attention_bias": True, "head_dim": _per_head}),
    "glm_ocr_text": Alike(
        "glm4",
        {**_GLM4V, "max_position_embeddings": 131_072, "num_key_value_heads": 8, "head_dim": _per_head},
        {"attention_bias": False},
    ),
    "hunyuan_vl_text": Alike("hunyuan_v1_dense"),
    "kimi_k2": Alike("deepseek_v3"),
    "qwen2_5_vl_text": Alike("qwen2", _QWEN2_VL),
    "qwen2_5_omni_text": Alike("qwen2", {"num_key_value_heads": 4, "rope_theta": 1e6}),
    "qwen2_vl_text": Alike("qwen2", _QWEN2_VL),
    "qwen3_omni_moe_text": Alike("qwen3_moe", {"rope_theta": 1e6, "norm_topk_prob": True}),
    "qwen3_vl_moe_text": Alike(
        "qwen3_moe",
        _QWEN3_VL | _MIXED,
        {"norm_topk_prob": True},
    ),
    "qwen3_vl_text": Alike("qwen3", _QWEN3_VL),
}
# The settings beside the text model's own that change none of its numbers; TIED and TEXT are read, TOKEN_IDS go along.
OF_SENSES = re.compile(
    r"vision|image|video|audio|project(or|ion)|multimodal|patch|pixel|spatial|downsample|upsample|thumbnail|tile|seconds|adapter|alignment|"
    r"boi_|eoi_|boa_|eoa_|im_(start|end|newline)_id|perceiver|vq_|insert_layer_id|merge_kernel|merger_times|(merged|out)_hidden_size|"
    r"scale_factor|_token(_ids?|_index)?$|_tokens?_per_|mm_|vocab_offset|ignore_index|^mtp_config$"
)
# Before the names of the text model's tensors: as the classes have it now, and as files were written before.
OF_TEXT = re.compile(
    r"(?:model\.)?(?:language_model|text_model|llm)\.(?:model\.)?|model\.(?=(?:embed_tokens|layers|norm)\.)|"
    r"(?=(?:tok_embeddings|lerope|layers|norm)\.)"  # as Mistral Large 4 is released
)
HEAD, HEADS = "lm_head.", ("lm_head.", "output.")


# Models whose encoder sees beside what it reads: their families read the configuration, and none of these tensors.
SEEING = {"t5gemma2": re.compile(r"model\.encoder\.(vision_tower|multi_modal_projector)\.")}


def known_as(config: Mapping[str, Any]) -> Callable[[str], str | None]:
    """What tensors of files are called by who reads text alone; None for those that see or hear."""
    if composite_of(config) is not None:
        return alone
    seeing = SEEING.get(str(config.get("model_type")))
    return str if seeing is None else lambda name: None if seeing.match(name) else name


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
    if composite.part:
        config = {TIED: config.get(TIED), **_table(config, f"{composite.part}_config", where)}
    outer, senses = Settings(config, where), [name for name in config if OF_SENSES.search(name)]
    if TEXT not in config and "hidden_size" in config:  # as the first files have it
        inner = {name: value for name, value in config.items() if name not in (*senses, "model_type", "architectures")}
    else:
        inner = _table(config, TEXT, where)
        outer.ignore(TEXT)
    outer.ignore(*senses, *(name for name, value in config.items() if inner.get(name) == value))
    tied = outer.take(TIED, bool, composite.tied) or (composite.tied_within and inner.get(TIED) is True)
    outer.close()
    beside = {name: config[name] for name in TOKEN_IDS if name in config}
    return _with_class({"model_type": composite.text, **inner, **beside, TIED: tied})


def _table(config: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = config.get(name)
    if Settings(config, where).section(name) is None or not isinstance(found, Mapping):
        raise CheckpointError(f"{where} has no table {name}, so its text model is unknown; copy it again")
    return found


def _with_class(text: dict[str, Any]) -> dict[str, Any]:
    """The settings of a text model for the class that computes as it does."""
    alike = ALIKE.get(str(text["model_type"]))
    if alike is None:
        return text
    usual, always = (
        {name: value(text) if callable(value) else value for name, value in each.items()}
        for each in (alike.usual, alike.always)
    )
    said = {name: value for name, value in text.items() if value is not None and not OF_SENSES.search(name)}
    said.pop("architectures", None)
    return {**usual, **said, **always, "model_type": alike.hf_type}


def alone(name: str) -> str | None:
    """What the text model calls a tensor of a composite's files, its head left out; None for one that sees or hears."""
    name = name.removeprefix(f"{THINKER}.")
    found = OF_TEXT.match(name)
    if found is None:
        return next((HEAD + name.removeprefix(each) for each in HEADS if name.startswith(each)), None)
    return name[found.end() :]
