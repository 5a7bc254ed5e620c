"""DeepSeek-V3: latent attention, experts after three dense layers. DeepSeek-AI 2024, arXiv:2412.19437, section 4.2."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.compose import block, language_model, pre_norm
from anyformer.layers import (
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
    YaRN,
)
from anyformer.spec import BlockSpec, Count, MixerSpec, ModelSpec, ScaleSpec, Width
from tests.hard_cases.case import Case, of_transformers
from tests.hard_cases.parts.latent import LatentSpec

NORM = RMSNormSpec(eps=1e-6)
STRETCH = 40.0


def deepseek_v3() -> ModelSpec:
    """Return the main model, without its multi-token prediction; sizes: section 4.2."""
    projection = LatentSpec(
        n_heads=Count(128),
        query_rank=Width(1536),
        rank=Width(512),
        plain_dim=Width(128),
        rotary_dim=Width(64),
        value_dim=Width(128),
        rotary=RotarySpec(layout="interleaved", scaling=YaRN(factor=STRETCH, attention_factor=1.0)),
    )
    sharpened = ScaleSpec(factor=(0.1 * math.log(STRETCH) + 1) ** 2, power=-0.5)
    router = RouterSpec(
        n_experts=Count(256),
        top_k=8,
        score="sigmoid",
        correction=True,
        n_groups=8,
        top_groups=4,
        group_score="top2-sum",
        renormalise=True,
        factor=2.5,
    )

    def gated(d_ff: int) -> MixerSpec:
        return GatedFeedForwardSpec(d_ff=Width(d_ff), activation=SiLU())

    def layer(feed: MixerSpec) -> BlockSpec:
        attend = AttentionSpec(projection=projection, mask=Causal(), scale=sharpened)
        return block(pre_norm(NORM, attend), pre_norm(NORM, feed))

    sparse = layer(MoESpec(router=router, expert=gated(2048), shared_expert=gated(2048)))
    blocks = (*[layer(gated(18_432))] * 3, *[sparse] * 58)
    return language_model(vocab_size=129_280, d_model=7168, blocks=blocks, norm=NORM, tied=False, context=163_840)


def theirs() -> Any:
    """Return the model of transformers, whose defaults are the published sizes."""
    return of_transformers("DeepseekV3ForCausalLM", "DeepseekV3Config")


CASE = Case("deepseek-v3", deepseek_v3, "671,026,404,352", theirs, missing="Latent")
