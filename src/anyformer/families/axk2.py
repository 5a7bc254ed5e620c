"""A.X K2: DeepSeek-V3.2's attention with queries and a gate of their latent before and after its norm, and gated norms
(SK Telecom 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, edited
from anyformer.families.deepseek import V3_ROUTER, choosing, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    GatedRMSNormSpec,
    MLASpec,
    MoESpec,
    OutputGateSpec,
    RMSNormSpec,
    RouterSpec,
)
from anyformer.spec import Count, ModelSpec, SublayerSpec, Width


def gated_norms(model: ModelSpec, rank: int) -> ModelSpec:
    """The model whose norms before attention and experts, not before dense feed-forwards, are gated."""

    def gated(sublayer: SublayerSpec) -> SublayerSpec:
        norm, mixer = sublayer.norm_in, sublayer.branches[0].mixer
        if not isinstance(norm, RMSNormSpec) or not isinstance(mixer, AttentionSpec | MoESpec):
            return sublayer
        return sublayer.but(norm_in=GatedRMSNormSpec(eps=norm.eps, rank=Width(rank)))

    return edited(model, SublayerSpec, gated)


def axk2(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """DeepSeek-V3.2 whose positions are not stretched, with narrow latents and heads, gates and gated norms, and an indexer of 16
    heads whose pairs of features are half a head apart (transformers' class)."""
    model = deepseek(
        *sizes, d_expert=d_expert, router=choice, n_dense=n_dense, vocab_size=163_840, context=131_072, init=ByRole()
    )
    model = choosing(model, 16, layout="half")
    latent = {"kv_rank": 128, "query_rank": 384, "head_dim": 64, "rotary_dim": 32, "value_dim": 64, "unnormed": True}
    model = changed(changed(model, MLASpec, **latent), AttentionSpec, gate=OutputGateSpec(reads="query"))
    return gated_norms(model, 16)


AXK2 = Origin("axk2", "deepseek-v3.2", 2026, "transformers' class of A.X K2").lineage(
    "queries and a gate of the queries' latent before and after its norm, norms gated by what they make, no groups of experts",
    Preset(
        "a.x-k2-light",
        axk2(48, 2048, 32, 5120, d_expert=512, choice=V3_ROUTER.but(n_experts=Count(128), n_groups=1, top_groups=1)),
        alias="axk2",
    ),
    sizes="SK Telecom 2026, the sizes of transformers' class, which are those of A.X-K2-Light",
    tokenizer="163,840 rows",
)
