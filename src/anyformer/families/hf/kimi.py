"""Kimi Linear to and from transformers' KimiLinearForCausalLM, and from its released files, which say layers' kinds otherwise."""

from __future__ import annotations

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import SHARED, latent_heads, layer, layer_eps, n_shared
from anyformer.families.hf.experts import HELD, OF_MIXTRAL, dense_by_type, expert_width
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import GATED, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import DELTA, layer_kinds
from anyformer.families.kimi import kimi_linear
from anyformer.layers import CausalConvolutionSpec, GatedDeltaNetSpec, RouterSpec
from anyformer.spec import ModelSpec

THEIRS = "self_attn"
OF_RELEASE = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}


def kda_sizes(n_heads: int) -> table.Pair:
    """Of Kimi Delta Attention: beside the other settings, or, in released files, in a table of their own."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        section = settings.section("linear_attn_config")

        def said(name: str, usual: int) -> int:
            usual = settings.positive(name, int, usual)
            return section.positive(OF_RELEASE[name], int, usual) if section else usual

        heads, dim = said("linear_num_heads", n_heads), said("linear_head_dim", 128)
        of_dim = dict.fromkeys(("key_dim", "value_dim", "gate_rank", "forget_rank"), dim)
        spec = changed(spec, CausalConvolutionSpec, size=said("linear_conv_kernel_dim", 4))
        return changed(spec, GatedDeltaNetSpec, n_heads=heads, n_key_heads=heads, **of_dim)

    def write(spec: ModelSpec) -> dict[str, int]:
        found = one(spec, GatedDeltaNetSpec)
        size = found.convolution.size
        return {"linear_num_heads": found.n_heads, "linear_head_dim": found.key_dim, "linear_conv_kernel_dim": size}

    return table.Pair(read, write)


def _kinds(settings: Settings, n_layers: int) -> list[str]:
    """By the released table, which counts layers from 1, or the class's default."""
    section = settings.inner("linear_attn_config")
    listed = section.layers("full_attn_layers", n_layers, range(5, n_layers + 1, 4), first=1)
    return ["full_attention" if i + 1 in listed else "linear_attention" for i in range(n_layers)]


def routing(n_experts: int, factor: float, groups: int, best: int) -> table.Pair:
    """The router's settings; the arguments are what a class takes where nothing is said."""
    found = {
        "num_experts": ("n_experts", int, n_experts),
        "num_experts_per_token": ("top_k", int, 8),
        "routed_scaling_factor": ("factor", float, factor),
        "num_expert_group": ("n_groups", int, groups),
        "topk_group": ("top_groups", int, best),
        "moe_renormalize": ("renormalise", bool, True),
    }
    return table.together(RouterSpec, found)


MAPS = {
    **{f"{table.MIXER}.{x}": f"{THEIRS}.{x}_proj" for x in "qkv"},
    f"{table.MIXER}.write": f"{THEIRS}.b_proj",
    f"{table.MIXER}.out_gate.maps.0": f"{THEIRS}.g_a_proj",
    f"{table.MIXER}.out_gate.maps.1": f"{THEIRS}.g_b_proj",
    f"{table.MIXER}.norm": f"{THEIRS}.o_norm",
    f"{table.MIXER}.out": f"{THEIRS}.o_proj",
}


def forgetting(place: str) -> dict[str, str | Theirs]:
    return {
        f"{table.MIXER}.forget.maps.0": f"{place}.f_a_proj",
        f"{table.MIXER}.forget.maps.1": f"{place}.f_b_proj",
        f"{table.MIXER}.step": f"{place}.dt_bias",
        f"{table.MIXER}.decay": Theirs(f"{place}.A_log", by=(1, 1, -1, 1)),
    }


IN_MEMORY = {**forgetting(f"{THEIRS}.forget_gate"), f"{table.MIXER}.convolution": f"{THEIRS}.conv1d", **HELD}
IN_FILES = {
    **forgetting(THEIRS),
    f"{table.MIXER}.convolution": Theirs(f"{THEIRS}.*_conv1d", pieces=("q", "k", "v")),
    # Released files call a dense feed-forward one way, those that transformers writes the other.
    **{ours: Theirs(name, also=(name.replace("mlp.", "block_sparse_moe."),)) for ours, name in GATED.items()},
    **{ours: theirs.replace("mlp.", "block_sparse_moe.") for ours, theirs in SHARED.items()},
    **OF_MIXTRAL,
}
SMALL = kimi_linear(3, 8, 1, 8, 8, attending=(2,))
KIMI_LINEAR = table.family(
    "kimi_linear",
    "KimiLinearForCausalLM",
    with_layers(SMALL, SMALL.stack.blocks[1:]),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1024),
        n_shared(1, "num_shared_experts"),
        *latent_heads(query_rank=None),
        layer_eps(1e-5),
        routing(256, 2.446, groups=1, best=1),
        kda_sizes(32),
        table.activation("hidden_act", "silu", CausalConvolutionSpec),  # of feed-forwards too
        table.context("model_max_length", 1_048_576),
        table.tables(tied=False),
        layer_kinds(DELTA, _kinds),
        dense_by_type(9216, 1, "first_k_dense_replace"),
        table.only(
            moe_layer_freq=(None, 1),
            moe_router_activation_func=(None, "sigmoid"),
            mla_use_nope=(None, True),
            rope_scaling=None,
        ),
    ),
    lambda spec: {**MAPS, **layer(spec)},
    apart=(IN_MEMORY, IN_FILES),
    ignored=("rope_theta", "use_grouped_topk", "num_nextn_predict_layers"),
)
