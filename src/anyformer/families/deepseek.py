"""DeepSeek: LLM, a LLaMA (arXiv:2401.02954); V2, of latent attention and experts (arXiv:2405.04434); V3 (arXiv:2412.19437); V3.2,
which attends to few keys.
"""

from __future__ import annotations

from typing import Literal

from anyformer.families.compose import changed, gated, language_model, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    IndexerSpec,
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
from anyformer.spec import AheadSpec, Count, InitSpec, ModelSpec, ScaleSpec, Width, Window

INIT = ByRole(table=Normal(scale=0.006), matrix=Normal(scale=0.006))
STRETCH = 40.0  # from 4,096 tokens to 163,840


def sharpened(factor: float, share: float) -> ScaleSpec:
    """Attention's scale where YaRN's sharpening is of the scores: of queries and of keys, so its square."""
    return ScaleSpec(factor=sharpening(factor, share) ** 2, power=-0.5)


def deepseek(
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    d_expert: int,
    router: RouterSpec,
    *,
    n_dense: int = 1,
    n_shared: int = 1,
    query_rank: int | None = 1536,
    mscale: float | None = None,
    vocab_size: int = 102_400,
    context: int = 163_840,
    init: InitSpec = INIT,
) -> ModelSpec:
    """Latent attention, and after `n_dense` layers experts beside shared ones (arXiv:2405.04434, section 2).

    Several shared experts are one as wide as all of them. With `mscale` the context is stretched by YaRN (section 3.1.4).
    """
    norm = RMSNormSpec(eps=1e-6)
    scaling, scale = None, ScaleSpec(power=-0.5)
    if mscale is not None:
        scaling, scale = YaRN(factor=STRETCH, attention_factor=1.0), sharpened(STRETCH, mscale)
    projection = MLASpec(
        n_heads=Count(n_heads),
        kv_rank=Width(512),
        query_rank=None if query_rank is None else Width(query_rank),
        head_dim=Width(128),
        rotary_dim=Width(64),
        value_dim=Width(128),
        rotary=RotarySpec(layout="interleaved", scaling=scaling),
    )
    attention = AttentionSpec(projection=projection, mask=Causal(), scale=scale)
    dense = serial(norm, attention, gated(d_ff, SiLU()))
    expert, shared = gated(d_expert, SiLU()), gated(n_shared * d_expert, SiLU())
    sparse = serial(norm, attention, MoESpec(router=router, expert=expert, shared_expert=shared))
    blocks = (*[dense] * n_dense, *[sparse] * (n_layers - n_dense))
    return language_model(vocab_size, d_model, blocks, norm, tied=False, init=init, context=context)


def choosing(model: ModelSpec, n_heads: int, layout: Literal["half", "interleaved"] | None = None) -> ModelSpec:
    """The model whose queries attend to the 2,048 keys that an indexer of so many heads of 128 chooses (V3.2's report)."""
    indexer = IndexerSpec(n_heads=Count(n_heads), head_dim=Width(128), top_k=Window(2048), layout=layout)
    return changed(model, AttentionSpec, indexer=indexer)


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

V2_LITE = deepseek(27, 2048, 16, 10_944, 1408, LITE_ROUTER, n_shared=2, query_rank=None, mscale=0.707)
V2 = deepseek(60, 5120, 128, 12_288, 1536, V2_ROUTER, n_shared=2, mscale=0.707)
V3 = deepseek(61, 7168, 128, 18_432, 2048, V3_ROUTER, n_dense=3, mscale=1.0, vocab_size=129_280)
_7B = llama(30, 4096, 32, 11_008, vocab_size=102_400, context=4096).but(init=INIT)
_67B = llama(95, 8192, 64, 22_016, 8, vocab_size=102_400, context=4096).but(init=INIT)

TWICE = (
    "the released files hold the embedding and the head a second time, 1.85B, for the layer of multi-token prediction, "
    "which shares them, and the scales of FP8 blocks; counted once and without those it is 682.6B"
)
BPE = "byte-level BPE, {}"
RAMP = "grows from {} to {} sequences over the first {} tokens; the recipe has the full size throughout"
NO_EPS = {"eps": "not said; 1e-8 in the recipe"}
TRAINING_V2 = {"source": "DeepSeek-AI 2024, arXiv:2405.04434, sections 2.2.3 and 3.1.2; the Lite: appendix B", **NO_EPS}

