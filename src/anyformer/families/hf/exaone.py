"""EXAONE 4 and K-EXAONE to and from transformers' Exaone4ForCausalLM and ExaoneMoeForCausalLM.

Full layers rotate nothing where there are windows, and all else.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.exaone import exaone4, exaone_moe, hybrid
from anyformer.families.glm import router
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYER, n_shared, v3_routing
from anyformer.families.hf.experts import HELD, TRAINING, dense_by_type, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS_BEHIND, QK_NORMS, SWIGLU, WIDTHS
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, Causal, RMSNormSpec
from anyformer.spec import ModelSpec


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    n_layers, size = settings.take("num_hidden_layers", int), settings.nullable("sliding_window", int, 4096)
    types = settings.strings("layer_types")
    if types is None:
        every = settings.take("sliding_window_pattern", int, 4) if size else 1
        if every < 1:
            raise settings.refusal("sliding_window_pattern", "must be at least 1")
        types = tuple(table.SLIDING if (i + 1) % every else table.FULL for i in range(n_layers))
    settings.ignore("sliding_window_pattern")  # in words in the released files, which list the types
    if size is None:
        turning = spec.stack.blocks[0]
        full = changed(turning, AttentionSpec, mask=Causal())
        spec = spec.but(stack=spec.stack.but(blocks=(turning, full)))
    return table.typed(settings, spec, n_layers, types, size)


def _write(spec: ModelSpec) -> dict[str, Any]:
    found = {"num_hidden_layers": spec.n_layers, "layer_types": table.types_of(spec)}
    return {**found, "sliding_window": table.window_of(spec)}


def _windowed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    if settings.names("sliding_window") and settings.written("sliding_window") is None:
        raise settings.refusal("sliding_window", "is no window, without which this class is not made")
    return spec


EPS = table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5)
EXAONE4 = table.family(
    "exaone4",
    "Exaone4ForCausalLM",
    table.two_kinds(hybrid(exaone4(4, 8, 1, 8), 1)),
    (
        *WIDTHS,
        table.heads(),
        EPS,
        table.positions(),
        table.tables(tied=False),
        table.Pair(_read, _write),
    ),
    {**NORMS_BEHIND, **QK_NORMS, **ATTENTION, **GATED},
)
EXAONE_MOE = table.family(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    table.two_kinds(exaone_moe(4, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), window=1, n_dense=0)),
    (
        table.VOCABULARY,
        table.D_MODEL,
        SWIGLU,
        expert_width("moe_intermediate_size", "expert", 1024),
        n_shared(1, "num_shared_experts"),
        table.heads(n_kv_heads=32),
        EPS,
        table.positions(),
        v3_routing(64, 8, 2.5, 1, 1, name="num_experts"),
        table.tables(tied=False),
        table.Pair(_windowed),
        table.Pair(_read, _write),
        dense_by_type(16_384, 1, "first_k_dense_replace"),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER, **HELD},
    filed={
        **ATTENTION,
        **QK_NORMS,
        **LAYER,
        **filed(None),
        **routed("mlp.gate.weight", "mlp.e_score_correction_bias"),
    },
    ignored=TRAINING,
)
