"""Trinity to and from transformers' AfmoeForCausalLM: dense layers first, and of each four the last without rotation."""

from __future__ import annotations

from anyformer.families.afmoe import afmoe
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import SHARED, n_shared
from anyformer.families.hf.experts import ALONE, dense_first, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, GATED, QK_NORMS, WIDTHS
from anyformer.families.hf.scales import scaled_tokens
from anyformer.layers import RouterSpec
from anyformer.spec import ScaleSpec

LAYER = {
    **ATTENTION,
    **QK_NORMS,
    **GATED,
    **SHARED,
    **routed("mlp.router.gate.weight", "mlp.expert_bias"),
    f"{table.MIXER}.gate": "self_attn.gate_proj",
    "0.norm_in": "input_layernorm",
    "0.branches.0.norm_out": "post_attention_layernorm",
    "1.norm_in": "pre_mlp_layernorm",
    "1.branches.0.norm_out": "post_mlp_layernorm",
}


AFMOE = table.family(
    "afmoe",
    "AfmoeForCausalLM",
    afmoe(1, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1408),
        n_shared(2, "num_shared_experts"),
        table.heads(head_dim=128),
        table.BIASES,
        table.rms_eps(1e-5),
        table.positions(context=16_384),
        table.together(
            RouterSpec,
            {
                "num_experts": ("n_experts", int, 64),
                "num_experts_per_tok": ("top_k", int, 6),
                "route_scale": ("factor", float, 1.0),
            },
        ),
        scaled_tokens("mup_enabled", ScaleSpec(power=0.5)),
        table.tables(tied=False),
        table.layers(),
        dense_first(1, "num_dense_layers"),
        windows.turning_windows(windows.each(4, "global_attn_every_n_layers"), 1024),
    ),
    LAYER,
    apart=(ALONE, filed(None)),
)