DEEPSEEK = Origin("deepseek", "llama", 2024, "arXiv:2401.02954, section 2.2").lineage(
    "102,400 tokens, grouped queries in the 67B, a smaller start",
    Preset("deepseek-7b", _7B, "7B"),
    Preset("deepseek-67b", _67B, "67B"),
    sizes="DeepSeek-AI 2024, arXiv:2401.02954, table 2",
    tokenizer=BPE.format("102,400"),
    training={
        "source": "DeepSeek-AI 2024, arXiv:2401.02954, section 2.3 and table 2",
        "precision": "bfloat16",
        "gradient reduction": "float32",
        **NO_EPS,
    },
)
DEEPSEEK_V2 = Origin("deepseek-v2", "deepseek", 2024, "arXiv:2405.04434, section 2").lineage(
    "latent attention, many small experts beside shared ones",
    Preset(
        "deepseek-v2-lite",
        V2_LITE,
        "15.7B",
        source="DeepSeek-AI 2024, arXiv:2405.04434, appendix B and the released configuration; active parameters: 2.4B",
        training=TRAINING_V2,
    ),
    Preset(
        "deepseek-v2",
        V2,
        "236B",
        source="DeepSeek-AI 2024, arXiv:2405.04434, section 3.1.2 and the released configuration; "
        "active parameters: 21B",
        training={
            **TRAINING_V2,
            "batch": RAMP.format("2,304", "9,216", "225B"),
            "auxiliary losses": "beside the experts' 0.003 those of devices 0.05 and of communication 0.02, which the "
            "recipe lacks",
        },
    ),
    family="deepseek",
    tokenizer=BPE.format("102,400"),
)
DEEPSEEK_V3 = Origin("deepseek-v3", "deepseek-v2", 2024, "arXiv:2412.19437, section 2.1").lineage(
    "sigmoid scores with corrections instead of balancing losses, 256 experts",
    Preset("deepseek-v3", V3, "671B"),
    family="deepseek",
    sizes="DeepSeek-AI 2024, arXiv:2412.19437, section 4.2, without the layer of multi-token prediction; active: 37B",
    tokenizer=BPE.format("129,280"),
    training={
        "source": "DeepSeek-AI 2024, arXiv:2412.19437, sections 3.3 and 4.2",
        "batch": RAMP.format("3,072", "15,360", "469B"),
        "precision": "float8 products, bfloat16 elsewhere; the recipe has bf16",
        "optimiser state": "bfloat16 moments, float32 weights",
        "gradient reduction": "float32 accumulation",
        "correction": "moved by 0.001 for 14.3T tokens, then kept; the recipe goes on",
        "auxiliary losses": "one token further, weight 0.3 for 10T tokens, then 0.1: the preset deepseek-v3-mtp",
        **NO_EPS,
    },
)
DEEPSEEK_V3_MTP = Origin("deepseek-v3-mtp", "deepseek-v3", 2024, "arXiv:2412.19437, section 2.2").lineage(
    "a module that predicts one token further, in training",
    Preset("deepseek-v3-mtp", predicting_further(V3, 1), "685B", TWICE),
    family="deepseek",
    sizes="DeepSeek-AI 2024, arXiv:2412.19437, sections 2.2 and 4.2, and the released weights; the total as on Hugging Face",
    tokenizer=BPE.format("129,280"),
)
DEEPSEEK_V32 = Origin("deepseek-v3.2", "deepseek-v3", 2025, "the report of DeepSeek-V3.2, from memory").lineage(
    "an indexer chooses the 2,048 keys that each query attends to (DSA)",
    Preset("deepseek-v3.2", choosing(V3, 64, layout="half")),
    family="deepseek",
    sizes="DeepSeek-AI 2025, the sizes of transformers' DeepseekV32ForCausalLM",
    tokenizer=BPE.format("129,280"),
)
