"""OLMo 3, OLMoE and FlexOlmo to and from transformers' Olmo3ForCausalLM, OlmoeForCausalLM and FlexOlmoForCausalLM.

The first is OLMo 2's class with rotary positions by the type of a layer, the second Qwen's mixtures' with norms over all heads,
the third has OLMo 2's norms around such mixtures.
"""

from __future__ import annotations

from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import BY_EXPERT, qwen_routing
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, NORMS_BEHIND, QK_NORMS, WIDTHS
from anyformer.families.hf.llama import EPS as EPS_OF_LLAMA
from anyformer.families.hf.windows import rotary_by_type
from anyformer.families.olmo import flex_olmo, olmo3, olmoe
from anyformer.layers import RotarySpec

EPS = table.rms_eps(1e-5)
SIZES = (*WIDTHS, table.heads(), table.EVEN, table.BIASES, EPS, table.tables(tied=False))
THETA = RotarySpec(theta=500_000.0)

OLMO3 = table.family(
    "olmo3",
    "Olmo3ForCausalLM",
    windows.two_kinds(olmo3(4, 8, 1, 8)),
    (*SIZES, rotary_by_type(THETA, THETA, 2048), windows.layer_types(windows.each(4), 4096)),
    {**NORMS_BEHIND, **QK_NORMS, **ATTENTION, **GATED},
)
OLMOE = table.family(
    "olmoe",
    "OlmoeForCausalLM",
    olmoe(1, 8, 1, 8),
    (
        *SIZES,
        table.only(clip_qkv=None),  # after the norms, where ours clamps before them
        table.positions(context=4096),
        *qwen_routing(64, 8, sum_is_one=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **QK_NORMS},
    apart=BY_EXPERT,
)
FLEX_OLMO = table.family(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    flex_olmo(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(),
        table.BIASES,
        EPS_OF_LLAMA,
        table.positions(THETA, context=4096),
        *qwen_routing(7, 5, sum_is_one=False),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS_BEHIND, **ATTENTION, **QK_NORMS},
    apart=BY_EXPERT,
)
