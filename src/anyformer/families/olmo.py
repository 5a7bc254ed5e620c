"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838) and OLMo 2 (Walsh et al. 2024, arXiv:2501.00656)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.llama import llama
from anyformer.families.preset import Preset
from anyformer.layers import GQASpec, LayerNormSpec, RMSNormSpec
from anyformer.spec import BranchSpec, ModelSpec, StackSpec, SublayerSpec


def olmo(
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *,
    clip: float | None = None,
    tied: bool = False,
    context: int = 2048,
) -> ModelSpec:
    """LLaMA with LayerNorms without weights; later q, k and v are clamped to ± clip (2402.00838, section 2.1)."""
    model = llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_ff=d_ff, vocab_size=50_304, tied=tied, context=context
    )
    norm = LayerNormSpec(eps=1e-5, weight=False, bias=False)
    return changed(changed(changed(model, SublayerSpec, norm_in=norm), StackSpec, norm=norm), GQASpec, clip=clip)


def olmo2(n_layers: int, d_model: int, n_heads: int, d_ff: int, n_kv_heads: int | None = None) -> ModelSpec:
    """LLaMA with an RMSNorm after each branch instead of before, and one over all queries, and all keys
    (2501.00656, section 3)."""
    model = llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=100_352,
        theta=500_000.0,
        context=4096,
    )
    norm = RMSNormSpec(eps=1e-6, cast="after")
    model = changed(changed(model, SublayerSpec, norm_in=None), BranchSpec, norm_out=norm)
    return changed(
        changed(model, StackSpec, norm=norm), GQASpec, norm_query=norm, norm_key=norm, norm_over="projection"
    )


OLMO = "Groeneveld et al. 2024, arXiv:2402.00838, tables 1 and 2"
LATER = "the release of {} and its configuration"
OLMO_2 = "Walsh et al. 2024, arXiv:2501.00656, table 3; the 1B and 32B as released (from memory)"
BPE = "byte-level BPE (GPT-NeoX-20B's, modified), 50,280 padded to 50,304"
BPE_2 = "byte-level BPE (cl100k's, modified), 100,278 padded to 100,352"

PRESETS = (
    Preset("olmo-1b", "olmo", olmo(16, 2048, 16, 8192, tied=True), OLMO, "1.18B", None, BPE),
    Preset("olmo-7b", "olmo", olmo(32, 4096, 32, 11_008), OLMO, "6.89B", None, BPE),
    Preset(
        "olmo-7b-0424",
        "olmo",
        olmo(32, 4096, 32, 11_008, clip=8.0, context=4096),
        LATER.format("April 2024"),
        "6.89B",
        None,
        BPE,
    ),
    Preset(
        "olmo-1b-0724",
        "olmo",
        olmo(16, 2048, 16, 8192, context=4096),
        LATER.format("July 2024") + " (from memory: no clipping)",
        "1.28B",
        None,
        BPE,
    ),
    Preset(
        "olmo-7b-0724",
        "olmo",
        olmo(32, 4096, 32, 11_008, clip=8.0, context=4096),
        LATER.format("July 2024"),
        "6.89B",
        None,
        BPE,
    ),
    Preset("olmo2-1b", "olmo2", olmo2(16, 2048, 16, 8192), OLMO_2, "1.48B", None, BPE_2),
    Preset("olmo2-7b", "olmo2", olmo2(32, 4096, 32, 11_008), OLMO_2, "7.3B", None, BPE_2),
    Preset("olmo2-13b", "olmo2", olmo2(40, 5120, 40, 13_824), OLMO_2, "13.7B", None, BPE_2),
    Preset("olmo2-32b", "olmo2", olmo2(64, 5120, 40, 27_648, n_kv_heads=8), OLMO_2, "32.2B", None, BPE_2),
)
