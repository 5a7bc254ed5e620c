"""Classes of transformers that label texts, and words, by a decoder: its last token's vector, or each one's, times a matrix.

They are named and built alike, whatever the decoder, so that who has them stands here, by model_type.
"""

from __future__ import annotations

from anyformer.families.hf.headings import classifying, stem
from anyformer.families.hf.mapping import Family

# fmt: off
SCORE_TEXTS = (
    "arcee", "axk1", "axk2", "biogpt", "bloom", "deepseek_v2", "deepseek_v3", "diffllama", "exaone4", "falcon", "gemma",
    "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "helium",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "jamba", "jetmoe", "llama", "minicpm3", "minimax", "ministral", "ministral3",
    "mistral", "mistral4", "mixtral", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi",
    "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3",
    "stablelm", "starcoder2", "zamba2",
)
SCORE_WORDS = (
    "apertus", "arcee", "axk1", "axk2", "deepseek_v3", "diffllama", "exaone4", "gemma", "gemma2", "glm", "glm4", "gpt_oss",
    "helium", "llama", "minimax", "ministral", "ministral3", "mistral", "mistral4", "mixtral", "nemotron", "persimmon", "phi",
    "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2",
)
CLASSIFY_WORDS = ("biogpt", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "mpt")
# fmt: on
# (what a class's name ends with, its head, the module that holds it, which decoders have it)
CLASSES = (
    ("ForSequenceClassification", "classes", "score", SCORE_TEXTS),
    ("ForSequenceClassification", "classes", "classifier", ("ctrl",)),
    ("ForTokenClassification", "token_classes", "score", SCORE_WORDS),
    ("ForTokenClassification", "token_classes", "classifier", CLASSIFY_WORDS),
)


def labelling(family: Family) -> Family:
    """The family with its classes that label."""
    base = stem(family)
    found = {f"{base}{end}": (head, module) for end, head, module, types in CLASSES if family.hf_type in types}
    return classifying(family, found) if found else family
