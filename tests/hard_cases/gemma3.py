"""Gemma 3: five windows to one full layer, two thetas, QK-norm, sandwich norms. Gemma Team 2025, arXiv:2503.19786."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import block, language_model, repeat
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    LinearScaling,
    Mask,
    RMSNormSpec,
    RotarySpec,
    SlidingWindow,
)
from anyformer.spec import BlockSpec, BranchSpec, MixerSpec, ModelSpec, ScaleSpec, SublayerSpec, Width, Window
from tests.hard_cases.case import Case, Parity, attention_heads, of_transformers

NORM = RMSNormSpec(eps=1e-6, weight_offset=1.0, cast="after")


def gemma3(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    vocab_size: int,
    window: int,
    head_dim: int = 256,
    stretched: float | None = None,
) -> ModelSpec:
    """Return the architecture; `stretched` divides the frequencies of the full layers."""

    def sandwich(mixer: MixerSpec) -> SublayerSpec:
        return SublayerSpec(norm_in=NORM, branches=(BranchSpec(mixer=mixer, norm_out=NORM),))

    def layer(mask: Mask, rotary: RotarySpec) -> BlockSpec:
        heads = attention_heads(n_heads, n_kv_heads, head_dim).but(norm_query=NORM, norm_key=NORM, rotary=rotary)
        feed = GatedFeedForwardSpec(d_ff=Width(d_ff), activation=GELU(form="tanh"))
        return block(sandwich(AttentionSpec(projection=heads, mask=mask)), sandwich(feed))

    scaling = LinearScaling(factor=stretched) if stretched else None
    local = layer(Causal() & SlidingWindow(size=Window(window)), RotarySpec(theta=1e4))
    full = layer(Causal(), RotarySpec(theta=1e6, scaling=scaling))
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat([*[local] * 5, full], n_layers),
        norm=NORM,
        tied=True,
        token_scale=ScaleSpec(power=0.5),
        context=131_072 if stretched else 32_768,
    )


def gemma3_1b() -> ModelSpec:
    """The paper, tables 1 and 2; the released config."""
    return gemma3(n_layers=26, d_model=1152, n_heads=4, n_kv_heads=1, d_ff=6912, vocab_size=262_144, window=512)


def gemma3_4b() -> ModelSpec:
    """The text model; the paper, tables 1 and 2; the released config."""
    sizes: dict[str, Any] = {"n_layers": 34, "d_model": 2560, "n_heads": 8, "n_kv_heads": 4, "d_ff": 10_240}
    return gemma3(**sizes, vocab_size=262_208, window=1024, stretched=8.0)


def theirs(**sizes: Any) -> Any:
    """Return the model of transformers."""
    return of_transformers("Gemma3ForCausalLM", "Gemma3TextConfig", **sizes, attn_implementation="eager")


def rows() -> dict[str, Any]:
    """Return the table."""
    layer, ours = "model.layers.{i}", "stack.blocks.{i}.sublayers"
    table = {"model.embed_tokens.weight": "shared.tokens.weight", "model.norm.weight": "stack.norm.weight"}
    norms = ("0.norm_in", "0.branches.0.norm_out", "1.norm_in", "1.branches.0.norm_out")
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    table |= {f"{layer}.{n}_layernorm.weight": f"{ours}.{o}.weight" for n, o in zip(names, norms, strict=True)}
    for n in "qkvo":
        table[f"{layer}.self_attn.{n}_proj.weight"] = f"{ours}.0.branches.0.mixer.projection.{n}.weight"
    for n, o in (("q", "query"), ("k", "key")):
        table[f"{layer}.self_attn.{n}_norm.weight"] = f"{ours}.0.branches.0.mixer.projection.norm_{o}.weight"
    for n in ("gate", "up", "down"):
        table[f"{layer}.mlp.{n}_proj.weight"] = f"{ours}.1.branches.0.mixer.{n}.weight"
    return table


PARITY = Parity(
    lambda: theirs(
        vocab_size=96,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=5,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    ),
    lambda: gemma3(
        vocab_size=96, d_model=40, d_ff=56, n_layers=7, n_heads=4, n_kv_heads=2, head_dim=16, window=5, stretched=8.0
    ),
    rows(),
    unused=("lm_head.weight",),
)

WIDE = {"num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
NARROW = {"num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
ONE_B = Case(
    "gemma3-1b",
    gemma3_1b,
    "1.0B",
    lambda: theirs(**NARROW, vocab_size=262_144, hidden_size=1152, intermediate_size=6912),
    parity=PARITY,
)
FOUR_B = Case(
    "gemma3-4b",
    gemma3_4b,
    "3.88B",
    lambda: theirs(**WIDE, vocab_size=262_208, hidden_size=2560, intermediate_size=10_240),
)
