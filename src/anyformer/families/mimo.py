"""MiMo-V2-Flash: values narrower than keys, windows with sinks and twice the heads of keys, experts (Xiaomi 2025)."""

from __future__ import annotations

from anyformer.families.compose import changed, window, with_layers_of
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, FactorSpec, GQASpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, Width

EVERY, WINDOW, SHARE = 6, 129, 0.334


def near(model: ModelSpec) -> ModelSpec:
    """The model with a window, sinks, theta 10,000 and twice as many heads of keys and values."""
    model = changed(model, AttentionSpec, mask=window(WINDOW), sink=True)
    heads = next(model.nested(GQASpec))
    return changed(changed(model, RotarySpec, theta=1e4), GQASpec, n_kv_heads=Count(2 * heads.kv_heads))


def mimo(*sizes: int, d_expert: int, choice: RouterSpec) -> ModelSpec:
    """LLaMA with heads of 192, a third of which turns, and values of 128, times 0.707; experts after a dense layer; all layers
    see a window but the first and each sixth (transformers' class)."""
    model = llama(*sizes, head_dim=192, vocab_size=152_576, eps=1e-5, theta=5e6, context=131_072)
    model = changed(
        changed(model, RotarySpec, fraction=SHARE), GQASpec, value_dim=Width(128), norm_value=FactorSpec(factor=0.707)
    )
    full = (0, *range(EVERY - 1, model.n_layers, EVERY))
    return experts_after(with_layers_of(near(model), model, full), 1, choice, d_expert)


MIMO = Origin("mimo-v2", "deepseek-v3", 2025, "the release of MiMo-V2-Flash, December 2025, from memory").lineage(
    "grouped queries for the latent, five windows of 128 with sinks to a full layer, no shared expert",
    Preset(
        "mimo-v2-flash",
        mimo(48, 4096, 64, 16_384, 4, d_expert=2048, choice=router(256, 8, 1.0)),
        "309B",
        alias="mimo-v2",
    ),
    family="mimo",
    sizes="Xiaomi 2025, the sizes of transformers' class; active parameters: 15B (from memory)",
    tokenizer="byte-level BPE, 151,680 padded to 152,576 (from memory)",
)
