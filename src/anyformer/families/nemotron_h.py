"""Nemotron-H and Nemotron 3: Mamba-2, few attentions, feed-forwards or experts, one of them a layer (arXiv:2504.03624)."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, serial
from anyformer.families.deepseek import V3_ROUTER
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import MoESpec, ReLU2, RMSNormSpec, RouterSpec, SSDSpec
from anyformer.spec import Count, MixerSpec, ModelSpec, Width


def nemotron_h(
    pattern: str,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    ssm_heads: int,
    *,
    router: RouterSpec | None = None,
    shared: int = 0,
    context: int = 8192,
) -> ModelSpec:
    """A layer for each letter: M Mamba-2, * attention without positions, - a feed-forward, E experts and one of width `shared`.

    d_ff is that of feed-forwards and experts alike, with squared ReLU; heads of attention have 128 features, the
    `ssm_heads` of Mamba-2 64 (section 2.1).
    """
    norm = RMSNormSpec(eps=1e-5)
    ssd = SSDSpec(n_heads=Count(ssm_heads), state_dim=Width(128), n_groups=Count(8), norm=norm, least_step=0.001)
    wide, dense = feed(shared, ReLU2(), bias=False) if shared else None, feed(d_ff, ReLU2(), bias=False)
    mixers: dict[str, MixerSpec] = {"M": ssd, "*": attend(n_heads, n_kv_heads, 128), "-": dense}
    if router:
        mixers["E"] = MoESpec(router=router, expert=dense, shared_expert=wide)
    layers = {letter: serial(norm, mixer) for letter, mixer in mixers.items()}
    return language_model(131_072, d_model, tuple(layers[each] for each in pattern), norm, tied=False, context=context)


ROUTER = V3_ROUTER.but(n_experts=Count(128), top_k=6, n_groups=1, top_groups=1)
H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

NEMOTRON_H = Origin("nemotron-h", "mamba2", 2025, "arXiv:2504.03624, section 2").lineage(
    "one mixer a layer: Mamba-2, a feed-forward with squared ReLU, or, four times, attention without positions",
    Preset("nemotron-h-8b", nemotron_h(H_8B, 4096, 32, 8, 21_504, 128), "8.1B", alias="nemotron-h"),
    family="nemotron",
    sizes="NVIDIA 2025, arXiv:2504.03624, table 1, and the released configuration (pattern from memory)",
    tokenizer="byte-level BPE (Tekken), 131,072",
)
NEMOTRON3 = Origin("nemotron3", "nemotron-h", 2025, "the release of December 2025, from memory").lineage(
    "128 experts beside a shared one for each feed-forward",
    Preset(
        "nemotron-3-nano-30b-a3b",
        nemotron_h(NANO, 2688, 32, 2, 1856, 64, router=ROUTER, shared=3712, context=262_144),
        "31.6B",
        alias="nemotron-3",
    ),
    family="nemotron",
    sizes="NVIDIA, December 2025, the released configuration (pattern from memory); active parameters: 3.2B",
    tokenizer="byte-level BPE (Tekken), 131,072",
)
