"""MiMo-V2-Flash to and from transformers' MiMoV2FlashForCausalLM, whose windows have twice the heads of keys that it names."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited, with_layers
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import v3_routing
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import rotary_by_type
from anyformer.families.mimo import EVERY, SHARE, WINDOW, mimo
from anyformer.layers import FactorSpec, GQASpec, RotarySpec
from anyformer.spec import Count, ModelSpec

SMALL = mimo(6, 8, 2, 8, 1, d_expert=8, choice=router(2, 1, 1.0))
SPARSE = with_layers(SMALL, SMALL.stack.blocks[1:])


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """In windows twice the heads of keys and values."""
    near, full = spec.stack.blocks
    return with_layers(
        spec, (edited(near, GQASpec, lambda heads: heads.but(n_kv_heads=Count(2 * heads.kv_heads))), full)
    )


def _of_full(spec: ModelSpec) -> dict[str, Any]:
    first = one(spec.stack.blocks[0], GQASpec).kv_heads
    return {"num_key_value_heads": first if windows.types_of(spec)[0] == windows.FULL else max(1, first // 2)}


SINK = f"{table.MIXER}.sink"
MIMO = table.family(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    changed(windows.two_kinds(SPARSE), GQASpec, head_dim=None),  # which positions fit is not asked before it is read
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 2048),
        rotary_by_type(RotarySpec(theta=1e4, fraction=SHARE), RotarySpec(theta=5e6, fraction=SHARE), 131_072),
        table.heads(n_kv_heads=4, head_dim=192),
        table.at("v_head_dim", int, GQASpec, "value_dim", default=128),
        table.at(
            "attention_value_scale",
            float,
            GQASpec,
            "norm_value",
            default=0.707,
            nullable=True,
            into=lambda factor: FactorSpec(factor=factor),
            out=lambda scale: scale.factor if isinstance(scale, FactorSpec) else 1.0,
        ),
        table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
        table.rms_eps(1e-5),
        v3_routing(256, 8, 1.0, 1, 1),
        table.tables(tied=False),
        table.Pair(_heads, _of_full),
        windows.layer_types(lambda settings, n: [not i or (i + 1) % EVERY == 0 for i in range(n)], WINDOW),
        dense_by_type(16_384, 1),
    ),
    {**NORMS, **ATTENTION, **GATED},
    apart=({**HELD, SINK: "self_attn.sinks"}, {**filed(), SINK: "self_attn.attention_sink_bias"}),
)
