"""DeepSeek-V4: windows beside compressed keys, hyper-connected streams, first layers whose experts go by the token."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import gated, language_model, serial, window
from anyformer.families.deepseek import BPE
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    CompressorSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SharedKVSpec,
    SiLU,
    YaRN,
)
from anyformer.spec import BlockSpec, Count, Length, ModelSpec, Vocab, Width, Window

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
HASHED, ROUTED = "hash_moe", "moe"
PLAIN = RotarySpec(layout="interleaved", where="last", fraction=1 / 8)
STRETCHED = PLAIN.but(theta=160_000.0, scaling=YaRN(factor=16.0, original_context=Length(65_536), attention_factor=1.0))
VOCABULARY = 129_280


def attention_layers(n_layers: int) -> list[str]:
    """Two heavily compressed layers, then such and sparse ones in turn."""
    return [SPARSE if i > 1 and i % 2 else HEAVY for i in range(n_layers)]


def deepseek_v4(
    d_model: int, n_heads: int, d_expert: int, layers: Sequence[str], kinds: Sequence[str] | None = None
) -> ModelSpec:
    """Attention by the word of each layer, experts by its kind; where none is given the first three go by the token."""
    norm = RMSNormSpec(eps=1e-6, cast="after")
    plain = norm.but(weight=False)
    overlapping, heavy = (
        CompressorSpec(every=Window(n), overlap=overlap, norm=norm) for n, overlap in ((4, True), (128, False))
    )
    indexer = IndexerSpec(
        n_heads=Count(64),
        head_dim=Width(128),
        top_k=Window(512),
        where="last",
        norm_key=None,
        compressor=overlapping,
    )
    blocks_of = {
        SLIDING: {"compressor": None},
        SPARSE: {"compressor": overlapping, "indexer": indexer},
        HEAVY: {"compressor": heavy},
    }
    router = RouterSpec(n_experts=Count(256), top_k=6, score="sqrt-softplus", renormalise=True, factor=1.5)
    routers = {ROUTED: router.but(correction=True), HASHED: router.but(hashed=Vocab(VOCABULARY))}
    expert = gated(d_expert, SiLU()).but(limit=10.0)

    def layer(attention: str, experts: str) -> BlockSpec:
        projection = SharedKVSpec(
            n_heads=Count(n_heads),
            head_dim=Width(512),
            query_rank=Width(1024),
            rotary=PLAIN if attention == SLIDING else STRETCHED,
            norm_latent=norm,
            norm_query=plain,
            norm_key=norm,
            out_groups=Count(8),
            out_rank=Width(1024),
        )
        attends = AttentionSpec(projection=projection, mask=window(128), sink=True, **blocks_of[attention])
        mixture = MoESpec(router=routers[experts], expert=expert, shared_expert=expert)
        return serial(norm, attends, mixture).but(connection=HyperConnectionSpec(norm=plain))

    kinds = kinds or [HASHED if i < 3 else ROUTED for i in range(len(layers))]
    each = {pair: layer(*pair) for pair in dict.fromkeys(zip(layers, kinds, strict=True))}
    blocks = tuple(each[pair] for pair in zip(layers, kinds, strict=True))
    model = language_model(VOCABULARY, d_model, blocks, norm, tied=False, context=1_048_576)
    return model.but(stack=model.stack.but(residual=HyperStreamsSpec(n=Count(4), norm=plain)))


DEEPSEEK_V4 = Origin("deepseek-v4", "deepseek-v3.2", 2026, "the report of DeepSeek-V4, section 2, from memory").lineage(
    "windows beside blocks of compressed keys, four hyper-connected streams, first layers routed by the token, clamped gates",
    Preset("deepseek-v4-flash", deepseek_v4(4096, 64, 2048, attention_layers(43)), alias="deepseek-v4"),
    family="deepseek",
    sizes="DeepSeek-AI 2026, the sizes and the layers that transformers' DeepseekV4Config has by default, YaRN as released (from "
    "memory); that class counts blocks from a row's first slot, padding among them, and here they count from a document's "
    "first token",
    tokenizer=BPE.format("129,280"),
)
