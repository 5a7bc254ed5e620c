"""JetMoE to and from transformers' JetMoeForCausalLM, whose layers' norms have an eps of their own."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, mixtral_routing
from anyformer.families.hf.llama import NORMS
from anyformer.families.hf.settings import Settings
from anyformer.families.jetmoe import jetmoe
from anyformer.layers import GatedFeedForwardSpec, MoASpec, RMSNormSpec
from anyformer.spec import ModelSpec


def _eps(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of the last norm alone."""
    norm = RMSNormSpec(eps=settings.take("rms_norm_eps", float, 1e-6))
    return spec.but(stack=spec.stack.but(norm=norm))


HEADS, FEEDS = "self_attention.experts", "mlp"
JETMOE = table.family(
    "jetmoe",
    "JetMoeForCausalLM",
    jetmoe(1, 8, 1, 8, 8),
    (
        *table.STREAM,
        table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff", default=5632),
        table.activation("activation_function", "silu", GatedFeedForwardSpec),
        table.at("num_key_value_heads", int, MoASpec, "kv_heads", default=16),
        table.at("kv_channels", int, MoASpec, "head_dim", default=128),
        mixtral_routing(8, 2),
        table.Pair(_eps, table.rms_eps(1e-6).write),
        table.positions(context=4096),
        table.tables(tied=True, start=0.01),
        table.layers(),
    ),
    {
        **NORMS,
        f"{table.PROJECTION}.router": f"{HEADS}.router.layer",
        f"{table.PROJECTION}.q": f"{HEADS}.input_linear",
        (f"{table.PROJECTION}.k", f"{table.PROJECTION}.v"): "self_attention.kv_proj",
        f"{table.PROJECTION}.o": f"{HEADS}.output_linear",
        f"{table.PROJECTION}.bias": f"{HEADS}.bias",
        f"{table.FEED}.router": f"{FEEDS}.router.layer",
        GATE_AND_UP: f"{FEEDS}.input_linear.weight",
        f"{EXPERTS}.down": f"{FEEDS}.output_linear",
        f"{table.FEED}.bias": f"{FEEDS}.bias",
    },
    ignored=("num_attention_heads", "aux_loss_coef"),
)
