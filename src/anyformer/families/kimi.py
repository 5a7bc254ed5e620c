"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without positions in one (arXiv:2510.26692)."""

from __future__ import annotations

from collections.abc import Collection

from anyformer.families.compose import changed, elsewhere
from anyformer.families.deepseek import V3_ROUTER, deepseek
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    GatedDeltaNetSpec,
    MLASpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    Sigmoid,
)
from anyformer.spec import Count, ModelSpec, Width

ROUTER = V3_ROUTER.but(n_groups=1, top_groups=1, factor=2.446)
LING_ROUTER = V3_ROUTER.but(n_experts=Count(512))


def kda(n_heads: int, eps: float = 1e-5) -> GatedDeltaNetSpec:
    """Gated DeltaNet that forgets each feature of keys at its own rate, with a sigmoid as gate, maps of low rank (section 3)."""
    dim = Width(128)
    return GatedDeltaNetSpec(
        n_key_heads=Count(n_heads),
        n_heads=Count(n_heads),
        key_dim=dim,
        value_dim=dim,
        norm=RMSNormSpec(eps=eps),
        activation=Sigmoid(),
        gate_rank=dim,
        forgets="feature",
        forget_rank=dim,
    )


def kimi_linear(*sizes: int, attending: Collection[int]) -> ModelSpec:
    """DeepSeek-V3 without positions and without a rank of queries, whose other layers than the `attending` have KDA."""
    model = deepseek(*sizes, router=ROUTER, query_rank=None, vocab_size=163_840, context=1_048_576, init=ByRole())
    latent = next(model.nested(MLASpec))
    model = changed(model, RMSNormSpec, eps=1e-5)
    model = changed(model, AttentionSpec, projection=latent.but(rotary=None))  # whose norm keeps its eps
    return elsewhere(model, attending, kda(latent.n_heads))


def ling3(*sizes: int) -> ModelSpec:
    """DeepSeek-V3 without a rank of queries and with gated heads in each sixth layer, KDA with bounded decays and maps of full
    rank in the others; two dense layers (the release of Ling 3.0, 2026, from memory)."""
    model = deepseek(
        *sizes, router=LING_ROUTER, n_dense=2, query_rank=None, vocab_size=157_184, context=262_144, init=ByRole()
    )
    model = changed(changed(model, RotarySpec, theta=6e6), AttentionSpec, gate=OutputGateSpec(over="heads"))
    mixer = kda(sizes[2], 1e-6).but(gate_rank=None, forget_rank=None, bound=5.0)
    attending = range(5, sizes[0], 6)
    return elsewhere(model, attending, mixer)


KIMI_LINEAR = Origin("kimi-linear", "deepseek-v3", 2025, "arXiv:2510.26692, sections 3 and 4").lineage(
    "a delta rule with a decay for each feature in three of four layers, no positions",
    Preset(
        "kimi-linear-48b-a3b",
        kimi_linear(27, 2304, 32, 9216, 1024, attending=(3, 7, 11, 15, 19, 23, 26)),
        "48B",
        "49.1B, which the release rounds to the name",
        source="Kimi Team, October 2025, the released configuration (from memory); active parameters: 3B",
        tokenizer="byte-level BPE (tiktoken), 163,840",
        alias="kimi-linear",
    ),
)
LING3 = Origin("ling3", "kimi-linear", 2026, "the release of Ling 3.0, 2026, from memory").lineage(
    "five of six layers, decays bounded by 5, maps of full rank, gated heads that turn, 512 experts in groups",
    Preset(
        "ling-3.0-flash",
        ling3(42, 2560, 32, 6144, 768),
        "124B",
        "counted without the layer that predicts a token further",
        source="inclusionAI 2026, the sizes of transformers' class; the name from memory",
        tokenizer="byte-level BPE, 157,184",
        alias="ling3",
    ),
)
