"""Command R and R+ (Cohere 2024), Command A (arXiv:2504.00698) and R7B: parallel layers, tied and scaled logits; its mixture."""

from __future__ import annotations

from anyformer.families.compose import block, changed, layered, pre_norm, turning_windows
from anyformer.families.glm import experts_after
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import GQASpec, LayerNormSpec, RotarySpec, RouterSpec
from anyformer.spec import Count, HeadSpec, Length, ModelSpec, ScaleSpec, StackSpec

NORM = LayerNormSpec(eps=1e-5, bias=False)


def cohere(*sizes: int, theta: float, logit_scale: float, qk_norm: bool = False) -> ModelSpec:
    """X + attention(norm(x)) + SwiGLU(norm(x)) of the sizes that LLaMA has, rotary pairs side by side, no biases, a norm for
    each head's q and k where `qk_norm` says so."""
    model = llama(*sizes, vocab_size=256_000, tied=True, context=131_072)
    rotary, norm = RotarySpec(theta=theta, layout="interleaved"), NORM if qk_norm else None
    model = changed(model, GQASpec, rotary=rotary, norm_query=norm, norm_key=norm, norm_over="heads")
    model = changed(changed(model, StackSpec, norm=NORM), HeadSpec, scale=ScaleSpec(factor=logit_scale))
    return layered(model, block(pre_norm(NORM, *model.stack.blocks[0].mixers)))


def cohere2(*sizes: int) -> ModelSpec:
    """Command R with three windowed layers to a full one without positions (arXiv:2504.00698, section 2)."""
    return turning_windows(cohere(*sizes, theta=50_000.0, logit_scale=0.25), 4096)


def cohere2_moe(*sizes: int, n_experts: int) -> ModelSpec:
    """Command A with experts, weighed by a softmax of those chosen (transformers' class)."""
    choice = RouterSpec(n_experts=Count(n_experts), top_k=2, score="softmax-of-chosen")
    model = changed(cohere2(*sizes), RotarySpec, theta=10_000.0)
    model = changed(model, HeadSpec, scale=ScaleSpec(factor=0.0625)).but(context=Length(8192))
    return experts_after(model, 0, choice, sizes[3])


RELEASE = "Cohere 2024, the release of {} and its configuration (theta and logit scale from memory)"
BPE = "byte-level BPE, 255,029 padded to 256,000"
R_PLUS = cohere(64, 12_288, 96, 33_792, 8, theta=75e6, logit_scale=0.8333, qk_norm=True)

COMMAND_R = Origin("command-r", "palm", 2024, "the release of Command R, from memory").lineage(
    "all heads have keys and values, 131,072 tokens",
    Preset(
        "command-r",
        cohere(40, 8192, 64, 22_528, 64, theta=8e6, logit_scale=0.0625),
        "35B",
        source=RELEASE.format("Command R"),
    ),
    Preset(
        "command-r-08-2024",
        cohere(40, 8192, 64, 24_576, 8, theta=4e6, logit_scale=0.0625),
        "32B",
        source=RELEASE.format("Command R 08-2024"),
    ),
    known="command-r",
    family="cohere",
    tokenizer=BPE,
)
COMMAND_R_PLUS = Origin("command-r-plus", "command-r", 2024, "the release of Command R+, from memory").lineage(
    "QK-norm, grouped queries",
    Preset("command-r-plus", R_PLUS, "104B"),
    family="cohere",
    sizes=RELEASE.format("Command R+"),
    tokenizer=BPE,
)
COMMAND_A = Origin("command-a", "command-r", 2025, "arXiv:2504.00698, section 2").lineage(
    "three windows to a full layer without positions",
    Preset("command-a", cohere2(64, 12_288, 96, 36_864, 8), "111B"),
    Preset(
        "command-r7b",
        cohere2(32, 4096, 32, 14_336, 8),
        "7B",
        "8.03B, which the name leaves the embedding of 1.05B out of",
        source=RELEASE.format("Command R7B"),
    ),
    known="command-a",
    family="cohere2",
    sizes="Cohere 2025, arXiv:2504.00698, section 2; sizes as released",
    tokenizer=BPE,
)
COMMAND_A_PLUS = Origin("command-a-moe", "command-a", 2026, "transformers' class of Command A+").lineage(
    "experts, two for a token",
    Preset("command-a-moe", cohere2_moe(40, 8192, 64, 22_528, 64, n_experts=8)),
    family="cohere2",
    sizes="the sizes of transformers' class (those of the release, Command A+ of May 2026, are not known here)",
    tokenizer="256,000",
)
