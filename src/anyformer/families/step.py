"""Step 3.5 Flash, the text model of Step 3.7 too: gated heads, more of them in windows, experts beside a shared one."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited, layered, windowed, with_layers
from anyformer.families.gemma import NORM
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    Llama3Scaling,
    MoESpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import BlockSpec, Count, Length, ModelSpec

STRETCHED = Llama3Scaling(factor=2.0, high_frequency_factor=32.0, original_context=Length(131_072))


def step(*sizes: int, n_near: int, d_expert: int, choice: RouterSpec, n_dense: int = 3) -> ModelSpec:
    """LLaMA with gains around 0, QK-norm and a gate of each head; after each layer that sees everything, of whose heads half
    turns, three windows of `n_near` heads; experts beside a shared one after `n_dense` layers."""
    plain = llama(*sizes, head_dim=128, vocab_size=128_896, theta=5e6, context=262_144)
    plain = edited(with_qk_norms(plain), RMSNormSpec, lambda _: NORM.but(eps=1e-5))
    plain = changed(plain, AttentionSpec, gate=OutputGateSpec(over="heads"))
    near = windowed(changed(plain, GQASpec, n_heads=Count(n_near), rotary=RotarySpec(theta=1e4)), 512)
    plain = changed(plain, RotarySpec, fraction=0.5, scaling=STRETCHED)
    plain = layered(plain, plain, near, near, near)
    return experts_after(plain, n_dense, choice, d_expert, d_expert)


def clamped(layer: BlockSpec, limit: float | None, of_shared: float | None) -> BlockSpec:
    """The layer whose experts have the one limit, and whose shared expert, or feed-forward, has the other."""
    mixture = next(layer.nested(MoESpec), None)
    layer = changed(layer, GatedFeedForwardSpec, **_at(of_shared))
    return layer if mixture is None else changed(layer, MoESpec, expert=mixture.expert.but(**_at(limit)))


def _at(limit: float | None) -> dict[str, Any]:
    return {"limit": limit, "clamps": "gate" if limit is None else "activated"}


def step35_flash() -> ModelSpec:
    """Step 3.5 Flash, whose last two layers clamp what they multiply."""
    model = step(45, 4096, 64, 11_264, 8, n_near=96, d_expert=1280, choice=router(288, 8, 3.0))
    *blocks, before, last = model.stack.blocks
    return with_layers(model, (*blocks, *(clamped(block, 7.0, 16.0) for block in (before, last))))


STEP = Origin("step-3.5-flash", "trinity", 2026, "the release of Step 3.5 Flash, February 2026, from memory").lineage(
    "a gate a head, more heads in windows, of layers that see everything half a head turns, gains around 0, no norms behind "
    "branches; the last layers clamp what they multiply",
    Preset("step-3.5-flash", step35_flash(), "196B", "196.96B, whose digits the release cuts off", alias="step"),
    family="step",
    sizes="StepFun 2026, the released configuration (all of it from memory), whose text model that of Step 3.7 is; "
    "active parameters: 11B",
    tokenizer="byte-level BPE, 128,896",
)
