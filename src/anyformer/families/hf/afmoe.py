"""Trinity to and from transformers' AfmoeForCausalLM: dense layers first, and of each four the last without rotation."""

from __future__ import annotations

from typing import Any

from anyformer.families.afmoe import afmoe
from anyformer.families.compose import changed, window
from anyformer.families.glm import router
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import SHARED, dense_first, n_shared
from anyformer.families.hf.experts import ALONE, TRAINING, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, GATED, QK_NORMS, WIDTHS
from anyformer.families.hf.settings import Settings
from anyformer.layers import AttentionSpec, Causal, GQASpec, RMSNormSpec, RouterSpec
from anyformer.spec import ModelSpec, ScaleSpec

LAYER = {
    **ATTENTION,
    **QK_NORMS,
    **GATED,
    **SHARED,
    **routed("mlp.router.gate.weight", "mlp.expert_bias"),
    "0.branches.0.mixer.gate": "self_attn.gate_proj",
    "0.norm_in": "input_layernorm",
    "0.branches.0.norm_out": "post_attention_layernorm",
    "1.norm_in": "pre_mlp_layernorm",
    "1.branches.0.norm_out": "post_mlp_layernorm",
}


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Layers by their types: windows that rotate, and full ones that do not."""
    n, size = spec.n_layers, settings.positive("sliding_window", int, 1024)
    every = settings.positive("global_attn_every_n_layers", int, 4)
    by_number = tuple(table.SLIDING if (i + 1) % every else table.FULL for i in range(n))
    types = settings.strings("layer_types") or by_number
    if len(types) != n or set(types) - {table.SLIDING, table.FULL}:
        raise settings.refusal("layer_types", f"must be {n} times {table.SLIDING} or {table.FULL}")
    blocks = (
        changed(block, AttentionSpec, mask=window(size))
        if kind == table.SLIDING
        else changed(changed(block, AttentionSpec, mask=Causal()), GQASpec, rotary=None)
        for kind, block in zip(types, spec.stack.blocks, strict=True)
    )
    return spec.but(stack=spec.stack.but(blocks=tuple(blocks)))


def _write(spec: ModelSpec) -> dict[str, Any]:
    return {"layer_types": table.types_of(spec), "sliding_window": table.window_of(spec) or 1024}


AFMOE = table.family(
    "afmoe",
    "AfmoeForCausalLM",
    afmoe(2, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0)),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1408),
        n_shared(2, "num_shared_experts"),
        table.heads(head_dim=128),
        table.BIASES,
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(context=16_384),
        table.together(
            RouterSpec,
            {
                "num_experts": ("n_experts", int, 64),
                "num_experts_per_tok": ("top_k", int, 6),
                "route_scale": ("factor", float, 1.0),
            },
        ),
        table.scaled_tokens("mup_enabled", ScaleSpec(power=0.5)),
        table.tables(tied=False),
        dense_first(1, "num_dense_layers"),
        table.Pair(_read, _write),
    ),
    {**LAYER, **ALONE},
    filed={**LAYER, **filed(None)},
    ignored=TRAINING,
)
