"""GLM-4 and 4.5 to and from transformers' GlmForCausalLM, Glm4ForCausalLM and Glm4MoeForCausalLM.

The mixtures' layers for further tokens stand in the released files as DeepSeek-V3's do, and the class passes over them too.
"""

from __future__ import annotations

from anyformer.families.glm import glm, glm4, glm4_moe, router
from anyformer.families.hf import table
from anyformer.families.hf.cohere import norms_of_heads
from anyformer.families.hf.deepseek import AHEAD, LAYER, dense_first, further, n_shared, v3_routing, where_held
from anyformer.families.hf.experts import HELD, TRAINING, expert_width, filed
from anyformer.families.hf.llama import ATTENTION, NORMS, QK_NORMS, WIDTHS
from anyformer.families.hf.rotary import FRACTION
from anyformer.layers import GQASpec, RMSNormSpec, RotarySpec

QKV = ("bias_query", "bias_key", "bias_value")
HALF = RotarySpec(fraction=0.5)
PAIRS = (
    *WIDTHS,
    table.heads(n_kv_heads=2, head_dim=128),
    table.at("attention_bias", bool, GQASpec, *QKV, default=True),
    table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1.5625e-07),
    table.positions(HALF.but(layout="interleaved"), fraction=FRACTION, context=131_072),
    table.tables(tied=False),
    table.layers(),
)
FUSED = {
    **ATTENTION,
    (f"{table.FEED}.gate", f"{table.FEED}.up"): "mlp.gate_up_proj",
    f"{table.FEED}.down": "mlp.down_proj",
}
BEHIND = {"0.branches.0.norm_out": "post_self_attn_layernorm", "1.branches.0.norm_out": "post_mlp_layernorm"}

GLM = table.family("glm", "GlmForCausalLM", glm(1, 8, 1, 8, 1), PAIRS, {**NORMS, **FUSED})
GLM4 = table.family("glm4", "Glm4ForCausalLM", glm4(1, 8, 1, 8, 1), PAIRS, {**NORMS, **BEHIND, **FUSED})
GLM4_MOE = table.family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    glm4_moe(2, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0)),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1408),
        n_shared(1),
        table.heads(n_kv_heads=8),
        table.at("attention_bias", bool, GQASpec, *QKV, default=False),
        norms_of_heads("use_qk_norm"),
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(HALF, fraction=FRACTION, context=131_072),
        v3_routing(128, 8, 1.0, 1, 1),
        table.tables(tied=False),
        dense_first(1),
        further(1),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER, **HELD},
    filed={**ATTENTION, **QK_NORMS, **LAYER, **filed()},
    ahead=AHEAD,
    ignored=TRAINING,
)._replace(of_files=where_held)
