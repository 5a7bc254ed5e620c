"""Qwen3-Next and the text models of Qwen3.5 to and from transformers' Qwen3NextForCausalLM, Qwen3_5ForCausalLM and its mixtures.

Qwen3-Next's files hold what one head of keys has of each map together; Qwen3.5's have a matrix for each but q, k and v.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.hf import table
from anyformer.families.hf.experts import BY_EXPERT, SHARED, expert_width, routing
from anyformer.families.hf.layout import Modules, Theirs
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS, SPARSE_WIDTHS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.states import DELTA, full_each, layer_kinds, template
from anyformer.families.qwen3_next import EVERY, hybrid, qwen3_5, qwen3_next_moe
from anyformer.layers import (
    CausalConvolutionSpec,
    GatedDeltaNetSpec,
    OutputGateSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import ModelSpec

AHEAD = ("mtp.*",)  # in files, what predicts a token further: the classes pass over it, and so do we
THEIRS = "linear_attn"
GATE, Q, K, V, OUT_GATE, WRITE, FORGET = (
    f"{table.MIXER}.{name}" for name in ("gate", "q", "k", "v", "out_gate", "write", "forget")
)


def _mixers(maps: Modules) -> dict[Any, Any]:
    """A layer's attention, whose gate lies beside each head's queries, or its gated DeltaNet with these maps."""
    inner = {"convolution": "conv1d", "step": "dt_bias", "decay": "A_log", "norm": "norm", "out": "out_proj"}
    return {
        **NORMS,
        **{ours: theirs for ours, theirs in ATTENTION.items() if not ours.endswith(".q")},
        (f"{table.PROJECTION}.q", GATE): Theirs("self_attn.q_proj", by="query"),
        **QK_NORMS,
        **{f"{table.MIXER}.{ours}": f"{THEIRS}.{theirs}" for ours, theirs in inner.items()},
        **maps,
    }


def _by_key(spec: ModelSpec) -> dict[Any, Any]:
    """Qwen3-Next's maps."""
    of_keys = one(spec, GatedDeltaNetSpec).n_key_heads
    maps = {
        (Q, K, V, OUT_GATE): Theirs(f"{THEIRS}.in_proj_qkvz", by=of_keys),
        (WRITE, FORGET): Theirs(f"{THEIRS}.in_proj_ba", by=of_keys),
    }
    return _mixers(maps)


PLAINLY = _mixers(
    {
        (Q, K, V): f"{THEIRS}.in_proj_qkv",
        OUT_GATE: f"{THEIRS}.in_proj_z",
        WRITE: f"{THEIRS}.in_proj_b",
        FORGET: f"{THEIRS}.in_proj_a",
    }
)
SIZES = (
    table.BIASES,
    table.at("attention_bias", bool, OutputGateSpec, "bias", default=False),
    EPS,
    table.together(
        GatedDeltaNetSpec,
        {
            "linear_num_key_heads": ("n_key_heads", int, 16),
            "linear_num_value_heads": ("n_heads", int, 32),
            "linear_key_head_dim": ("key_dim", int, 128),
            "linear_value_head_dim": ("value_dim", int, 128),
        },
    ),
    table.at("linear_conv_kernel_dim", int, CausalConvolutionSpec, "size", default=4),
    table.activation("hidden_act", "silu", CausalConvolutionSpec),  # of feed-forwards too
    table.tables(tied=False),
)
PAIRS = (
    *SIZES,
    table.positions(RotarySpec(fraction=0.25), fraction=FRACTION, context=32_768),
    layer_kinds(DELTA, full_each("full_attention_interval", EVERY)),
)
DENSE = template(hybrid(qwen3_5(4, 8, 1, 8)), DELTA)
SPARSE = template(hybrid(qwen3_next_moe(4, 8, 1, 8, 1, n_experts=64, top_k=1)), DELTA)


def experts(n: int, top_k: int) -> tuple[table.Pair, ...]:
    """The sizes of a mixture with this many experts, of which so many see a token where nothing is said."""
    return (
        *SPARSE_WIDTHS,
        table.heads(n_kv_heads=2, head_dim=256),
        routing(n, top_k),
        expert_width("moe_intermediate_size", "expert", 512),
        expert_width("shared_expert_intermediate_size", "shared_expert", 512),
    )


QWEN3_NEXT = table.family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    SPARSE,
    (
        *experts(512, 10),
        table.at("norm_topk_prob", bool, RouterSpec, "renormalise", default=True),
        table.only(decoder_sparse_step=(None, 1), mlp_only_layers=(None, [])),
        *PAIRS,
    ),
    lambda spec: {**_by_key(spec), **SHARED},
    apart=BY_EXPERT,
    ignored=("intermediate_size",),
    unneeded=AHEAD,
)
QWEN3_5 = table.family(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    DENSE,
    (*WIDTHS, table.heads(n_kv_heads=4, head_dim=256), *PAIRS),
    {**PLAINLY, **GATED},
    unneeded=AHEAD,
)
QWEN3_5_MOE = table.family(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    SPARSE,
    (*experts(256, 8), *PAIRS),
    {**PLAINLY, **SHARED},
    apart=BY_EXPERT,
    unneeded=AHEAD,
)
