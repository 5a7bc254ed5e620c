"""dots.llm1 to and from transformers' Dots1ForCausalLM: Qwen 3's attention, windows by a layer's type, DeepSeek-V3's experts."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, window, with_layers
from anyformer.families.dots import dots1
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import LAYER, dense_first, n_shared, v3_routing
from anyformer.families.hf.experts import BY_EXPERT, expert_width
from anyformer.families.hf.llama import ATTENTION, EPS, QK_NORMS, WIDTHS
from anyformer.families.hf.settings import REQUIRED, Settings
from anyformer.layers import AttentionSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Layers from max_window_layers on have windows, if no types are listed."""
    size, n = settings.nullable("sliding_window", int, 4096), spec.n_layers
    first = settings.take("max_window_layers", int, 62)
    by_number = tuple(windows.FULL if size is None or i < first else windows.SLIDING for i in range(n))
    types = settings.strings("layer_types") or by_number
    if len(types) != n or set(types) - {windows.SLIDING, windows.FULL} or (size is None and windows.SLIDING in types):
        raise settings.refusal("layer_types", f"must be {n} times {windows.SLIDING}, with a window, or {windows.FULL}")
    blocks = (
        changed(block, AttentionSpec, mask=window(size)) if size is not None and kind == windows.SLIDING else block
        for kind, block in zip(types, spec.stack.blocks, strict=True)
    )
    return with_layers(spec, blocks)


def _write(spec: ModelSpec) -> dict[str, Any]:
    return {"layer_types": windows.types_of(spec), "sliding_window": windows.window_of(spec)}


DOTS1 = table.family(
    "dots1",
    "Dots1ForCausalLM",
    dots1(2, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0)),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1408),
        n_shared(REQUIRED),
        table.heads(n_kv_heads=32),
        table.BIASES,
        EPS,
        table.positions(),
        v3_routing(REQUIRED, REQUIRED, 1.0, 1, 1, sum_is_one=False),
        table.tables(tied=False),
        dense_first(0),
        table.Pair(_read, _write),
        table.only(scoring_func=("sigmoid", "noaux_tc"), topk_method="noaux_tc"),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER},
    apart=BY_EXPERT,
)
