"""StableLM to and from transformers' StableLmForCausalLM: serial or parallel, with a norm for each head or none."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, NORMS, SWIGLU
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings
from anyformer.families.stablelm import side_by_side, stablelm
from anyformer.layers import GatedFeedForwardSpec, GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec

LAYER_NORM = LayerNormSpec(eps=1e-5, bias=False)


def _read_shape(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Whether branches stand side by side on one norm, and whether each head has a norm of its own."""
    parallel, normed = (settings.take(name, bool, False) for name in ("use_parallel_residual", "qk_layernorm"))
    norm = LAYER_NORM if normed else None
    spec = side_by_side(spec) if parallel else spec
    return changed(spec, GQASpec, norm_query=norm, norm_key=norm, norm_over="heads" if normed else "head")


def _write_shape(spec: ModelSpec) -> dict[str, bool]:
    return {
        "use_parallel_residual": len(spec.stack.blocks[0].sublayers) == 1,
        "qk_layernorm": one(spec, GQASpec).norm_query is not None,
    }


STABLELM = table.family(
    "stablelm",
    "StableLmForCausalLM",
    stablelm(1, 8, 1, 8),
    (
        table.Pair(_read_shape, _write_shape),
        *table.STREAM,
        table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff", default=6912),
        SWIGLU,
        table.heads(n_kv_heads=32),
        table.EVEN,
        table.only(head_dim=lambda spec: spec.stack.d_model // one(spec, GQASpec).n_heads),
        table.at("use_qkv_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
        table.eps(1e-5),
        table.positions(RotarySpec(fraction=0.25), fraction=FRACTION, context=4096),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        **NORMS,
        **ATTENTION,
        **table.feeds(gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj"),
        f"{table.PROJECTION}.norm_query": "self_attn.q_layernorm.norms.*",
        f"{table.PROJECTION}.norm_key": "self_attn.k_layernorm.norms.*",
    },
    ignored=("rotary_scaling_factor",),
)
