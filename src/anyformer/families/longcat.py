"""LongCat-Flash: two attentions a layer, experts across its second half, some of which do nothing (arXiv:2509.01322)."""

from __future__ import annotations

from anyformer.families.compose import block, gated, language_model, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    Causal,
    MLASpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
)
from anyformer.spec import BranchSpec, Count, ModelSpec, Width


def longcat(n_layers: int, d_model: int, n_heads: int, d_ff: int, d_expert: int, router: RouterSpec) -> ModelSpec:
    """Experts read what the layer's first feed-forward reads and write when the layer ends (section 2.2, figure 2).

    Latent attention is DeepSeek-V3's with the latents' scale corrected (section 2.3.1).
    """
    projection = MLASpec(
        n_heads=Count(n_heads),
        kv_rank=Width(512),
        query_rank=Width(1536),
        head_dim=Width(128),
        rotary_dim=Width(64),
        value_dim=Width(128),
        rotary=RotarySpec(theta=1e7, layout="interleaved"),
        scale_correction=True,
    )
    norm, dense = RMSNormSpec(eps=1e-5), gated(d_ff, SiLU())
    attention = pre_norm(norm, AttentionSpec(projection=projection, mask=Causal()))
    feed = pre_norm(norm, dense)
    experts = BranchSpec(mixer=MoESpec(router=router, expert=gated(d_expert, SiLU())), late=True)
    layer = block(attention, feed.but(branches=(*feed.branches, experts)), attention, feed)
    return language_model(131_072, d_model, (layer,) * n_layers, norm, tied=False, context=131_072)


def routing(n_experts: int, n_identity: int, top_k: int) -> RouterSpec:
    """Weights are shares of all choices, times 6; a correction keeps the choice of experts even (sections 2.1 and 2.3.2)."""
    return RouterSpec(n_experts=Count(n_experts), n_identity=n_identity, top_k=top_k, correction=True, factor=6.0)


LONGCAT_FLASH = Origin("longcat-flash", "deepseek-v3", 2025, "arXiv:2509.01322, section 2").lineage(
    "two attentions a layer, experts across its second half, a third of them identities",
    Preset(
        "longcat-flash",
        longcat(28, 6144, 64, 12_288, 2048, routing(512, 256, 12)),
        "560B",
        "560.66B, which the paper cuts",
    ),
    family="longcat",
    sizes="Meituan LongCat Team 2025, arXiv:2509.01322, section 2.4, and the released configuration (sections, theta and eps "
    "from memory), without the layer of multi-token prediction; active parameters: 18.6B to 31.3B, 27B on average",
    tokenizer="byte-level BPE, 131,072",
)
