"""Phi-3-small: blocks of keys that differ by head, gegelu, muP's constants. Abdin et al. 2024, arXiv:2404.14219, section 2."""

from __future__ import annotations

from anyformer.families.compose import attend, gated, language_model, repeat, serial
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import GELU, Causal, LayerNormSpec, LocalAndVertical, RotarySpec
from anyformer.spec import ModelSpec, ScaleSpec, Window


def phi3_small() -> ModelSpec:
    """Layers that see blocks and layers that see all in turn, biases everywhere, scores divided by head_dim."""
    norm = LayerNormSpec(eps=1e-5)
    full = attend(32, 8, 128, bias=True, rotary=RotarySpec(theta=1e6), scale=ScaleSpec(power=-1.0))
    blocks = full.but(mask=Causal() & LocalAndVertical(size=Window(64), near=Window(16), stride=Window(8)))
    gegelu = gated(14_336, GELU(form="quick")).but(bias_in=True, bias_out=True, limit=20.0, up_offset=1.0)
    return language_model(
        100_352,
        4096,
        repeat([serial(norm, blocks, gegelu), serial(norm, full, gegelu)], 32),
        norm,
        tied=True,
        token_scale=ScaleSpec(factor=10.0),
        logit_scale=ScaleSpec(factor=1 / 8),
        context=8192,
    )


PHI3_SMALL = Origin("phi3-small", "phi3", 2024, "arXiv:2404.14219, section 2").lineage(
    "blocks of keys that differ by head, GeGLU with bounds, muP's scales, LayerNorm",
    Preset(
        "phi3-small-8k",
        phi3_small(),
        "7B",
        "7.39B, which the paper cuts to the name; the code also sets the logits of unused tokens to -∞, which is left "
        "out",
    ),
    family="phi3_small",
    sizes="Abdin et al. 2024, arXiv:2404.14219, section 2; blocks, limit and muP's constants as released (from memory)",
    tokenizer="byte-level BPE (tiktoken), 100,352",
    misprints=(
        Misprint(
            "activation", "SwiGLU", "arXiv:2404.14219, section 2, has GeGLU; SwiGLU is that of Phi-3 mini and medium"
        ),
        Misprint(
            "norm",
            "RMSNorm",
            "the released code of Phi-3 small (from memory) has layer norms with biases; RMSNorm is that of mini and medium",
        ),
    ),
)
