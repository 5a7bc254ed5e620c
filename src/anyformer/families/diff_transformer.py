"""The Differential Transformer, LLaMA whose heads take the difference of two softmaxes (arXiv:2410.05258)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, DifferentialSpec, RMSNormSpec
from anyformer.spec import ModelSpec


def diff_llama(*sizes: int, vocab_size: int = 32_000, context: int = 2048) -> ModelSpec:
    """LLaMA whose heads are pairs of which the second is taken from the first (section 2); transformers' norm of a pair has no
    gain, the paper's released code has one."""
    model = llama(*sizes, vocab_size=vocab_size, eps=1e-5, context=context)
    norm = RMSNormSpec(eps=1e-5, weight=False)
    return changed(model, AttentionSpec, difference=DifferentialSpec(norm=norm))


DIFF_TRANSFORMER = Origin("diff-transformer", "llama", 2024, "arXiv:2410.05258, section 2").lineage(
    "attention is the difference of two softmaxes",
    Preset("diff-transformer-3b", diff_llama(28, 3072, 24, 8192, vocab_size=100_288, context=4096)),
    sizes="Ye et al. 2024, arXiv:2410.05258, appendix (from memory), without its gain of a pair's norm",
    tokenizer="byte-level BPE (tiktoken), 100,288",
)
