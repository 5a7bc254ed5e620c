"""DeepSeek-V4: windows beside compressed keys, hyper-connected streams, first layers whose experts go by the token."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import gated, language_model, serial, window
from anyformer.families.deepseek import BPE
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    ActivationSpec,
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
ROUTER = RouterSpec(n_experts=Count(256), top_k=6, score="sqrt-softplus", renormalise=True, factor=1.5)


def attention_layers(n_layers: int) -> list[str]:
    """Two heavily compressed layers, then such and sparse ones in turn."""
    return [SPARSE if i > 1 and i % 2 else HEAVY for i in range(n_layers)]


def deepseek_v4(
    d_model: int,
    n_heads: int,
    d_expert: int,
    layers: Sequence[str],
    *,
    kinds: Sequence[str] | None = None,
    router: RouterSpec = ROUTER,
    activation: ActivationSpec | None = None,
    limit: float = 10.0,
    head_dim: int = 512,
    query_rank: int = 1024,
    out_groups: int = 8,
    out_rank: int = 1024,
    size: int = 128,
    every: tuple[int, int] = (4, 128),
    index: tuple[int, int, int] = (64, 128, 512),
    rotary: tuple[RotarySpec, RotarySpec] = (PLAIN, STRETCHED),
    n_streams: int = 4,
    iterations: int = 20,
    least: float = 1e-6,
    eps: float = 1e-6,
    vocab_size: int = 129_280,
    context: int = 1_048_576,
) -> ModelSpec:
    """Attention by the word of each layer; experts by the `kinds` of layers, where none are given the first three by the token.

    `every`: tokens of a block in sparse and in heavily compressed layers; `index`: heads, head_dim and blocks chosen; `rotary`:
    of layers without blocks and with them; `least`: what keeps streams' weights above 0.
    """
    norm = RMSNormSpec(eps=eps, cast="after")
    plain = norm.but(weight=False)
    hyper = HyperConnectionSpec(iterations=Count(iterations), norm=plain, least=least)
    compressors = [
        CompressorSpec(every=Window(n), overlap=overlap, norm=norm)
        for n, overlap in zip(every, (True, False), strict=True)
    ]
    indexer = IndexerSpec(
        n_heads=Count(index[0]),
        head_dim=Width(index[1]),
        top_k=Window(index[2]),
        where="last",
        norm_key=None,
        compressor=compressors[0],
    )
    blocks_of = {
        SLIDING: {"compressor": None},
        SPARSE: {"compressor": compressors[0], "indexer": indexer},
        HEAVY: {"compressor": compressors[1]},
    }
    routers = {ROUTED: router.but(correction=True), HASHED: router.but(hashed=Vocab(vocab_size))}
    expert = gated(d_expert, activation or SiLU()).but(limit=limit)

    def layer(attention: str, experts: str) -> BlockSpec:
        projection = SharedKVSpec(
            n_heads=Count(n_heads),
            head_dim=Width(head_dim),
            query_rank=Width(query_rank),
            rotary=rotary[attention != SLIDING],
            norm_latent=norm,
            norm_query=plain,
            norm_key=norm,
            out_groups=Count(out_groups),
            out_rank=Width(out_rank),
        )
        attends = AttentionSpec(projection=projection, mask=window(size), sink=True, **blocks_of[attention])
        mixture = MoESpec(router=routers[experts], expert=expert, shared_expert=expert)
        return serial(norm, attends, mixture).but(connection=hyper)

    kinds = kinds or [HASHED if i < 3 else ROUTED for i in range(len(layers))]
    each = {pair: layer(*pair) for pair in dict.fromkeys(zip(layers, kinds, strict=True))}
    blocks = tuple(each[pair] for pair in zip(layers, kinds, strict=True))
    model = language_model(vocab_size, d_model, blocks, norm, tied=False, context=context)
    return model.but(stack=model.stack.but(residual=HyperStreamsSpec(n=Count(n_streams), norm=plain, least=least)))


DEEPSEEK_V4 = Origin("deepseek-v4", "deepseek-v3.2", 2026, "the report of DeepSeek-V4, section 2, from memory").lineage(
    "windows beside blocks of compressed keys, four hyper-connected streams, first layers routed by the token, clamped gates",
    Preset("deepseek-v4-flash", deepseek_v4(4096, 64, 2048, attention_layers(43)), alias="deepseek-v4"),
    family="deepseek",
    sizes="DeepSeek-AI 2026, the sizes and the layers that transformers' DeepseekV4Config has by default, YaRN as released (from "
    "memory); that class counts blocks from a row's first slot, padding among them, and here they count from a document's "
    "first token",
    tokenizer=BPE.format("129,280"),
)
