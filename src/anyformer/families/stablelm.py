"""StableLM 3B-4E1T and StableLM 2, LLaMA with LayerNorms of which a quarter of each head rotates: arXiv:2402.17834."""

from __future__ import annotations

from anyformer.families.compose import block, changed, layered, normed, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen2 import with_qkv_biases
from anyformer.layers import GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec

NORM = LayerNormSpec(eps=1e-5)


def stablelm(*sizes: int, vocab_size: int = 100_352) -> ModelSpec:
    """LLaMA with LayerNorms, a quarter of each head's features rotating (arXiv:2402.17834, section 2.3)."""
    model = llama(*sizes, vocab_size=vocab_size, context=4096)
    return changed(normed(model, NORM), RotarySpec, fraction=0.25)


def side_by_side(model: ModelSpec) -> ModelSpec:
    """The model with both branches on one norm, and a LayerNorm of its own, without shift, for each head of queries and keys."""
    norm = NORM.but(bias=False)
    attention, feed = model.stack.blocks[0].mixers
    attention = changed(attention, GQASpec, norm_query=norm, norm_key=norm, norm_over="heads")
    return layered(model, block(pre_norm(NORM, attention, feed)))


STABLELM = Origin("stablelm", "llama", 2023, "the report of StableLM-3B-4E1T, 2023, from memory").lineage(
    "LayerNorm, a quarter of each head rotates, 50,304 tokens",
    Preset("stablelm-3b-4e1t", stablelm(32, 2560, 32, 6912, vocab_size=50_304), "2.8B", alias="stablelm"),
    sizes="Tow et al. 2023, the report of StableLM-3B-4E1T (from memory)",
    tokenizer="byte-level BPE (GPT-NeoX-20B's), 50,257 padded to 50,304",
)
STABLELM2 = Origin("stablelm2", "stablelm", 2024, "arXiv:2402.17834, section 2.3").lineage(
    "100,352 tokens, biases of queries, keys and values; the 12B: branches side by side, a norm for each head, grouped queries",
    Preset("stablelm-2-1.6b", with_qkv_biases(stablelm(24, 2048, 32, 5632)), "1.64B", alias="stablelm2"),
    Preset("stablelm-2-12b", side_by_side(stablelm(40, 5120, 32, 13_824, 8)), "12.1B"),
    family="stablelm",
    known="stablelm-2-1.6b",
    sizes="Bellagente et al. 2024, arXiv:2402.17834, table 3; the 12B as released (from memory)",
    tokenizer="byte-level BPE (tiktoken cl100k), 100,289 padded to 100,352",
)
