"""GLM-4 (arXiv:2406.12793), GLM-4-0414 with norms behind the branches too, GLM-4.5's mixtures (arXiv:2508.06471), GLM-5."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import changed, edited, with_layers_of
from anyformer.families.deepseek import choosing, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen2 import with_qkv_biases
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    ByRole,
    GatedFeedForwardSpec,
    GQASpec,
    MLASpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import BranchSpec, Count, ModelSpec, Width

VOCABULARY = 151_552


def glm(*sizes: int, eps: float = 1.5625e-07, context: int = 131_072) -> ModelSpec:
    """LLaMA with biases of queries, keys and values, and neighbouring features of half a head that rotate (2406.12793)."""
    model = with_qkv_biases(llama(*sizes, head_dim=128, vocab_size=VOCABULARY, eps=eps, context=context))
    return changed(model, RotarySpec, fraction=0.5, layout="interleaved")


def glm4(*sizes: int) -> ModelSpec:
    """GLM-4 with a norm after each branch too, and no biases."""
    model = changed(glm(*sizes, eps=1e-5, context=32_768), BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
    return changed(model, GQASpec, bias_query=False, bias_key=False, bias_value=False)


def router(n_experts: int, top_k: int, factor: float) -> RouterSpec:
    """Sigmoid scores and corrections as DeepSeek-V3's, without groups; the weights sum to `factor`."""
    choice = RouterSpec(
        n_experts=Count(n_experts), top_k=top_k, score="sigmoid", correction=True, group_score="top2-sum"
    )
    return choice.but(renormalise=True, factor=factor)


def experts_after(
    dense: ModelSpec, n_dense: int, choice: RouterSpec, d_expert: int, d_shared: int | None = None
) -> ModelSpec:
    """The model with experts for its feed-forwards behind the first layers, beside a shared one where that has a width."""

    def mixture(feed: GatedFeedForwardSpec) -> MoESpec:
        shared = None if d_shared is None else feed.but(d_ff=Width(d_shared))
        return MoESpec(router=choice, expert=feed.but(d_ff=Width(d_expert)), shared_expert=shared)

    return with_layers_of(edited(dense, GatedFeedForwardSpec, mixture), dense, range(n_dense))


def glm4_moe(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1, qk_norm: bool = False) -> ModelSpec:
    """GLM-4's biases and half a head that rotates, experts beside a shared one after `n_dense` layers (2508.06471, 2.1)."""
    dense = llama(*sizes, head_dim=128, vocab_size=VOCABULARY, eps=1e-5, theta=1e6, context=131_072)
    dense = changed(with_qkv_biases(dense), RotarySpec, fraction=0.5)
    dense = with_qk_norms(dense, 1e-5) if qk_norm else dense
    return experts_after(dense, n_dense, choice, d_expert, d_expert)


def glm4_moe_lite(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1, query_rank: int = 768) -> ModelSpec:
    """DeepSeek-V3's latent attention with wider heads, without YaRN, and GLM-4.5's experts (the release of GLM-4.7-Flash)."""
    model = deepseek(
        *sizes,
        d_expert=d_expert,
        router=choice,
        n_dense=n_dense,
        query_rank=query_rank,
        vocab_size=154_880,
        context=202_752,
        init=ByRole(),
    )
    model = changed(model, RMSNormSpec, eps=1e-5)
    turning, latent = RotarySpec(theta=1e6, layout="interleaved"), RMSNormSpec(eps=1e-6)
    fields = {"norm_kv": latent, "norm_query": latent, "rotary": turning, "head_dim": 192, "value_dim": 256}
    return changed(model, MLASpec, **fields)


def glm5(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 3) -> ModelSpec:
    """GLM-4.7-Flash with wider queries' latents, and DeepSeek-V3.2's choice of keys, whose pairs turn as attention's (GLM-5)."""
    model = glm4_moe_lite(*sizes, d_expert=d_expert, choice=choice, n_dense=n_dense, query_rank=2048)
    return choosing(model, 32)


BPE = "byte-level BPE, 151,329 padded to 151,552"
# The report counts the layer of multi-token prediction and neither table of words.
counted = "the report leaves out the tables of words{}; from memory".format

GLM = Origin("glm", "qwen", 2024, "arXiv:2406.12793, section 2").lineage(
    "grouped queries, half of each head rotates, neighbouring features in pairs",
    Preset("glm-4-9b", glm(40, 4096, 32, 13_696, 2), "9.4B"),
    sizes="Team GLM 2024, arXiv:2406.12793, and the released configuration (context and total from memory)",
    tokenizer=BPE,
)
GLM4 = Origin("glm4", "glm", 2025, "the release of April 2025, from memory").lineage(
    "a norm after each branch too, no biases",
    Preset("glm-4-32b-0414", glm4(61, 6144, 48, 23_040, 2), "32B", "32.57B, which the name cuts", alias="glm4"),
    family="glm",
    sizes="Zhipu AI 2025, the released configuration (eps and context from memory)",
    tokenizer=BPE,
)
sized = partial(router, top_k=8)
GLM4_MOE = Origin("glm4-moe", "glm", 2025, "arXiv:2508.06471, section 2.1").lineage(
    "experts chosen as DeepSeek-V3's, beside a shared one; QK-norm in the larger",
    Preset(
        "glm-4.5-air",
        glm4_moe(46, 4096, 96, 10_944, 8, d_expert=1408, choice=sized(128, factor=1.0)),
        "106B",
        "106.85B; " + counted(", 1.24B"),
    ),
    Preset(
        "glm-4.5",
        glm4_moe(92, 5120, 96, 12_288, 8, d_expert=1536, choice=sized(160, factor=2.5), n_dense=3, qk_norm=True),
        "355B",
        "352.80B; " + counted(", 1.55B, and counts the layer of multi-token prediction, 4.0B"),
        alias="glm4.5",
    ),
    family="glm",
    sizes="GLM-4.5 Team 2025, arXiv:2508.06471, table 1 (from memory); active parameters: 12B and 32B",
    tokenizer=BPE,
)
GLM4_MOE_LITE = Origin(
    "glm4-moe-lite", "glm4-moe", 2026, "the release of GLM-4.7-Flash, January 2026, from memory"
).lineage(
    "DeepSeek-V3's latent attention, with heads of 192 and 256, theta 1,000,000",
    Preset(
        "glm-4.7-flash",
        glm4_moe_lite(47, 2048, 20, 10_240, d_expert=1536, choice=router(64, 4, 1.8)),
        "30B",
    ),
    family="glm",
    sizes="Z.ai 2026, the sizes of transformers' class (theta and total from memory); active parameters: 3B",
    tokenizer="byte-level BPE, 154,880",
)
GLM5 = Origin("glm-5", "glm4-moe-lite", 2026, "the release of GLM-5, February 2026, from memory").lineage(
    "an indexer chooses the 2,048 keys that each query attends to, as DeepSeek-V3.2's",
    Preset(
        "glm-5",
        glm5(78, 6144, 64, 12_288, d_expert=2048, choice=router(256, 8, 2.5)),
        "744B",
        alias="glm5",
    ),
    family="glm",
    sizes="Z.ai 2026, the sizes of transformers' GlmMoeDsaForCausalLM (theta and total from memory); active parameters: 40B",
    tokenizer="byte-level BPE, 154,880",
)
