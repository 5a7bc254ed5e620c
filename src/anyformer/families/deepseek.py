"""DeepSeek: LLM, a LLaMA (arXiv:2401.02954); V2, of latent attention and experts (arXiv:2405.04434); V3 (arXiv:2412.19437)."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm
from anyformer.families.llama import llama
from anyformer.families.preset import Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    LinearSpec,
    MLASpec,
    MoESpec,
    Normal,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
    YaRN,
)
from anyformer.layers.rope_scaling import sharpening
from anyformer.spec import AheadSpec, BlockSpec, Count, MixerSpec, ModelSpec, ScaleSpec, Width

INIT = ByRole(table=Normal(scale=0.006), matrix=Normal(scale=0.006))
STRETCH = 40.0  # from 4,096 tokens to 163,840


def sharpened(factor: float, share: float) -> ScaleSpec:
    """Attention's scale where YaRN's sharpening is of the scores: of queries and of keys, so its square."""
    return ScaleSpec(factor=sharpening(factor, share) ** 2, power=-0.5)


def deepseek(
    *,
    n_layers: int,
    n_dense: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    d_expert: int,
    n_shared: int,
    router: RouterSpec,
    query_rank: int | None = 1536,
    mscale: float = 1.0,
    vocab_size: int = 102_400,
) -> ModelSpec:
    """Latent attention, and after `n_dense` layers experts beside shared ones (arXiv:2405.04434, section 2).

    Several shared experts are one as wide as all of them. The context is stretched by YaRN (section 3.1.4).
    """
    norm = RMSNormSpec(eps=1e-6)
    projection = MLASpec(
        n_heads=Count(n_heads),
        kv_rank=Width(512),
        query_rank=None if query_rank is None else Width(query_rank),
        head_dim=Width(128),
        rotary_dim=Width(64),
        value_dim=Width(128),
        rotary=RotarySpec(layout="interleaved", scaling=YaRN(factor=STRETCH, attention_factor=1.0)),
    )
    attention = AttentionSpec(projection=projection, mask=Causal(), scale=sharpened(STRETCH, mscale))

    def gated(width: int) -> GatedFeedForwardSpec:
        return GatedFeedForwardSpec(d_ff=Width(width), activation=SiLU())

    def layer(feed: MixerSpec) -> BlockSpec:
        return block(pre_norm(norm, attention), pre_norm(norm, feed))

    dense = layer(gated(d_ff))
    sparse = layer(MoESpec(router=router, expert=gated(d_expert), shared_expert=gated(n_shared * d_expert)))
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=(*[dense] * n_dense, *[sparse] * (n_layers - n_dense)),
        norm=norm,
        tied=False,
        init=INIT,
        context=163_840,
    )


def predicting_further(model: ModelSpec, n_tokens: int) -> ModelSpec:
    """The model with modules that predict so many further tokens in training (arXiv:2412.19437, section 2.2).

    Each has a layer like the stack's last, and norms like the stack's.
    """
    norm, linear = model.stack.norm, LinearSpec()
    module = AheadSpec(
        hidden=linear, token=linear, block=model.stack.blocks[-1], norm_hidden=norm, norm_token=norm, norm=norm
    )
    return model.but(ahead=(module,) * n_tokens)


# No weight is divided by their sum; V2's are multiplied by 16, and its experts are of three groups of eight.
LITE_ROUTER = RouterSpec(n_experts=Count(64), top_k=6)
V2_ROUTER = RouterSpec(n_experts=Count(160), top_k=6, n_groups=8, top_groups=3, factor=16.0)
V3_ROUTER = RouterSpec(
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

V2_LITE = deepseek(
    n_layers=27,
    n_dense=1,
    d_model=2048,
    n_heads=16,
    d_ff=10_944,
    d_expert=1408,
    n_shared=2,
    router=LITE_ROUTER,
    query_rank=None,
    mscale=0.707,
)
V2 = deepseek(
    n_layers=60,
    n_dense=1,
    d_model=5120,
    n_heads=128,
    d_ff=12_288,
    d_expert=1536,
    n_shared=2,
    router=V2_ROUTER,
    mscale=0.707,
)
V3 = deepseek(
    n_layers=61,
    n_dense=3,
    d_model=7168,
    n_heads=128,
    d_ff=18_432,
    d_expert=2048,
    n_shared=1,
    router=V3_ROUTER,
    vocab_size=129_280,
)
V3_FURTHER = predicting_further(V3, 1)
_7B = llama(n_layers=30, d_model=4096, n_heads=32, d_ff=11_008, vocab_size=102_400, context=4096).but(init=INIT)
_67B = llama(n_layers=95, d_model=8192, n_heads=64, n_kv_heads=8, d_ff=22_016, vocab_size=102_400, context=4096).but(
    init=INIT
)

LLM = "DeepSeek-AI 2024, arXiv:2401.02954, table 2"
DEEPSEEK_V2 = "DeepSeek-AI 2024, arXiv:2405.04434, section 3.1.2 and the released configuration; active parameters: 21B"
DEEPSEEK_LITE = "DeepSeek-AI 2024, arXiv:2405.04434, appendix B and the released configuration; active parameters: 2.4B"
DEEPSEEK_V3 = (
    "DeepSeek-AI 2024, arXiv:2412.19437, section 4.2, without the layer of multi-token prediction; active: 37B"
)
DEEPSEEK_FURTHER = (
    "DeepSeek-AI 2024, arXiv:2412.19437, sections 2.2 and 4.2, and the released weights; the total as on Hugging Face"
)
TWICE = (
    "the released files hold the embedding and the head a second time, 1.85B, for the layer of multi-token prediction, "
    "which shares them, and the scales of FP8 blocks; counted once and without those it is 682.6B"
)
BPE = "byte-level BPE, {}"

PRESETS = (
    Preset("deepseek-7b", "deepseek", _7B, LLM, "7B", None, BPE.format("102,400")),
    Preset("deepseek-67b", "deepseek", _67B, LLM, "67B", None, BPE.format("102,400")),
    Preset("deepseek-v2-lite", "deepseek", V2_LITE, DEEPSEEK_LITE, "15.7B", None, BPE.format("102,400")),
    Preset("deepseek-v2", "deepseek", V2, DEEPSEEK_V2, "236B", None, BPE.format("102,400")),
    Preset("deepseek-v3", "deepseek", V3, DEEPSEEK_V3, "671B", None, BPE.format("129,280")),
    Preset("deepseek-v3-mtp", "deepseek", V3_FURTHER, DEEPSEEK_FURTHER, "685B", TWICE, BPE.format("129,280")),
)
