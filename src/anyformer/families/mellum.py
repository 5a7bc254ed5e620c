"""Mellum 2, Qwen 3's mixtures with a theta for layers with windows and one for full ones (JetBrains 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, layered, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.qwen3 import qwen3_moe
from anyformer.layers import RotarySpec
from anyformer.spec import ModelSpec, TableSpec


def mellum(*sizes: int, n_experts: int) -> ModelSpec:
    """Three windows of 1,024, theta 10,000, to a full layer, theta 500,000."""
    model = qwen3_moe(*sizes, n_experts=n_experts, theta=5e5, context=131_072)
    model = changed(model, TableSpec, rows=98_304)
    near = changed(windowed(model, 1024), RotarySpec, theta=1e4)
    return layered(model, near, near, near, model)


MELLUM = Origin("mellum2", "qwen3-moe", 2026, "transformers' class of Mellum 2").lineage(
    "three windows of 1,024 to a full layer, a theta for each kind, 64 experts, 98,304 tokens",
    Preset(
        "mellum-2-12b",
        mellum(28, 2304, 32, 896, 4, n_experts=64),
        "12B",
        "12.15B, which the name cuts",
        alias="mellum2",
    ),
    family="mellum",
    sizes="JetBrains 2026, the sizes of transformers' class (name and order of the windows from memory, unverified)",
    tokenizer="byte-level BPE, 98,304",
)
