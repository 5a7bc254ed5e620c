"""Hunyuan's models of 2025, LLaMA with a norm over each head's queries and keys after they have turned, experts; HY 3 and 4."""

from __future__ import annotations

from anyformer.families.compose import changed, gated, with_layers
from anyformer.families.deepseek import INIT, choosing, deepseek
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    AttentionSpec,
    GQASpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    LayerNormSpec,
    MLASpec,
    MoESpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
)
from anyformer.spec import BlockSpec, Count, ModelSpec

# The released files say theta 10,000 and alpha 1,000: one factor of theta, 1,000^(128 / 126), for good.
THETA = 10_000.0 * 1000.0 ** (128 / 126)


def hunyuan(*sizes: int, vocab_size: int = 120_818) -> ModelSpec:
    """LLaMA with QK-norm of what has turned, heads of 128 and tied tables."""
    model = llama(*sizes, head_dim=128, vocab_size=vocab_size, eps=1e-5, theta=THETA, tied=True, context=262_144)
    return changed(with_qk_norms(model, 1e-5), GQASpec, norm_last=True)


HUNYUAN = Origin("hunyuan", "llama2", 2025, "the releases of 2025, from memory").lineage(
    "QK-norm after the rotation, heads of 128, tied tables",
    Preset("hunyuan-0.5b", hunyuan(24, 1024, 8, 3584, 4), "0.5B"),
    Preset("hunyuan-7b", hunyuan(32, 4096, 32, 14_336, 8, vocab_size=128_167), "7B", "7.50B, which the name cuts"),
    sizes="Tencent 2025, the released configurations (all from memory, unverified)",
    tokenizer="byte-level BPE, 120,818 and 128,167",
)


def hunyuan_moe(*sizes: int, n_experts: int, top_k: int) -> ModelSpec:
    """Hunyuan with experts beside a feed-forward for all tokens that is as wide as one of them."""
    dense, choice = hunyuan(*sizes, vocab_size=128_167), RouterSpec(n_experts=Count(n_experts), top_k=top_k)
    return with_experts(dense.but(context=32_768), choice.but(renormalise=True), gated(sizes[3], SiLU()))


HUNYUAN_MOE = Origin("hunyuan-moe", "hunyuan", 2025, "the release of Hunyuan-A13B, June 2025, from memory").lineage(
    "64 experts, eight for a token, beside one for all; 128,167 tokens",
    Preset("hunyuan-a13b", hunyuan_moe(32, 4096, 32, 3072, 8, n_experts=64, top_k=8), "80B"),
    family="hunyuan",
    sizes="Tencent 2025, the released configuration (all from memory, unverified); active parameters: 13B",
    tokenizer="byte-level BPE, 128,167",
)


def hy_v3(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """LLaMA with QK-norm before the rotation; after the dense layers experts beside a shared one."""
    plain = llama(*sizes, head_dim=128, vocab_size=120_832, eps=1e-5, theta=11_158_840.0, context=131_072)
    return experts_after(with_qk_norms(plain, 1e-5), n_dense, choice, d_expert, d_expert).but(init=INIT)


HY_V3 = Origin("hy-v3", "hunyuan", 2026, "transformers' class of HY 3").lineage(
    "QK-norm before the rotation again, 192 experts beside a shared one, chosen as DeepSeek-V3's without groups; untied",
    Preset(
        "hy-v3-295b",
        hy_v3(80, 4096, 64, 13_312, 8, d_expert=1536, choice=router(192, 8, 2.826)),
        "295B",
        alias="hy-v3",
    ),
    family="hunyuan",
    sizes="Tencent 2026, the sizes of transformers' class (total from memory)",
    tokenizer="byte-level BPE, 120,832",
)


def hy_v4(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """DeepSeek-V3.2's attention, gated and with sinks, whose choice of keys three of four layers take of the one before; clamped
    experts; and streams side by side that nothing mixes."""
    model = deepseek(*sizes, d_expert=d_expert, router=choice, n_dense=n_dense, vocab_size=120_832, context=262_144)
    model, latent = changed(model, RMSNormSpec, eps=1e-5), RMSNormSpec(eps=1e-6)
    fields = {"norm_kv": latent, "norm_query": latent, "head_dim": 192, "value_dim": 256, "rotary": RotarySpec()}
    model = choosing(changed(model, MLASpec, **fields), 16)
    model = changed(model, IndexerSpec, where="last", norm_key=LayerNormSpec(eps=1e-5), choice="chosen")
    model = changed(model, AttentionSpec, sink=True, gate=OutputGateSpec())
    model = changed(model, MoESpec, expert=gated(d_expert, SiLU()).but(limit=10.0))
    norm = RMSNormSpec(weight=False, eps=1e-5)
    model = changed(model, BlockSpec, connection=HyperConnectionSpec(iterations=None, norm=norm, floor=1e-6))
    reads = ("self" if i == 0 or i % 4 == 1 else "layer" for i in range(model.n_layers))
    blocks = (changed(block, IndexerSpec, reads=each) for block, each in zip(model.stack.blocks, reads, strict=True))
    model = with_layers(model, blocks)
    return model.but(stack=model.stack.but(residual=HyperStreamsSpec(norm=norm)))


HY_V4 = Origin("hy-v4", "hy-v3", 2026, "transformers' class of HY 4").lineage(
    "DeepSeek-V3.2's latent attention, gated, with sinks and choices of keys that layers share; four hyper-connected streams",
    Preset("hy-v4", hy_v4(34, 2816, 32, 6912, d_expert=768, choice=router(256, 8, 2.827))),
    family="hunyuan",
    sizes="Tencent 2026, the sizes of transformers' class",
    tokenizer="byte-level BPE, 120,832",
)
