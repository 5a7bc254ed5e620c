"""The architectures of GGUF files that are read and written: a row for each, and what some say otherwise than most."""

from __future__ import annotations

from dataclasses import replace

from anyformer.families.gguf import gemma3n
from anyformer.families.gguf.dialect import (
    BY_GROUP,
    COLUMN,
    GATE_AND_UP,
    GROUPED,
    HEAD_DIM,
    LAYER,
    LAYER_NORM,
    NO_AXIS,
    ONE_ROW,
    RATE,
    RATES_OF_HEADS,
    SIZES,
    Block,
    Dialect,
    halves,
    with_epsilon,
    without,
)
from anyformer.families.gguf.encoders import ENCODERS, GELU, OFFSET
from anyformer.families.gguf.folding import folded
from anyformer.families.gguf.keys import (
    EXPANDED,
    EXPANDED_IN_A_HYBRID,
    LOCAL,
    NO_ATTENTION,
    PARTIAL,
    PATTERNED,
    PERIODIC,
    PLAIN_STEPS,
    ROTARY_BY_TYPE,
    ROTARY_OR_NONE,
    STEP_RANK,
    WINDOW,
    WINDOWED,
    WINDOWED_EXACTLY,
    heads_of_states,
    hybrid,
    only,
)
from anyformer.families.hf import table
from anyformer.families.hf.layout import moved

SOFTCAPS = {f"{part}_logit_softcapping": f"{part}_logit_softcapping" for part in ("attn", "final")}
MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
USED = {"expert_used_count": "num_experts_per_tok"}
EXPERTS, LOCAL_EXPERTS = {"expert_count": "num_experts", **USED}, {"expert_count": "num_local_experts", **USED}
EXPERT_WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
SHARED_WIDTH = "expert_shared_feed_forward_length"

TURNED = {
    r"blk\.\d+\.attn_q\.\w+": halves(lambda heads: heads.n_heads),
    r"blk\.\d+\.attn_k\.\w+": halves(lambda heads: heads.kv_heads),
}
CONVOLVED = {r".*conv(1d)?\.weight": NO_AXIS}
OF_HEADS = {
    **CONVOLVED,
    r".*ssm_a": RATES_OF_HEADS,
    r".*ssm_d": COLUMN,
    r".*ssm_norm\.weight": BY_GROUP,
}

FUSED_FEED: Block = {**{name: place for name, place in LAYER.items() if name not in GATE_AND_UP}, GATE_AND_UP: "ffn_up"}
FUSED: Block = {**{name: place for name, place in FUSED_FEED.items() if name not in table.QKV}, table.QKV: "attn_qkv"}
# Of state space models; Mamba-2's have a norm, Mamba's steps of low rank.
STATES: Block = {
    f"{table.MIXER}.{ours}": theirs
    for ours, theirs in {
        "inner": "ssm_in",
        "convolution": "ssm_conv1d",
        "chosen": "ssm_x",
        "widened": "ssm_dt",
        "step": "ssm_dt.bias",
        "rate": "ssm_a",
        "skip": "ssm_d",
        "norm": "ssm_norm",
        "out": "ssm_out",
    }.items()
}
# Attention as the second branch.
BESIDE_STATES: Block = moved(
    {ours: theirs for ours, theirs in LAYER.items() if ours != "1.norm_in"},
    lambda name: name.replace(table.MIXER, table.BESIDE),
)
NORMS_OF_STATES = (("norm_step", "dt"), ("norm_write", "b"), ("norm_read", "c"))
SHORT: Block = {
    f"{table.MIXER}.{x}": f"shortconv.{y}"
    for x, y in (("inner", "in_proj"), ("convolution", "conv"), ("out", "out_proj"))
}

BIASED = {"attn_q.bias": "attention_bias"}
BIASES_OF_STATES = {"ssm_conv1d.bias": "use_conv_bias", "ssm_in.bias": "use_bias"}
STATE_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
}
MAMBA_SIZES = {"ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state"}
MAMBA2_SIZES = {**MAMBA_SIZES, "ssm.group_count": "mamba_n_groups"}
SHORT_SIZES = {**with_epsilon(without(SIZES, GROUPED), "norm_eps"), "shortconv.l_cache": "conv_L_cache"}
SIGMOID = 2  # by which experts are chosen
STATE_LAYER: Block = {"0.norm_in": "attn_norm", **STATES}

