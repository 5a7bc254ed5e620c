"""dots.llm1 to and from transformers' Dots1ForCausalLM: Qwen 3's attention, windows by a layer's type, DeepSeek-V3's experts."""

from __future__ import annotations

from anyformer.families.compose import with_layers
from anyformer.families.dots import dots1
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import LAYER, n_shared, v3_routing
from anyformer.families.hf.experts import BY_EXPERT, dense_first, expert_width
from anyformer.families.hf.llama import ATTENTION, EPS, QK_NORMS, WIDTHS
from anyformer.families.hf.qwen2 import first_full
from anyformer.families.hf.settings import REQUIRED

SMALL = dots1(2, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0))
DOTS1 = table.family(
    "dots1",
    "Dots1ForCausalLM",
    with_layers(SMALL, SMALL.stack.blocks[1:]),
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
        table.layers(),
        dense_first(0),
        windows.turning_windows(first_full(62), 4096, turns=True),
        table.only(scoring_func=("sigmoid", "noaux_tc"), topk_method="noaux_tc"),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER},
    apart=BY_EXPERT,
)
