"""Youtu-LLM: Tencent 2025, arXiv:2512.24618 (from memory), a small dense model with DeepSeek's latent attention."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.deepseek import V3_ROUTER, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.spec import ModelSpec, TableSpec


def youtu(n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 128_256) -> ModelSpec:
    """DeepSeek-V3's attention before feed-forwards alone; one table, rotary positions as they are."""
    sizes = (n_layers, d_model, n_heads, d_ff, d_ff)
    model = deepseek(*sizes, V3_ROUTER, n_dense=n_layers, vocab_size=vocab_size, context=131_072)
    return changed(model, TableSpec, shared="tokens")


YOUTU = Origin("youtu", "deepseek-v3", 2025, "the released configuration (from memory)").lineage(
    "latent attention in a small dense model, one table",
    Preset("youtu-llm-2b", youtu(32, 2048, 16, 6144), "1.96B", alias="youtu"),
    sizes="Tencent 2025, the sizes of transformers' YoutuForCausalLM",
    tokenizer="byte-level BPE, 128,256",
)
