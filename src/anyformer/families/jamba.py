"""Jamba: Mamba in seven of eight layers, attention without positions in one, experts in every second (arXiv:2403.19887)."""

from __future__ import annotations

from anyformer.families.compose import changed, mixing, with_layers
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, RMSNormSpec, RouterSpec, S6Spec
from anyformer.spec import Count, ModelSpec, Width

EVERY, ATTENDS, EXPERTS_EVERY, HAS_EXPERTS = 8, 4, 2, 1


def jamba(
    *sizes: int,
    n_experts: int = 16,
    top_k: int = 2,
    attends: tuple[int, int] = (EVERY, ATTENDS),
    experts: tuple[int, int] = (EXPERTS_EVERY, HAS_EXPERTS),
) -> ModelSpec:
    """LLaMA without positions: layers 4, 12, 20 … attend, layers 1, 3, 5 … have experts (section 3)."""
    dense = changed(llama(*sizes, vocab_size=65_536, context=262_144), GQASpec, rotary=None)
    sparse = with_experts(dense, RouterSpec(n_experts=Count(n_experts), top_k=top_k))
    mixer = S6Spec(width=Width(2 * dense.stack.d_model), norm=RMSNormSpec(eps=1e-6))
    attending = [model.stack.blocks[0] for model in (dense, sparse)]
    recurrent = [mixing(layer, mixer) for layer in attending]
    blocks = (
        (attending if i % attends[0] == attends[1] else recurrent)[i % experts[0] == experts[1]]
        for i in range(dense.n_layers)
    )
    return with_layers(dense, blocks)


JAMBA = Origin("jamba", "mamba", 2024, "arXiv:2403.19887, section 3").lineage(
    "attention in one of eight layers, a feed-forward in all, sixteen experts in every second",
    Preset(
        "jamba-v0.1",
        jamba(32, 4096, 32, 14_336, 8),
        "52B",
        "51.6B, which the release rounds to the name",
        source="Lieber et al. 2024, arXiv:2403.19887, section 3; active parameters: 12B",
    ),
    Preset(
        "jamba-1.5-large",
        jamba(72, 8192, 64, 24_576, 8),
        "398B",
        "398.6B, which the release cuts off",
        source="the Jamba team 2024, arXiv:2408.12570, section 2 (sizes from memory); active parameters: 94B",
        alias="jamba",
    ),
    known="jamba-v0.1",
    tokenizer="SentencePiece BPE with byte fallback, 65,536",
)
