"""gpt-oss-20b: sinks, every other layer a window, clamped experts. OpenAI 2025, arXiv:2508.10925, table 1."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    Mask,
    RMSNormSpec,
    RotarySpec,
    SlidingWindow,
)
from anyformer.spec import BlockSpec, Count, ModelSpec, Width, Window
from tests.hard_cases.case import Case, attention_heads, of_transformers
from tests.hard_cases.parts.experts import RoutedSpec, ScoresOfExpertsSpec
from tests.hard_cases.parts.yarn import StretchedByParts

NORM = RMSNormSpec(eps=1e-5, cast="after")


def gpt_oss() -> ModelSpec:
    """Return the 20B; sizes: the paper, section 2.1, and the released config."""
    scaling = StretchedByParts(factor=32.0, whole=False)
    heads = attention_heads(64, 8, 64, bias=True).but(rotary=RotarySpec(theta=150_000.0, scaling=scaling))
    expert = GatedFeedForwardSpec(
        d_ff=Width(2880), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=7.0, up_offset=1.0
    )
    choice = ScoresOfExpertsSpec(n_experts=Count(32), top_k=4, weighs="softmax-of-chosen", bias=True)

    def layer(mask: Mask) -> BlockSpec:
        attend = AttentionSpec(projection=heads, mask=mask, sink=True)
        return block(pre_norm(NORM, attend), pre_norm(NORM, RoutedSpec(choice=choice, expert=expert)))

    blocks = repeat([layer(Causal() & SlidingWindow(size=Window(128))), layer(Causal())], 24)
    return language_model(vocab_size=201_088, d_model=2880, blocks=blocks, norm=NORM, tied=False, context=131_072)


def theirs() -> Any:
    """Return the model of transformers."""
    return of_transformers("GptOssForCausalLM", "GptOssConfig", num_hidden_layers=24, num_local_experts=32)


CASE = Case("gpt-oss-20b", gpt_oss, "20.9B", theirs, missing="Routed")
