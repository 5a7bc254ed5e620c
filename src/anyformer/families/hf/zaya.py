"""ZAYA1 to and from transformers' ZayaForCausalLM: a mixture in every layer, windows and rotary positions by its own words."""

from __future__ import annotations

from anyformer.families.compose import changed, windowed, with_layers
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import ALONE, expert_width, routing
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import NORMS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.zaya import first_alone, zaya
from anyformer.layers import (
    ConvolvedHeadsSpec,
    GatedFeedForwardSpec,
    LinearSpec,
    RotarySpec,
    RouterSpec,
    RouterStreamSpec,
)
from anyformer.spec import HeadSpec, ModelSpec

WORDS = "hybrid_sliding", "hybrid"  # of layers with a window, and of those without
FULL = zaya(1, 8, 1, 8, 1)
TEMPLATE = with_layers(FULL, (*windowed(FULL, 4096).stack.blocks, *FULL.stack.blocks))
HEADS, ROUTER = f"{table.PROJECTION}.convolved", f"{table.FEED}.router"
QKV, GATE = "self_attn.qkv_proj", "mlp.gate"
SCALES = {"hidden_states": "branches.0.norm_out", "residual": "skip"}


def _inner(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The router's maps, as wide as its stream."""
    router, stream = one(spec, RouterSpec), one(spec, RouterStreamSpec)
    return changed(spec, RouterSpec, inner=router.inner and changed(router.inner, LinearSpec, d_out=stream.width))


def _scaled(sublayer: int, theirs: str) -> dict[str, str]:
    """What a branch writes, and what it writes to, each with a shift and a gain."""
    ends = {"maps.0.bias": "bias", "maps.1.weight": "scale"}
    return {
        f"{sublayer}.{ours}.{end}": f"{theirs}.{name}_{what}"
        for name, ours in SCALES.items()
        for end, what in ends.items()
    }


LAYER = {
    **NORMS,
    f"{table.PROJECTION}.q": f"{QKV}.q_proj",
    f"{table.PROJECTION}.k": f"{QKV}.k_proj",
    f"{table.PROJECTION}.v": Theirs(f"{QKV}.v_proj_*", pieces=("current", "delayed")),
    f"{table.PROJECTION}.o": "self_attn.o_proj",
    f"{table.PROJECTION}.norm_key.maps.1.weight": Theirs("self_attn.qk_norm.temp", by=(-1,)),
    f"{HEADS}.each": f"{QKV}.conv_qk_depthwise",
    f"{HEADS}.shift": f"{QKV}.conv_qk_depthwise.bias",
    f"{HEADS}.heads": f"{QKV}.conv_qk_grouped",
    **_scaled(0, "post_attention_residual_scale"),
    **_scaled(1, "post_mlp_residual_scale"),
    f"{ROUTER}.stream.down": f"{GATE}.down_proj",
    f"{ROUTER}.stream.gain": f"{GATE}.router_states_scale",
    f"{ROUTER}.inner.maps.0": f"{GATE}.router_mlp.norm",
    f"{ROUTER}.inner.maps.1": f"{GATE}.router_mlp.fc1",
    f"{ROUTER}.inner.maps.3": f"{GATE}.router_mlp.fc2",
    f"{ROUTER}.weight": f"{GATE}.router_mlp.out_proj.weight",
    f"{ROUTER}.correction": f"{GATE}.balancing_biases",
    **ALONE,
}
AROUND = {
    "stack.embedding.norm.maps.0.bias": "input_hidden_states_bias",
    "stack.embedding.norm.maps.1.weight": "input_hidden_states_scale",
}

ZAYA = table.family(
    "zaya",
    "ZayaForCausalLM",
    TEMPLATE,
    (
        *table.STREAM,
        table.activation("hidden_act", "silu", GatedFeedForwardSpec),
        expert_width("moe_intermediate_size", "expert", 2048),
        table.heads(n_kv_heads=2, head_dim=128),
        table.rms_eps(1e-5),
        windows.rotary_by_type(
            RotarySpec(theta=1e4, fraction=0.5), RotarySpec(theta=5e6, fraction=0.5), 131_072, words=WORDS
        ),
        routing(16, 1),
        table.at("router_hidden_size", int, RouterStreamSpec, "width", default=256),
        table.Pair(_inner),
        table.at("cca_time0", int, ConvolvedHeadsSpec, "each", default=2),
        table.at("cca_time1", int, ConvolvedHeadsSpec, "heads", default=2),
        table.at("lm_head_bias", bool, HeadSpec, "bias", default=False),
        table.tables(tied=True),
        windows.layer_types(windows.each(1), None, WORDS),
        table.Pair(lambda _, spec: first_alone(spec)),
        # the bias of what is before a text, or padding, is not that of no text
        table.only(attention_bias=False, num_experts_per_tok=1, rope_theta=5e6),
    ),
    LAYER,
    outside=AROUND,
)