ROWS = (
    Dialect("llama", "llama", HEAD_DIM, turns=TURNED),
    Dialect("llama", "mixtral", {**HEAD_DIM, **LOCAL_EXPERTS}, turns=TURNED, when="expert_count"),
    Dialect("qwen2", "qwen2"),
    Dialect("qwen3", "qwen3", HEAD_DIM, told=BIASED),
    Dialect(
        "qwen3moe",
        "qwen3_moe",
        {**HEAD_DIM, **EXPERTS, **EXPERT_WIDTH},
        told=BIASED,
        fixed={"norm_topk_prob": True},
    ),
    Dialect(
        "qwen2moe",
        "qwen2_moe",
        {**SIZES, **EXPERTS, **EXPERT_WIDTH, SHARED_WIDTH: "shared_expert_intermediate_size"},
        turns={r".*ffn_gate_inp_shexp\.weight": ONE_ROW},
        told={"attn_q.bias": "qkv_bias"},
        fixed={"norm_topk_prob": False},
    ),
    Dialect("smollm3", "smollm3", turns=TURNED, fixed={"no_rope_layer_interval": 4}),
    Dialect("arcee", "arcee", HEAD_DIM, turns=TURNED),
    Dialect(
        "seed_oss",
        "seed_oss",
        HEAD_DIM,
        layer={**LAYER, "1.norm_in": "post_attention_norm"},
        told={**BIASED, "attn_output.bias": "attention_out_bias", "ffn_down.bias": "mlp_bias"},
    ),
    Dialect("ernie4_5", "ernie4_5", HEAD_DIM, told={"attn_q.bias": "use_bias"}),
    Dialect("granite", "granite", {**SIZES, **MULTIPLIERS}, turns=TURNED),
    Dialect("granitemoe", "granitemoe", {**SIZES, **MULTIPLIERS, **LOCAL_EXPERTS}, turns=TURNED),
    Dialect(
        "granitehybrid",
        "granitemoehybrid",
        {
            **without(SIZES, GROUPED),
            **MULTIPLIERS,
            **LOCAL_EXPERTS,
            SHARED_WIDTH: "shared_intermediate_size",
            **MAMBA2_SIZES,
        },
        (
            hybrid("full_attention", "linear_attention"),
            heads_of_states("mamba_n_heads", "mamba_d_head", expand="mamba_expand"),
            ROTARY_OR_NONE,
        ),
        {**LAYER, **STATES},
        turns={**TURNED, **OF_HEADS},
        fixed={"num_local_experts": 0},
        told={"ssm_conv1d.bias": "mamba_conv_bias", "ssm_in.bias": "mamba_proj_bias"},
    ),
    Dialect(
        "falcon-h1",
        "falcon_h1",
        {**HEAD_DIM, **MAMBA2_SIZES},
        (heads_of_states("mamba_n_heads", "mamba_d_head", whole="mamba_d_ssm"),),
        {**BESIDE_STATES, **STATES, "1.norm_in.weight": "ffn_norm"},  # by this name alone
        turns=OF_HEADS,
        fixed={"mamba_norm_before_gate": False},
        told={
            **BIASED,
            "ffn_down.bias": "mlp_bias",
            "ssm_conv1d.bias": "mamba_conv_bias",
            "ssm_norm.weight": "mamba_rms_norm",
        },
        adapted=folded,
    ),
    Dialect("olmo2", "olmo2"),
    Dialect(
        "olmo2",
        "olmo3",
        keys=(WINDOWED, PATTERNED, ROTARY_BY_TYPE),
        when=WINDOW,
    ),
    Dialect("olmoe", "olmoe", {**SIZES, **EXPERTS}, fixed={"norm_topk_prob": False}),
    Dialect("exaone4", "exaone4", keys=(WINDOWED, PATTERNED), fixed={"sliding_window": None}),
    Dialect("glm4", "glm4", HEAD_DIM, (PARTIAL,), FUSED_FEED, told=BIASED),
    Dialect(
        "stablelm",
        "stablelm",
        {**with_epsilon(SIZES, "layer_norm_eps", LAYER_NORM), "use_parallel_residual": "use_parallel_residual"},
        (PARTIAL,),
        told={"attn_q.bias": "use_qkv_bias", "attn_q_norm.weight": "qk_layernorm"},
    ),
    Dialect(
        "starcoder2",
        "starcoder2",
        with_epsilon(SIZES, "norm_epsilon", LAYER_NORM),
        told={"attn_q.bias": "use_bias"},
    ),
    Dialect(
        "lfm2",
        "lfm2",
        SHORT_SIZES,
        (hybrid("full_attention", "conv"),),
        {**LAYER, **SHORT},
        {"stack.norm": "token_embd_norm"},
        turns=CONVOLVED,
        fixed={"block_auto_adjust_ff_dim": False},
        told={"shortconv.in_proj.bias": "conv_bias"},
    ),
    Dialect(
        "lfm2moe",
        "lfm2_moe",
        {**SHORT_SIZES, **EXPERTS, **EXPERT_WIDTH, "leading_dense_block_count": "num_dense_layers"},
        (hybrid("full_attention", "conv"), only("expert_gating_func", SIGMOID)),
        {**LAYER, **SHORT},
        {"stack.norm": "token_embd_norm"},
        turns=CONVOLVED,
        fixed={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
        told={"shortconv.in_proj.bias": "conv_bias", "exp_probs_b.bias": "use_expert_bias"},
    ),
    Dialect(
        "mamba",
        "mamba",
        STATE_SIZES,
        (NO_ATTENTION, EXPANDED, STEP_RANK, PLAIN_STEPS),
        STATE_LAYER,
        turns={**CONVOLVED, r".*ssm_a": RATE},
        told=BIASES_OF_STATES,
    ),
    Dialect(
        "mamba2",
        "mamba2",
        {**STATE_SIZES, "ssm.group_count": "n_groups"},
        (NO_ATTENTION, heads_of_states("num_heads", "head_dim", expand="expand")),
        STATE_LAYER,
        turns=OF_HEADS,
        told=BIASES_OF_STATES,
    ),
    Dialect(
        "gpt-oss",
        "gpt_oss",
        {**HEAD_DIM, **LOCAL_EXPERTS, "expert_feed_forward_length": "intermediate_size"},
        (WINDOWED_EXACTLY,),
        {
            **LAYER,
            "1.norm_in": "post_attention_norm",
            f"{table.MIXER}.sink": "attn_sinks.weight",
            f"{table.FEED}.router.bias": "ffn_gate_inp.bias",
        },
    ),
    Dialect(
        "jamba",
        "jamba",
        {
            **without(SIZES, GROUPED, "rope_theta"),
            **EXPERTS,
            **MAMBA_SIZES,
            "ssm.time_step_rank": "mamba_dt_rank",
        },
        (PERIODIC, EXPANDED_IN_A_HYBRID),
        {**LAYER, **STATES, **{f"{table.MIXER}.{x}": f"ssm_{y}_norm" for x, y in NORMS_OF_STATES}},
        turns={**CONVOLVED, r".*ssm_a": RATE},
        fixed={"expert_layer_period": 2, "expert_layer_offset": 1},
        told={"ssm_conv1d.bias": "mamba_conv_bias", "ssm_in.bias": "mamba_proj_bias"},
    ),
    Dialect("gemma", "gemma", HEAD_DIM, turns=OFFSET, fixed={"hidden_act": "gelu_pytorch_tanh"}),
    Dialect(
        "gemma2",
        "gemma2",
        {**HEAD_DIM, **SOFTCAPS},
        (WINDOWED,),
        turns=OFFSET,
        fixed=GELU,
        depth_of_27b=46,
    ),
    Dialect(
        "gemma3",
        "gemma3_text",
        {**HEAD_DIM, LOCAL: "rope_local_base_freq"},
        (WINDOWED,),
        turns=OFFSET,
        fixed=GELU,
        depth_of_27b=62,
    ),
    Dialect(
        "gemma3n",
        "gemma3n_text",
        {
            **without(HEAD_DIM, "intermediate_size"),
            LOCAL: "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
            "altup.num_inputs": "altup_num_inputs",
            "attention.shared_kv_layers": "num_kv_shared_layers",
        },
        (WINDOWED, PATTERNED, *gemma3n.KEYS),
        gemma3n.LAYERS,
        further=gemma3n.rows,
        fixed=GELU,
        adapted=gemma3n.padded,
    ),
    Dialect(
        "phi3",
        "phi3",
        keys=(WINDOWED, PARTIAL),
        layer=FUSED,
        unheeded=(WINDOW,),
    ),
    *ENCODERS,
)
# The text models of those that also see, of whose positions text has one: what computes the same, which is what is written.
SEEING = {"qwen2vl": "qwen2", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3moe"}
# By a name; that of an architecture, of which there may be several, is that of the plain one.
DIALECTS: dict[str, Dialect] = {
    row.architecture if row.when is None else f"{row.architecture} ({row.hf_type})": row for row in ROWS
}
DIALECTS |= {name: replace(DIALECTS[text], architecture=name) for name, text in SEEING.items()}
