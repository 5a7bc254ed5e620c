"""gpt-oss: sinks, every other layer a window, clamped experts with biases: OpenAI 2025, arXiv:2508.10925."""

from __future__ import annotations

from anyformer.families.compose import attend, gated, language_model, repeat, serial, window
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import GELU, MoESpec, RMSNormSpec, RotarySpec, RouterSpec, YaRN
from anyformer.spec import Count, Length, ModelSpec


def gpt_oss(
    *,
    n_layers: int,
    n_experts: int,
    top_k: int = 4,
    d_model: int = 2880,
    d_ff: int = 2880,
    n_heads: int = 64,
    n_kv_heads: int = 8,
) -> ModelSpec:
    """The model card's section 2.1; the experts are down((up + 1) · gate · σ(1.702 gate)), gate and up clamped."""
    norm = RMSNormSpec(eps=1e-5, cast="after")
    scaling = YaRN(factor=32.0, original_context=Length(4096), truncate=False)
    rotary = RotarySpec(theta=150_000.0, scaling=scaling)
    full = attend(n_heads, n_kv_heads, 64, bias=True, rotary=rotary).but(sink=True)
    expert = gated(d_ff, GELU(form="quick")).but(bias_in=True, bias_out=True, limit=7.0, up_offset=1.0)
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="softmax-of-chosen", bias=True)
    mixture = MoESpec(router=router, expert=expert)
    pattern = [serial(norm, attention, mixture) for attention in (full.but(mask=window(128)), full)]
    return language_model(201_088, d_model, repeat(pattern, n_layers), norm, tied=False, context=131_072)


SIZES = "OpenAI 2025, arXiv:2508.10925, table 1 and released configuration; active parameters, less the input table: {}"

GPT_OSS = Origin("gpt-oss", "gpt3", 2025, "arXiv:2508.10925, section 2").lineage(
    "experts, RMSNorm, rotary positions, grouped queries, sinks, windows in every other layer",
    Preset("gpt-oss-20b", gpt_oss(n_layers=24, n_experts=32), "20.91B", source=SIZES.format("3.61B"), alias="gpt-oss"),
    Preset("gpt-oss-120b", gpt_oss(n_layers=36, n_experts=128), "116.83B", source=SIZES.format("5.13B")),
    tokenizer="byte-level BPE (tiktoken o200k_harmony), 201,088",
    misprints=(
        Misprint(
            "activation",
            "SwiGLU",
            "arXiv:2508.10925, section 2, calls its gate x·σ(1.702 x) a swish; the same function is the quick form of GELU",
        ),
    ),
)
