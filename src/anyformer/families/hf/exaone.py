"""EXAONE 3, 4 and K-EXAONE to and from transformers' LlamaForCausalLM, Exaone4ForCausalLM and ExaoneMoeForCausalLM.

EXAONE 3's files have GPT-2's names. Full layers rotate nothing where there are windows, and all else.
"""

from __future__ import annotations

from anyformer.families.compose import changed, turning_windows, with_layers
from anyformer.families.exaone import exaone4, exaone_moe
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import LAYER, n_shared, v3_routing
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed, routed
from anyformer.families.hf.gpt2 import gpt_family
from anyformer.families.hf.llama import (
    ATTENTION,
    GATED,
    NORMS_BEHIND,
    QK_NORMS,
    SPARSE_WIDTHS,
    TEMPLATE,
    WIDTHS,
    settings_of,
)
from anyformer.families.hf.llama import LAYER as OF_LLAMA
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, Causal, RotarySpec
from anyformer.spec import ModelSpec


def _turned(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Without windows full layers turn."""
    if settings.nullable(windows.WINDOW, int, 4096) is not None:
        return spec
    turning = spec.stack.blocks[0]
    return with_layers(spec, (turning, changed(turning, AttentionSpec, mask=Causal())))


def _full(settings: Settings, n: int) -> list[bool]:
    whole = settings.nullable(windows.WINDOW, int, 4096) is None
    if whole or settings.strings("layer_types") is not None:
        settings.ignore("sliding_window_pattern")  # in words in the released files, which list the types
        return [whole] * n
    return [*windows.each(4, "sliding_window_pattern")(settings, n)]


TYPES = table.Pair(_turned, lambda spec: {windows.WINDOW: None}), windows.layer_types(_full, 4096)


def _windowed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    if settings.names("sliding_window") and settings.written("sliding_window") is None:
        raise settings.refusal("sliding_window", "is no window, without which this class is not made")
    return spec


EPS = table.rms_eps(1e-5)
WINDOWED = table.Pair(_windowed)
SETTINGS = (
    table.renamed(num_layers="num_hidden_layers", layer_norm_epsilon="rms_norm_eps", activation_function="hidden_act"),
    *settings_of(table.heads(n_kv_heads=8), EPS, RotarySpec(theta=500_000.0), context=4096),
)
RELEASED = {
    "0.norm_in": "ln_1",
    "1.norm_in": "ln_2",
    **{f"{table.PROJECTION}.{x}": f"attn.attention.{x}_proj" for x in "qkv"},
    f"{table.PROJECTION}.o": "attn.attention.out_proj",
    **table.feeds(gate="mlp.c_fc_0", up="mlp.c_fc_1", down="mlp.c_proj"),
}
EXAONE = table.family("exaone", "LlamaForCausalLM", TEMPLATE, SETTINGS, OF_LLAMA)._replace(
    files=gpt_family("exaone", "LlamaForCausalLM", TEMPLATE, SETTINGS, RELEASED).rows
)
EXAONE4 = table.family(
    "exaone4",
    "Exaone4ForCausalLM",
    windows.two_kinds(turning_windows(exaone4(4, 8, 1, 8), 1)),
    (
        *WIDTHS,
        table.heads(),
        EPS,
        table.positions(),
        table.tables(tied=False),
        *TYPES,
    ),
    {**NORMS_BEHIND, **QK_NORMS, **ATTENTION, **GATED},
)
EXAONE_MOE = table.family(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    windows.two_kinds(exaone_moe(4, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0)),
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1024),
        n_shared(1, "num_shared_experts"),
        table.heads(n_kv_heads=32),
        EPS,
        table.positions(),
        v3_routing(64, 8, 2.5, 1, 1, name="num_experts"),
        table.tables(tied=False),
        WINDOWED,
        *TYPES,
        dense_by_type(16_384, 1, "first_k_dense_replace"),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER},
    apart=(HELD, {**filed(None), **routed("mlp.gate.weight", "mlp.e_score_correction_bias")}),
)
