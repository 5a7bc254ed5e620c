"""Hunyuan's dense models of 2025, LLaMA with a norm over each head's queries and keys after they have turned."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import GQASpec
from anyformer.spec import ModelSpec

# The released files say theta 10,000 and alpha 1,000: one factor of theta, 1,000^(128 / 126), for good.
THETA = 10_000.0 * 1000.0 ** (128 / 126)


def hunyuan(*sizes: int, vocab_size: int = 120_818, theta: float = THETA) -> ModelSpec:
    """LLaMA with QK-norm of what has turned, heads of 128 and tied tables."""
    model = llama(*sizes, head_dim=128, vocab_size=vocab_size, eps=1e-5, theta=theta, tied=True, context=262_144)
    return changed(with_qk_norms(model, 1e-5), GQASpec, norm_last=True)


HUNYUAN = Origin("hunyuan", "llama2", 2025, "the releases of 2025, from memory").lineage(
    "QK-norm after the rotation, heads of 128, tied tables",
    Preset("hunyuan-0.5b", hunyuan(24, 1024, 8, 3584, 4), "0.5B"),
    Preset("hunyuan-7b", hunyuan(32, 4096, 32, 14_336, 8, vocab_size=128_167), "7B", "7.50B, which the name cuts"),
    sizes="Tencent 2025, the released configurations (all from memory, unverified)",
    tokenizer="byte-level BPE, 120,818 and 128,167",
)
