"""nanochat, the language model of a course: norms without gains everywhere, squared ReLUs, capped logits (Karpathy 2025)."""

from __future__ import annotations

from anyformer.families.compose import changed, edited, feed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import GatedFeedForwardSpec, GQASpec, ReLU2, RMSNormSpec, RotarySpec
from anyformer.spec import EmbeddingSpec, HeadSpec, ModelSpec

NORM = RMSNormSpec(eps=1e-6, weight=False)


def nanochat(*sizes: int) -> ModelSpec:
    """LLaMA with gainless norms, of embeddings and turned queries and keys too, pairs that turn the other way, no gates."""
    model = edited(llama(*sizes, vocab_size=65_536), GatedFeedForwardSpec, lambda g: feed(g.d_ff, ReLU2(), bias=False))
    model = changed(changed(with_qk_norms(model), RMSNormSpec, weight=False), EmbeddingSpec, norm=NORM)
    model = changed(model, GQASpec, norm_last=True)
    return changed(changed(model, RotarySpec, backwards=True), HeadSpec, softcap=15.0)


NANOCHAT = Origin(
    "nanochat", "llama2", 2025, "Karpathy, October 2025, the repository nanochat, and transformers' class"
).lineage(
    "norms without gains, squared ReLU, a norm of embeddings, logits capped at 15, pairs that turn the other way",
    Preset("nanochat-d20", nanochat(20, 1280, 10, 5120), "561M", alias="nanochat"),
    sizes="Karpathy 2025, the repository nanochat, depth 20 (from memory)",
    tokenizer="byte-level BPE, 65,536",
)
