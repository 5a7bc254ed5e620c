"""OLMo Hybrid to and from transformers' OlmoHybridForCausalLM, whose norms stand before gated DeltaNet and behind attention."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, NORMS_BEHIND, QK_NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION, THETA, rotary_of, scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import DELTA, layer_kinds, template
from anyformer.families.olmo import DELTA_NORM, olmo_hybrid
from anyformer.layers import CausalConvolutionSpec, GatedDeltaNetSpec, GQASpec, RotarySpec
from anyformer.spec import ModelSpec

THEIRS, CONTEXT = "linear_attn", 65_536


def _delta(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The sizes of gated DeltaNet, which follow from attention's where nothing is said; its norm has an eps of its own."""
    n = one(spec, GQASpec).n_heads
    of_keys = settings.positive("linear_num_key_heads", int, n)
    key_dim = settings.positive("linear_key_head_dim", int, int(0.75 * spec.stack.d_model / of_keys))
    return changed(
        spec,
        GatedDeltaNetSpec,
        n_key_heads=of_keys,
        n_heads=settings.positive("linear_num_value_heads", int, n),
        key_dim=key_dim,
        value_dim=settings.positive("linear_value_head_dim", int, 2 * key_dim),
        most_rate=2.0 if settings.take("linear_allow_neg_eigval", bool, True) else 1.0,
        norm=DELTA_NORM,
    )


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, GatedDeltaNetSpec)
    return {
        "linear_num_key_heads": found.n_key_heads,
        "linear_num_value_heads": found.n_heads,
        "linear_key_head_dim": found.key_dim,
        "linear_value_head_dim": found.value_dim,
        "linear_allow_neg_eigval": found.most_rate == 2,
    }


def _positions(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Attention's positions: none where there is a table without a theta, as of the released model."""
    spec = spec.but(context=settings.positive("max_position_embeddings", int, CONTEXT))
    inner = settings.section("rope_parameters")
    if inner is not None and inner.names(THETA) and inner.written(THETA) is None:
        return changed(spec, GQASpec, rotary=None)
    if inner is not None:
        inner.require(FRACTION, 1.0)
    return changed(spec, GQASpec, rotary=RotarySpec() if inner is None else rotary_of(inner, CONTEXT, RotarySpec()))


def _turning(spec: ModelSpec) -> dict[str, Any]:
    rotary = one(spec, GQASpec).rotary
    scaling = scaling_settings(rotary.scaling) if rotary else None
    found = {"rope_type": "default", THETA: rotary.theta if rotary else None, **(scaling or {})}
    return {"max_position_embeddings": spec.context or CONTEXT, "rope_parameters": found}


LAYER = {
    **NORMS,
    **NORMS_BEHIND,
    **ATTENTION,
    **QK_NORMS,
    **GATED,
    **{f"{table.MIXER}.{x}": f"{THEIRS}.{x}_proj" for x in "qkv"},
    f"{table.MIXER}.write": f"{THEIRS}.b_proj",
    f"{table.MIXER}.forget": f"{THEIRS}.a_proj",
    f"{table.MIXER}.out_gate": f"{THEIRS}.g_proj",
    f"{table.MIXER}.step": f"{THEIRS}.dt_bias",
    f"{table.MIXER}.decay": f"{THEIRS}.A_log",
    f"{table.MIXER}.norm": f"{THEIRS}.o_norm",
    f"{table.MIXER}.out": f"{THEIRS}.o_proj",
}
CONVOLUTION = f"{table.MIXER}.convolution"
OLMO_HYBRID = table.family(
    "olmo_hybrid",
    "OlmoHybridForCausalLM",
    template(olmo_hybrid(4, 8, 1, 8), DELTA),
    (
        *WIDTHS,
        table.heads(),
        table.EVEN,
        table.BIASES,
        EPS,
        table.Pair(_delta, _sizes),
        table.at("linear_conv_kernel_dim", int, CausalConvolutionSpec, "size", default=4),
        table.activation("hidden_act", "silu", CausalConvolutionSpec),  # of feed-forwards too
        table.Pair(_positions, _turning),
        table.tables(tied=False),
        layer_kinds(DELTA, lambda _, n: ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(n)]),
    ),
    LAYER,
    apart=(
        {CONVOLUTION: f"{THEIRS}.conv1d"},
        {
            "0.norm_in": "attention_layer_norm",
            "1.norm_in": "feedforward_layer_norm",
            # Released files call attention's norms otherwise than transformers does when it writes.
            "0.branches.0.norm_out": Theirs("post_attention_layernorm", also=("feedforward_layer_norm",)),
            CONVOLUTION: Theirs(f"{THEIRS}.*_conv1d", pieces=("q", "k", "v")),
        },
    ),
    ignored=("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"),
)
