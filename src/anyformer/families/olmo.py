"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838), OLMo 2 (Walsh et al. 2024, arXiv:2501.00656) and 3, and OLMoE (Muennighoff
et al. 2024, arXiv:2409.02060), FlexOlmo (Shi et al. 2025, arXiv:2507.07024)."""

from __future__ import annotations

from anyformer.families.compose import changed, layered, mixing, normed, windowed
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import (
    GatedDeltaNetSpec,
    GQASpec,
    LayerNormSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    YaRN,
)
from anyformer.spec import BranchSpec, Count, Length, ModelSpec, StackSpec, SublayerSpec, Width


def olmo(*sizes: int, clip: float | None = None, tied: bool = False, context: int = 2048) -> ModelSpec:
    """LLaMA with LayerNorms without weights; later q, k and v are clamped to ± clip (2402.00838, section 2.1)."""
    model = llama(*sizes, vocab_size=50_304, tied=tied, context=context)
    norm = LayerNormSpec(eps=1e-5, weight=False, bias=False)
    return changed(normed(model, norm), GQASpec, clip=clip)


def olmo2(*sizes: int, vocab_size: int = 100_352, context: int = 4096) -> ModelSpec:
    """LLaMA with an RMSNorm after each branch instead of before, and one over all queries, and all keys
    (2501.00656, section 3)."""
    model = llama(*sizes, vocab_size=vocab_size, theta=500_000.0, context=context)
    norm = RMSNormSpec(eps=1e-6, cast="after")
    model = changed(changed(model, SublayerSpec, norm_in=None), BranchSpec, norm_out=norm)
    return changed(
        changed(model, StackSpec, norm=norm), GQASpec, norm_query=norm, norm_key=norm, norm_over="projection"
    )


def olmo3(*sizes: int) -> ModelSpec:
    """OLMo 2 with three windows of 4,096 to a full layer, the full ones stretched by YaRN (the report of 2025, from memory)."""
    model = olmo2(*sizes, vocab_size=100_278, context=65_536)
    full = changed(model, RotarySpec, scaling=YaRN(factor=8.0, original_context=Length(8192)))
    return layered(model, *[windowed(model, 4096)] * 3, full)


def olmoe(*sizes: int) -> ModelSpec:
    """LLaMA with a norm over all queries, and all keys, and experts whose weights are as they are (2409.02060, table 1)."""
    model = llama(*sizes, vocab_size=50_304, eps=1e-5, context=4096)
    norm = RMSNormSpec(eps=1e-5)
    model = changed(model, GQASpec, norm_query=norm, norm_key=norm, norm_over="projection")
    return with_experts(model, RouterSpec(n_experts=Count(64), top_k=8))


def flex_olmo(*sizes: int) -> ModelSpec:
    """OLMo 2 with experts, trained apart and each on data of its own, for the feed-forwards (2507.07024, section 3)."""
    return with_experts(olmo2(*sizes), RouterSpec(n_experts=Count(7), top_k=7))


DELTA_NORM = RMSNormSpec(eps=1e-5)  # of each head's values


def olmo_hybrid(*sizes: int) -> ModelSpec:
    """OLMo 2 without positions, whose other layers than each fourth have gated DeltaNet, three quarters as wide in keys and twice
    that in values, with norms before its branches (the release of OLMo Hybrid, 2026, from memory)."""
    model = changed(olmo2(*sizes, context=65_536), GQASpec, rotary=None)
    _, d_model, n_heads, *_ = sizes
    key_dim = int(0.75 * d_model / n_heads)
    heads = {"n_key_heads": Count(n_heads), "n_heads": Count(n_heads), "most_rate": 2.0, "norm": DELTA_NORM}
    delta = GatedDeltaNetSpec(key_dim=Width(key_dim), value_dim=Width(2 * key_dim), **heads)
    before = changed(model.stack.blocks[0], BranchSpec, norm_out=None)
    before = mixing(changed(before, SublayerSpec, norm_in=model.stack.norm), delta)
    return layered(model, *[before] * 3, model)


OF_2024 = "the release of {} and its configuration"
CUT = "{}, which the name cuts"
BPE = "byte-level BPE (GPT-NeoX-20B's, modified), 50,280 padded to 50,304"
OLMO_2 = {"source": "Walsh et al. 2024, arXiv:2501.00656, section 2 and appendix (from memory)", "z-loss": "1e-5"}

OLMO = Origin("olmo", "llama", 2024, "arXiv:2402.00838, section 2.1").lineage(
    "LayerNorm without weights, 50,304 tokens",
    Preset("olmo-1b", olmo(16, 2048, 16, 8192, tied=True), "1.18B"),
    Preset("olmo-7b", olmo(32, 4096, 32, 11_008), "6.89B", alias="olmo"),
    sizes="Groeneveld et al. 2024, arXiv:2402.00838, tables 1 and 2",
    tokenizer=BPE,
    training={
        "source": "Groeneveld et al. 2024, arXiv:2402.00838, section 3.2 and table 5 (from memory)",
        "gradient reduction": "float32",
        "optimiser state": "float32",
    },
    misprints=(Misprint("norm", "RMSNorm", "arXiv:2402.00838, section 2.1: layer norms without weights or biases"),),
)
OLMO_0424 = Origin("olmo-0424", "olmo", 2024, "the release of April 2024, from memory").lineage(
    "queries, keys and values clamped to ±8, 4,096 tokens",
    Preset(
        "olmo-7b-0424", olmo(32, 4096, 32, 11_008, clip=8.0, context=4096), "6.89B", source=OF_2024.format("April 2024")
    ),
    Preset(
        "olmo-1b-0724",
        olmo(16, 2048, 16, 8192, context=4096),
        "1.28B",
        source=OF_2024.format("July 2024") + " (from memory: no clipping)",
    ),
    Preset("olmo-7b-0724", olmo(32, 4096, 32, 11_008, clip=8.0, context=4096), "6.89B"),
    known="olmo-7b-0424",
    family="olmo",
    sizes=OF_2024.format("July 2024"),
    tokenizer=BPE,
    misprints=(Misprint("norm", "RMSNorm", "the releases of 2024 keep OLMo's layer norms without weights or biases"),),
)
OLMO2 = Origin("olmo2", "olmo-0424", 2024, "arXiv:2501.00656, section 3").lineage(
    "RMSNorm after each branch instead of before, QK-norm, theta 500,000",
    Preset("olmo2-1b", olmo2(16, 2048, 16, 8192), "1.48B"),
    Preset(
        "olmo2-7b",
        olmo2(32, 4096, 32, 11_008),
        "7.3B",
        training={
            **OLMO_2,
            "schedule": "linear over 2,000 steps to 3e-4, a cosine to a tenth planned for 5T tokens and cut at 4T",
            "annealing": "50B tokens linearly to 0, three times with other data, weights averaged",
            "batch": "1,024 sequences of 4,096 tokens",
        },
        alias="olmo2",
    ),
    Preset(
        "olmo2-13b",
        olmo2(40, 5120, 40, 13_824),
        "13.7B",
        training={
            **OLMO_2,
            "schedule": "linear over 2,000 steps to 9e-4, a cosine to a tenth over 5T tokens",
            "annealing": "100B tokens linearly to 0, three times with other data, and once 300B; weights averaged",
            "batch": "2,048 sequences of 4,096 tokens",
        },
    ),
    Preset("olmo2-32b", olmo2(64, 5120, 40, 27_648, 8), "32.2B"),
    known="olmo2-13b",
    sizes="Walsh et al. 2024, arXiv:2501.00656, table 3; the 1B and 32B as released (from memory)",
    tokenizer="byte-level BPE (cl100k's, modified), 100,278 padded to 100,352",
)
OLMO3 = Origin("olmo3", "olmo2", 2025, "the OLMo 3 report, 2025, from memory").lineage(
    "three windows of 4,096 to a full layer, which YaRN stretches to 65,536 tokens",
    Preset("olmo3-7b", olmo3(32, 4096, 32, 11_008), "7B", CUT.format("7.30B")),
    Preset("olmo3-32b", olmo3(64, 5120, 40, 27_648, 8), "32B"),
    family="olmo",
    sizes="Team OLMo 2025, the OLMo 3 report and released configurations (eps, YaRN and context from memory)",
    tokenizer="byte-level BPE (cl100k's, modified), 100,278",
    known="olmo3-7b",
)
OLMO_HYBRID = Origin("olmo-hybrid", "olmo2", 2026, "the release of OLMo Hybrid, 2026, from memory").lineage(
    "gated DeltaNet in three of four layers, norms before it, no positions",
    Preset("olmo-hybrid-7b", olmo_hybrid(32, 3840, 30, 11_008), "7B", CUT.format("7.43B"), alias="olmo-hybrid"),
    family="olmo",
    sizes="Ai2 2026, the sizes of transformers' class (that the release has no positions says the class)",
    tokenizer="byte-level BPE (cl100k's, modified), 100,278 padded to 100,352",
)
OLMOE = Origin("olmoe", "olmo", 2024, "arXiv:2409.02060, section 2").lineage(
    "RMSNorm, QK-norm, 64 experts, eight for a token",
    Preset("olmoe-1b-7b", olmoe(16, 2048, 16, 1024), "6.9B", alias="olmoe"),
    family="olmo",
    sizes="Muennighoff et al. 2024, arXiv:2409.02060, table 1 (from memory); active parameters: 1.3B",
    tokenizer=BPE,
)
FLEX_OLMO = Origin("flex-olmo", "olmo2", 2025, "arXiv:2507.07024, section 3, from memory").lineage(
    "seven experts, one for each set of data, all of which see each token",
    Preset("flexolmo-7x7b-1t", flex_olmo(32, 4096, 32, 11_008), "33B", alias="flex-olmo"),
    family="olmo",
    sizes="Shi et al. 2025, the released configuration",
    tokenizer="byte-level BPE (cl100k's, modified), 100,278 padded to 100,352",
)
