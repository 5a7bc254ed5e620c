"""LFM2 and LFM3 to and from transformers' Lfm2ForCausalLM, Lfm2MoeForCausalLM and Lfm3ForCausalLM."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, GATE_AND_UP, dense_first, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, QK_NORMS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import layer_kinds, template
from anyformer.families.hf.windows import rotary_by_type
from anyformer.families.lfm2 import choice, lfm2, lfm2_moe, lfm3
from anyformer.layers import (
    AttentionSpec,
    CausalConvolutionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    OutputGateSpec,
    ProportionalRoPE,
    RotarySpec,
    RouterSpec,
    ShortConvolutionSpec,
    SlidingWindow,
)
from anyformer.spec import BranchSpec, ModelSpec, TableSpec, Window

WORDS = {"conv": ShortConvolutionSpec, "full_attention": AttentionSpec}


def _attending(settings: Settings, n_layers: int) -> list[str]:
    said = settings.layers("full_attn_idxs", n_layers, range(n_layers))
    return ["full_attention" if i in said else "conv" for i in range(n_layers)]


def _listed(settings: Settings, n_layers: int) -> list[str]:
    raise settings.refusal("layer_types", f"must be {n_layers} times {' or '.join(WORDS)}")


def _width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of feed-forwards: as it is said, or two thirds of it, times a factor, up to a multiple."""
    width = settings.positive("block_ff_dim", int, settings.positive("intermediate_size", int, 12_288))
    if settings.take("block_auto_adjust_ff_dim", bool, True):
        factor, least = (
            settings.take("block_ffn_dim_multiplier", float, 1.0),
            settings.positive("block_multiple_of", int, 256),
        )
        width = -(-int(factor * int(2 * width / 3)) // least) * least
    else:
        settings.ignore("block_ffn_dim_multiplier", "block_multiple_of")
    return changed(spec, GatedFeedForwardSpec, d_ff=width)


def _written(spec: ModelSpec) -> dict[str, Any]:
    width = one(spec, GatedFeedForwardSpec).d_ff
    return {"intermediate_size": width, "block_auto_adjust_ff_dim": False}


def _tied(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Whether tables are one by the name that released files have for it, which goes before the other."""
    said = settings.optional("tie_embedding", bool)
    return spec if said is None else changed(spec, TableSpec, shared="tokens" if said else None)


# What the released files say of the class again; and what they say of its start, or twice.
AGAIN = table.only(
    block_use_swiglu=True,
    use_pos_enc=True,
    **dict.fromkeys(("block_dim", "conv_dim", "conv_dim_out"), lambda spec: spec.stack.d_model),
    num_heads=lambda spec: one(spec, GQASpec).n_heads,
)
STARTS = tuple(f"block_{x}" for x in ("mlp_init_scale", "out_init_scale", "use_xavier_init", "norm_eps"))
IGNORED = (*STARTS, "conv_use_xavier_init", "theta", "full_attn_idxs")  # the last of no use where types are listed
EPS = table.rms_eps(1e-5, "norm_eps")


def _convolutions(size: int) -> tuple[table.Pair, ...]:
    return (
        table.at("conv_L_cache", int, CausalConvolutionSpec, "size", default=size),
        table.at("conv_bias", bool, ShortConvolutionSpec, "bias", default=False),
        table.at("conv_bias", bool, CausalConvolutionSpec, "bias", default=False),
    )


MIXERS = (
    table.heads(n_kv_heads=8),
    EPS,
    *_convolutions(3),
    table.positions(RotarySpec(theta=1e6), context=128_000),
    table.tables(tied=True),
    table.Pair(_tied),
    AGAIN,
)
FEED = "feed_forward"
LAYER = {
    "0.norm_in": "operator_norm",
    "1.norm_in": "ffn_norm",
    f"{table.MIXER}.inner": "conv.in_proj",
    f"{table.MIXER}.convolution": "conv.conv",
    f"{table.MIXER}.out": "conv.out_proj",
    **{f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkv"},
    f"{table.PROJECTION}.o": "self_attn.out_proj",
    f"{table.PROJECTION}.norm_query": "self_attn.q_layernorm",
    f"{table.PROJECTION}.norm_key": "self_attn.k_layernorm",
    **table.feeds(gate=f"{FEED}.w1", up=f"{FEED}.w3", down=f"{FEED}.w2"),
}
LFM2 = table.family(
    "lfm2",
    "Lfm2ForCausalLM",
    template(lfm2(2, 8, 1, 8, attending=(1,)), WORDS),
    (
        *table.STREAM,
        table.Pair(_width, _written),
        *MIXERS,
        layer_kinds(WORDS, _attending),
    ),
    LAYER,
    norm="embedding_norm",
    ignored=IGNORED,
)

LFM2_MOE = table.family(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    template(lfm2_moe(2, 8, 1, 8, d_expert=8, choice=choice(4, 1), n_dense=0, attending=(1,)), WORDS),
    (
        *table.STREAM,
        *MIXERS,
        expert_width("moe_intermediate_size", "expert", 1792),
        table.together(
            RouterSpec,
            {
                "num_experts": ("n_experts", int, 32),
                "num_experts_per_tok": ("top_k", int, 4),
                "use_expert_bias": ("correction", bool, True),
                "norm_topk_prob": ("renormalise", bool, True),
                "routed_scaling_factor": ("factor", float, 1.0),
            },
        ),
        layer_kinds(WORDS, _listed),
        dense_first(2, "num_dense_layers", 7168),
    ),
    {**LAYER, **routed(f"{FEED}.gate.weight", f"{FEED}.expert_bias")},
    apart=(
        {GATE_AND_UP: f"{FEED}.experts.gate_up_proj", f"{EXPERTS}.down.weight": f"{FEED}.experts.down_proj"},
        filed(None, f"{FEED}.experts", ("w1", "w3", "w2")),
    ),
    norm="embedding_norm",
    ignored=IGNORED,
)


def _by_four(_: Settings, n_layers: int) -> list[str]:
    each = {2: windows.FULL, 0: windows.SLIDING}
    return [each.get(i % 4, "conv") if i else "conv" for i in range(n_layers)]


def _window(settings: Settings, spec: ModelSpec) -> ModelSpec:
    size = settings.nullable("sliding_window", int, 256)
    if size is not None:
        return changed(spec, SlidingWindow, size=Window(size))
    if windows.window_of(spec):
        raise settings.refusal("sliding_window", "leaves the sliding layers without a window, which this class refuses")
    return spec


GATE = OutputGateSpec(over="heads")
THREE = {"conv": ShortConvolutionSpec, windows.SLIDING: windows.window_of, windows.FULL: AttentionSpec}
OF_LFM3 = {
    **{ours: theirs for ours, theirs in LAYER.items() if not theirs.startswith("self_attn")},
    **ATTENTION,
    **QK_NORMS,
    "0.branches.0.norm_out": "post_operator_norm",
    "1.branches.0.norm_out": "post_ffn_norm",
}
LFM3 = table.family(
    "lfm3",
    "Lfm3ForCausalLM",
    template(lfm3(5, 8, 1, 8), THREE),
    (
        *table.STREAM,
        table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff", default=7680),
        table.heads(n_kv_heads=4, head_dim=128),
        table.BIASES,
        EPS,
        *_convolutions(7),
        table.switch("use_sandwich_norm", BranchSpec, "norm_out", on=lambda spec: spec.stack.norm, default=True),
        table.switch("use_attention_gate", AttentionSpec, "gate", on=lambda spec: GATE, default=True),
        rotary_by_type(RotarySpec(), RotarySpec(theta=1e6, scaling=ProportionalRoPE(share=0.5)), 128_000),
        table.only(rope_theta=1e6),  # what the class takes where no tables are said
        table.tables(tied=True),
        layer_kinds(THREE, _by_four),
        table.Pair(_window, lambda spec: {"sliding_window": windows.window_of(spec)}),
    ),
    OF_LFM3,
    apart=({f"{table.MIXER}.gate": "self_attn.g_proj"}, {f"{table.MIXER}.gate": "self_attn.gate_proj"}),
    norm="embedding_norm",
)
