"""Inkling: profiles of distance for positions, short convolutions of keys, values and what branches write, shared experts that
the router weighs (Thinking Machines 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, edited, layered, window
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    AttentionSpec,
    CausalConvolutionSpec,
    DistanceProfilesSpec,
    GainSpec,
    GQASpec,
    MoESpec,
    ResidualConvolutionSpec,
    RouterSpec,
)
from anyformer.spec import BranchSpec, Count, EmbeddingSpec, HeadSpec, ModelSpec, ScaleSpec, Width, Window

SHORT = CausalConvolutionSpec(size=4)
ROUTER = RouterSpec(
    n_experts=Count(256), top_k=6, n_shared=2, score="sigmoid", correction=True, renormalise=True, factor=8.0
)


def inkling(*sizes: int, n_near: int, every: int = 6) -> ModelSpec:
    """LLaMA with QK-norm, experts in every layer and nothing that turns; all layers but each `every`-th see the last 512 keys,
    by `n_near` heads of keys (transformers' class)."""
    plain = with_qk_norms(llama(*sizes, head_dim=128, vocab_size=201_024, context=131_072))
    plain = changed(with_experts(plain, ROUTER), EmbeddingSpec, norm=plain.stack.norm)
    plain = edited(changed(plain, HeadSpec, scale=ScaleSpec(factor=1 / 24)), BranchSpec, _convolved)
    plain = changed(plain, GQASpec, rotary=None, short=SHORT)
    far, near = DistanceProfilesSpec(width=Width(16), extent=Window(1024)), Window(512)
    plain = changed(plain, AttentionSpec, scale=ScaleSpec(power=-1.0), scores=(far,))
    local = changed(plain, AttentionSpec, mask=window(near), scores=(far.but(extent=near),))
    local = changed(local, GQASpec, n_kv_heads=Count(n_near))
    return layered(plain, *[local] * (every - 1), plain)


def _convolved(branch: BranchSpec) -> BranchSpec:
    """The branch with a convolution of what it writes, and before that a factor of what experts do."""
    gain = GainSpec(over="one") if isinstance(branch.mixer, MoESpec) else None
    return branch.but(norm_out=gain, then=ResidualConvolutionSpec(convolution=SHORT))


INKLING = Origin("inkling", "deepseek-v3", 2026, "transformers' class of Inkling").lineage(
    "grouped queries and profiles of distance for the latent, short convolutions, five windows of 512 to a full layer, shared "
    "experts weighed with those chosen",
    Preset("inkling", inkling(66, 6144, 64, 3072, 8, n_near=16)),
    sizes="Thinking Machines 2026, the sizes of transformers' class",
    tokenizer="201,024 rows",
)
