"""Falcon-H1: Mamba-2 and attention side by side in every layer (TII 2025, arXiv:2507.22448)."""

from __future__ import annotations

from anyformer.families.compose import block, layered, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import RMSNormSpec, SSDSpec
from anyformer.spec import Count, ModelSpec, Width


def falcon_h1(
    *sizes: int,
    ssm: tuple[int, int, int],
    head_dim: int = 128,
    n_groups: int = 1,
    vocab_size: int,
    context: int = 262_144,
) -> ModelSpec:
    """LLaMA whose attention stands beside Mamba-2 of `ssm` heads, features of each and states, on one norm (section 2)."""
    plain = llama(*sizes, head_dim=head_dim, vocab_size=vocab_size, eps=1e-5, theta=1e11, context=context)
    heads, width, state = ssm
    mixer = SSDSpec(
        n_heads=Count(heads), head_dim=Width(width), state_dim=Width(state), n_groups=Count(n_groups), norm=None
    )
    norm, (attention, feed) = RMSNormSpec(eps=1e-5), plain.stack.blocks[0].mixers
    return layered(plain, block(pre_norm(norm, mixer, attention), pre_norm(norm, feed)))


FALCON_H1 = Origin("falcon-h1", "mamba2", 2025, "arXiv:2507.22448, section 2").lineage(
    "attention beside it in every layer, a feed-forward behind; no norm of its values",
    Preset(
        "falcon-h1-0.5b",
        falcon_h1(36, 1024, 8, 2048, 2, ssm=(24, 64, 128), head_dim=64, vocab_size=32_784, context=16_384),
        "521M",
    ),
    Preset("falcon-h1-7b", falcon_h1(44, 3072, 12, 12_288, 2, ssm=(24, 128, 256), vocab_size=130_048), "7.59B"),
    Preset(
        "falcon-h1-34b",
        falcon_h1(72, 5120, 20, 21_504, 4, ssm=(32, 128, 256), n_groups=2, vocab_size=261_120),
        "33.6B",
        alias="falcon-h1",
    ),
    family="falcon",
    sizes="TII, May 2025, arXiv:2507.22448, table 5 (sizes from memory); μP's multipliers are in released configurations, "
    "and are 1 here",
    tokenizer="byte-level BPE, 32,784 to 261,120",
)
