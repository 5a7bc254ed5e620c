"""Architectures of GGUF files: what others' names and rules make of random models of transformers is read and written alike.

A file is made here as llama.cpp's conversion makes it: tensors by the names of the package `gguf`, keys by its writer's methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
import torch
import transformers
from gguf import MODEL_ARCH as A
from safetensors.torch import load_file
from torch import Tensor

import anyformer as af
from anyformer.errors import AnyformerError
from anyformer.hub.gguf_writing import SavedFile
from anyformer.model import Transformer
from tests.laws.tolerance import FLOAT32, distance

Named = tuple[str, Tensor]
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ALONE = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "pad_token_id", "bos_token_id", "eos_token_id")}
WIDE = SIZES | {"head_dim": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
TURNING = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
STATES = ALONE | {"num_hidden_layers": 2, "state_size": 8, "conv_kernel": 3, "layer_norm_epsilon": 1e-3}
KINDS = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
OF_LFM2_MOE = SIZES | EXPERTS | KINDS | {"moe_intermediate_size": 32, "num_dense_layers": 1, "norm_eps": 1e-3}
OF_JAMBA = {"mamba_d_state": 8, "mamba_d_conv": 3, "mamba_dt_rank": 5}
OF_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
OF_GEMMA3N = WIDE | {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.95, 0.9, 0.5, 0.0, 0.0, 0.0],
    "sliding_window": 8,
    "laurel_rank": 64,
    "rms_norm_eps": 1e-4,
    "final_logit_softcapping": 2.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}
OF_MODERNBERT = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "local_attention": 8,
    "norm_eps": 1e-3,
    "cls_token_id": 0,
    "sep_token_id": 0,
    "rope_parameters": OF_GEMMA3N["rope_parameters"],
}
OF_NOMIC = ALONE | {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
# Powers of 2, so that their order changes no bit.
OF_FALCON_H1 = OF_MAMBA2 | {
    "mamba_d_ssm": 128,
    "embedding_multiplier": 4.0,
    "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 2.0,
    "attention_out_multiplier": 0.25,
    "key_multiplier": 0.5,
    "ssm_in_multiplier": 0.5,
    "ssm_out_multiplier": 2.0,
    "mlp_multipliers": [2.0, 0.5],
    "ssm_multipliers": [2.0, 4.0, 0.5, 0.25, 8.0],
}


class Case(NamedTuple):
    arch: A
    hf_type: str
    config: dict[str, Any]
    turned: bool = False  # queries and keys, features of a pair side by side
    alone: bool = False  # an encoder without a head


CASES = {
    "llama": Case(A.LLAMA, "llama", SIZES | TURNING | {"rms_norm_eps": 1e-3}, turned=True),
    "mixtral": Case(A.LLAMA, "mixtral", SIZES | LOCAL_EXPERTS, turned=True),
    "qwen2": Case(A.QWEN2, "qwen2", SIZES),
    "qwen2_moe": Case(
        A.QWEN2MOE,
        "qwen2_moe",
        SIZES | EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    ),
    "qwen3": Case(A.QWEN3, "qwen3", WIDE | {"tie_word_embeddings": True}),
    "qwen3, biased": Case(A.QWEN3, "qwen3", WIDE | {"attention_bias": True}),
    "qwen3_moe": Case(A.QWEN3MOE, "qwen3_moe", WIDE | EXPERTS | {"moe_intermediate_size": 32, "norm_topk_prob": True}),
    "smollm3": Case(A.SMOLLM3, "smollm3", SIZES | TURNING, turned=True),
    "arcee": Case(A.ARCEE, "arcee", SIZES, turned=True),
    "seed_oss": Case(A.SEED_OSS, "seed_oss", WIDE | {"attention_bias": True, "attention_out_bias": True}),
    "ernie4_5": Case(A.ERNIE4_5, "ernie4_5", WIDE | TURNING),
    "granite": Case(A.GRANITE, "granite", SIZES | MULTIPLIERS, turned=True),
    "granitemoe": Case(A.GRANITE_MOE, "granitemoe", SIZES | MULTIPLIERS | LOCAL_EXPERTS, turned=True),
    "granitemoehybrid": Case(
        A.GRANITE_HYBRID,
        "granitemoehybrid",
        SIZES
        | MULTIPLIERS
        | LOCAL_EXPERTS
        | OF_MAMBA2
        | {"shared_intermediate_size": 48, "layer_types": ["mamba", "attention", "mamba", "mamba"]},
        turned=True,
    ),
    "falcon_h1": Case(A.FALCON_H1, "falcon_h1", WIDE | OF_FALCON_H1 | TURNING),
    "falcon_h1, with a norm": Case(
        A.FALCON_H1, "falcon_h1", WIDE | OF_FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
    ),
    "olmo2": Case(A.OLMO2, "olmo2", SIZES),
    "olmo3": Case(
        A.OLMO2,
        "olmo3",
        SIZES
        | {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 5000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            },
        },
    ),
    "olmoe": Case(A.OLMOE, "olmoe", SIZES | EXPERTS | {"rms_norm_eps": 1e-5}),
    "exaone4": Case(A.EXAONE4, "exaone4", SIZES | {"sliding_window": 8, "sliding_window_pattern": 2}),
    "exaone4, full": Case(
        A.EXAONE4, "exaone4", SIZES | {"sliding_window": None, "layer_types": ["full_attention"] * 4}
    ),
    "glm4": Case(A.GLM4, "glm4", WIDE | {"attention_bias": True}),
    "stablelm": Case(A.STABLELM, "stablelm", SIZES | {"use_qkv_bias": True, "layer_norm_eps": 1e-3}),
    "stablelm, side by side": Case(
        A.STABLELM, "stablelm", SIZES | {"use_parallel_residual": True, "qk_layernorm": True}
    ),
    "starcoder2": Case(A.STARCODER2, "starcoder2", SIZES | {"sliding_window": None, "norm_epsilon": 1e-3}),
    "lfm2": Case(A.LFM2, "lfm2", SIZES | KINDS | {"block_auto_adjust_ff_dim": False, "norm_eps": 1e-3}),
    "lfm2_moe": Case(A.LFM2MOE, "lfm2_moe", OF_LFM2_MOE),
    "mamba": Case(A.MAMBA, "mamba", STATES | {"time_step_rank": 5}),
    "mamba2": Case(A.MAMBA2, "mamba2", STATES | {"num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "mamba2, one group": Case(A.MAMBA2, "mamba2", STATES | {"num_heads": 8, "head_dim": 16, "n_groups": 1}),
    "gpt_oss": Case(
        A.GPT_OSS,
        "gpt_oss",
        WIDE
        | LOCAL_EXPERTS
        | {
            "sliding_window": 8,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "truncate": False,
            },
        },
    ),
    "jamba": Case(
        A.JAMBA,
        "jamba",
        SIZES | EXPERTS | OF_JAMBA | {"attn_layer_period": 3, "attn_layer_offset": 1, "use_mamba_kernels": False},
    ),
    "gemma": Case(A.GEMMA, "gemma", WIDE),
    "gemma3n": Case(A.GEMMA3N, "gemma3n_text", OF_GEMMA3N),
    "gemma3n, tables of one length": Case(
        A.GEMMA3N, "gemma3n_text", OF_GEMMA3N | {"vocab_size_per_layer_input": 96, "num_kv_shared_layers": 0}
    ),
    "modernbert": Case(A.MODERN_BERT, "modernbert", ALONE | OF_MODERNBERT, alone=True),
    "modernbert, by layer": Case(
        A.MODERN_BERT,
        "modernbert",
        ALONE
        | OF_MODERNBERT
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
        alone=True,
    ),
    "nomic_bert": Case(A.NOMIC_BERT, "nomic_bert", OF_NOMIC, alone=True),
    "phi3": Case(A.PHI3, "phi3", SIZES),
    "phi3, half turned": Case(A.PHI3, "phi3", SIZES | {"partial_rotary_factor": 0.5}),
}


def model_of(case: Case, folder: Path) -> Any:
    """A model of transformers with random weights, saved in a folder."""
    config: Any = transformers.AutoConfig.for_model(case.hf_type, **case.config)
    auto: Any = transformers.AutoModel if case.alone else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        gain = weight.dim() < 2 and name.endswith("weight")
        weight.data = 1 + 0.3 * noise if gain else noise * (weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.3)
    model.save_pretrained(folder)
    return model


def filed(folder: Path, case: Case, out: Path) -> Path:
    """The model of a folder as a file, written by the package gguf."""
    config = transformers.AutoConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[case.arch])
    said(writer, config, case)
    names = gguf.get_tensor_name_map(case.arch, config.num_hidden_layers)
    for theirs, tensor in changed(together(load_file(folder / "model.safetensors")), config, case):
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def together(tensors: dict[str, Tensor]) -> list[Named]:
    """Tensors with the experts of a layer in one."""
    experts: dict[str, list[Tensor]] = {}
    found: list[Named] = []
    for name in sorted(tensors, key=lambda name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]):
        one = re.fullmatch(r"(.+\.experts)\.\d+\.(.+)", name)
        if one is None:
            found.append((name, tensors[name]))
        else:
            experts.setdefault(f"{one[1]}.{one[2]}", []).append(tensors[name])
    for name, each in experts.items():
        # The package's tables have Mixtral's and LFM2's numbered maps in one tensor by LLaMA's own names.
        name = re.sub(r"^model\.(.+)\.(?:block_sparse_moe|feed_forward)(\.experts\.w\d)", r"\1.feed_forward\2", name)
        found.append((name, torch.stack(each)))
    return found


def neighbours(weight: Tensor, n_heads: int) -> Tensor:
    """Rows of queries or keys, those half a head apart side by side."""
    head_dim = weight.shape[0] // n_heads
    order = [
        h * head_dim + i + half * head_dim // 2 for h in range(n_heads) for i in range(head_dim // 2) for half in (0, 1)
    ]
    return weight[order]


def of_gemma3n(tensors: list[Named], config: Any) -> list[Named]:
    """Tensors of Gemma 3n: streams' maps in one, tables as long as the vocabulary, keys and values that nobody reads."""
    streams: dict[str, list[Tensor]] = {}
    found: list[Named] = []
    for name, tensor in tensors:
        if each := re.fullmatch(r"(model\.altup_(?:unembed_)?projections)\.\d\.weight", name):
            streams.setdefault(f"{each[1]}.weight", []).append(tensor)
        elif "embed_tokens_per_layer" in name:
            more = torch.zeros(config.vocab_size - len(tensor), tensor.shape[1])
            found.append((name, torch.cat((tensor, more))))
        else:
            found.append((f"{name}.weight" if name.endswith("_scale") else name, tensor))
    for i in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
        place, width = f"model.layers.{i}.self_attn", config.num_key_value_heads * config.head_dim
        found += [(f"{place}.{x}_proj.weight", torch.randn(width, config.hidden_size)) for x in "kv"]
        found.append((f"{place}.k_norm.weight", torch.randn(config.head_dim)))
    return [*found, *((name, torch.stack(each)) for name, each in streams.items())]


def multiplied(name: str, tensor: Tensor, config: Any) -> Tensor:
    """A tensor of Falcon-H1 with the multipliers that stand for it."""
    inner, of_groups = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    factors = {
        "down_proj": config.mlp_multipliers[1],
        "gate_proj": config.mlp_multipliers[0],
        "k_proj": config.key_multiplier * config.attention_in_multiplier,
        "q_proj": config.attention_in_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "in_proj": config.ssm_in_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    part = name.split(".")[-2]
    tensor = tensor * factors.get(part, 1.0)
    if part == "in_proj":
        begin = 0
        for width, factor in zip(
            (inner, inner, of_groups, of_groups, config.mamba_n_heads), config.ssm_multipliers, strict=True
        ):
            tensor[begin : begin + width] *= factor
            begin += width
    return tensor


def changed(tensors: list[Named], config: Any, case: Case) -> list[Named]:
    """Tensors as llama.cpp takes them."""
    norms: dict[str, list[Tensor]] = {}
    found: list[Named] = []
    tensors = of_gemma3n(tensors, config) if case.arch == A.GEMMA3N else tensors
    for name, tensor in tensors:
        if case.turned and (which := re.search(r"self_attn\.([qk])_proj", name)):
            tensor = neighbours(tensor, config.num_attention_heads if which[1] == "q" else config.num_key_value_heads)
        if case.arch == A.FALCON_H1:
            tensor = multiplied(name, tensor, config)
        if name.endswith("A_log"):
            tensor = -tensor.exp()
        if name.endswith(("A_log", ".D")) and case.hf_type not in ("mamba", "jamba"):
            tensor = tensor[:, None]
        if "conv" in name and tensor.dim() == 3:
            tensor = tensor[:, 0]
        if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            tensor = tensor.reshape(config.n_groups if case.arch == A.MAMBA2 else config.mamba_n_groups, -1)
        if case.arch == A.GEMMA and name.endswith("norm.weight"):
            tensor = tensor + 1
        name = re.sub(r"\.expert_bias$", ".expert_bias.bias", name)
        name = re.sub(r"\.dt_bias$", ".dt_proj.bias", name)
        if case.arch == A.GPT_OSS and (each := re.fullmatch(r"(.+\.mlp\.experts\.)(gate_up|down)_proj(_bias)?", name)):
            end = "bias" if each[3] else "weight"
            tensor = tensor if each[3] else tensor.transpose(-1, -2)
            parts = {"down": tensor} if each[2] == "down" else {"gate": tensor[:, ::2], "up": tensor[:, 1::2]}
            found += [(f"{each[1]}{which}_proj.{end}", part) for which, part in parts.items()]
            continue
        name = f"{name}.weight" if name.endswith(".sinks") else name
        if each := re.fullmatch(r"(.+_layernorm)\.norms\.\d+\.weight", name):
            norms.setdefault(f"{each[1]}.weight", []).append(tensor)
        elif name.endswith(("block_sparse_moe.input_linear.weight", "shared_mlp.input_linear.weight")):
            place, _, _ = name.rpartition(".input_linear")
            beside = "shared_mlp" in name
            layer = place.rpartition(".")[0]
            names = ("mlp.shared_expert.{}_proj" if beside else "mlp.experts.{}_proj").format
            parts = tensor.chunk(2, -2)
            found += [(f"{layer}.{names(x)}.weight", part) for x, part in zip(("gate", "up"), parts, strict=True)]
        else:
            found.append((name, tensor))
    return [*found, *((name, torch.stack(each)) for name, each in norms.items())]


def said(writer: gguf.GGUFWriter, config: Any, case: Case) -> None:
    """The keys of a file, by the package's methods."""

    def say(add: Callable[[Any], None], name: str) -> None:
        if getattr(config, name, None) is not None:
            add(getattr(config, name))

    say(writer.add_block_count, "num_hidden_layers")
    say(writer.add_embedding_length, "hidden_size")
    for name in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"):
        say(writer.add_layer_norm_rms_eps, name)
    if case.arch == A.MODERN_BERT:
        writer.add_layer_norm_eps(config.norm_eps)
        writer.add_causal_attention(False)
        writer.add_sliding_window(config.local_attention)
        all_of = [kind == "full_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(3 if all_of == [True, False, False, True] else [not each for each in all_of])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if case.arch == A.NOMIC_BERT:
        writer.add_causal_attention(False)
        writer.add_token_type_count(config.type_vocab_size)
    if case.arch == A.GEMMA3N:
        writer.add_altup_active_idx(config.altup_active_idx)
        writer.add_altup_num_inputs(config.altup_num_inputs)
        writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
        writer.add_shared_kv_layers(config.num_kv_shared_layers)
        shares = torch.tensor(config.activation_sparsity_pattern)
        writer.add_activation_sparsity_scale(torch.distributions.Normal(0, 1).icdf(shares).tolist())
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for name in ("layer_norm_eps", "norm_epsilon"):
        say(writer.add_layer_norm_eps, name)
    if case.arch in (A.MAMBA, A.MAMBA2):
        writer.add_context_length(1 << 20)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.state_size)
        writer.add_ssm_inner_size(config.expand * config.hidden_size)
        if case.arch == A.MAMBA:
            writer.add_ssm_time_step_rank(config.time_step_rank)
            writer.add_ssm_dt_b_c_rms(False)
        else:
            writer.add_ssm_time_step_rank(config.num_heads)
            writer.add_ssm_group_count(config.n_groups)
        return
    say(writer.add_context_length, "max_position_embeddings")
    say(writer.add_feed_forward_length, "intermediate_size")
    say(writer.add_head_count, "num_attention_heads")
    kinds = getattr(config, "layer_types", None) or []
    if case.arch == A.JAMBA:
        period, first = config.attn_layer_period, config.attn_layer_offset
        attending = [i % period == first for i in range(config.num_hidden_layers)]
        writer.add_head_count_kv([config.num_key_value_heads * each for each in attending])  # type: ignore[arg-type]
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_time_step_rank(config.mamba_dt_rank)
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        return
    if case.arch in (A.LFM2, A.LFM2MOE, A.GRANITE_HYBRID):
        attends = ("attention", "full_attention")
        writer.add_head_count_kv([config.num_key_value_heads if kind in attends else 0 for kind in kinds])  # type: ignore[arg-type]
    else:
        say(writer.add_head_count_kv, "num_key_value_heads")
    if "head_dim" in case.config:
        say(writer.add_key_length, "head_dim")
        say(writer.add_value_length, "head_dim")
    if case.arch in (A.QWEN2VL, A.QWEN3VL, A.QWEN3VLMOE):
        writer.add_rope_dimension_sections([4, 2, 2, 0])
    if case.arch in (A.QWEN3VL, A.QWEN3VLMOE):
        writer.add_num_deepstack_layers(3)
    turning: dict[str, Any] = config.rope_parameters if case.arch != A.GRANITE_HYBRID else {"rope_theta": 10_000.0}
    full: dict[str, Any] = turning.get("full_attention", turning)
    writer.add_rope_freq_base(full["rope_theta"])
    if full is not turning:
        writer.add_rope_freq_base_swa(turning["sliding_attention"]["rope_theta"])
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if "partial_rotary_factor" in turning:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(turning["partial_rotary_factor"] * head_dim))
    if case.arch == A.STABLELM:
        writer.add_parallel_residual(config.use_parallel_residual)
    if case.arch in (A.EXAONE4, A.OLMO2, A.GEMMA3N) and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if case.arch == A.GPT_OSS:
        writer.add_sliding_window(config.sliding_window)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if case.arch == A.PHI3:
        writer.add_sliding_window(config.sliding_window or 0)
    for name in ("num_local_experts", "num_experts"):
        say(writer.add_expert_count, name)
    say(writer.add_expert_used_count, "num_experts_per_tok")
    say(writer.add_expert_feed_forward_length, "moe_intermediate_size")
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        say(writer.add_expert_shared_feed_forward_length, name)
    say(writer.add_attention_scale, "attention_multiplier")
    say(writer.add_residual_scale, "residual_multiplier")
    if case.arch != A.FALCON_H1:
        say(writer.add_embedding_scale, "embedding_multiplier")
    say(writer.add_logit_scale, "logits_scaling")
    if case.arch == A.LFM2MOE:
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if case.arch in (A.LFM2, A.LFM2MOE):
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if case.arch in (A.GRANITE_HYBRID, A.FALCON_H1):
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
    if case.arch == A.GRANITE_HYBRID:
        writer.add_rope_scaling_finetuned(False)


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys of a file below its architecture's name, and its tensors."""
    reader = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith(("GGUF", "general"))}
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()).squeeze(0) for tensor in reader.tensors}
    return {key.partition(".")[2]: value for key, value in keys.items()}, tensors


# What conversions say and what is written leaves out: of layers that are not there, or what changes no number.
UNSAID = {
    "qwen2_moe": {"feed_forward_length"},
    "qwen3_moe": {"feed_forward_length"},
    "granitemoehybrid": {"rope.freq_base"},
    "phi3": {"attention.sliding_window"},
    "modernbert": {"rope.scaling.type"},
}
UNREAD = re.compile(r"blk\.[45]\.attn_(k|v|k_norm)\.weight")  # of Gemma 3n, in layers that read others' keys


@pytest.mark.parametrize("name", CASES)
def test_others_files_are_read_and_written(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = model_of(case, tmp_path / "hf")
    path = filed(tmp_path / "hf", case, tmp_path / "theirs.gguf")
    ours, _ = af.load(path)
    text = case.config.get(
        "vocab_size_per_layer_input", 96
    )  # beyond it llama.cpp has zeros, transformers the first row
    ids = torch.randint(1, text, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(answer(ours, ids, case), answer(theirs, ids, case)) < FLOAT32
    told = af.convert(tmp_path / "hf", tmp_path / "ours.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == gguf.MODEL_ARCH_NAMES[case.arch]
    (keys, tensors), (written, own) = contents(path), contents(tmp_path / "ours.gguf")
    assert own.keys() == tensors.keys()
    for each, tensor in tensors.items():
        if each == "per_layer_token_embd.weight":
            tensor = torch.cat((tensor[:text], tensor[:1].expand(96 - text, -1)))
        unread = case.arch == A.GEMMA3N and UNREAD.fullmatch(each) and case.config["num_kv_shared_layers"]
        assert torch.equal(own[each], torch.zeros_like(tensor) if unread else tensor), each
    missing = {key for key, value in keys.items() if written.get(key) != value}
    assert missing == UNSAID.get(case.hf_type, set())
    again, _ = af.load(tmp_path / "ours.gguf")
    ids = ids % text + (ids > 30) * (96 - text)  # some of those beyond too
    with torch.no_grad():
        assert distance(answer(again, ids, case), answer(theirs, ids, case)) < FLOAT32


SEEING = {A.QWEN2VL: "qwen2", A.QWEN3VL: "qwen3", A.QWEN3VLMOE: "qwen3_moe"}


@pytest.mark.parametrize("arch", SEEING)
def test_of_what_also_sees_the_text_model_is_read(arch: A, tmp_path: Path) -> None:
    """And written as the architecture that has no eyes."""
    case = CASES[SEEING[arch]]._replace(arch=arch)
    theirs = model_of(case, tmp_path / "hf")
    path = filed(tmp_path / "hf", case, tmp_path / "theirs.gguf")
    assert contents(path)[0]["rope.dimension_sections"] == [4, 2, 2, 0]
    ids = torch.randint(1, 96, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(answer(af.load(path)[0], ids, case), answer(theirs, ids, case)) < FLOAT32
    told = af.convert(path, tmp_path / "ours.gguf")
    assert isinstance(told, SavedFile)
    assert told.architecture == gguf.MODEL_ARCH_NAMES[CASES[SEEING[arch]].arch]


def answer(model: Any, ids: Tensor, case: Case) -> Tensor:
    """The logits of a model, or the vectors of one without a head."""
    found = model(ids) if case.alone or isinstance(model, Transformer) else model(ids, use_cache=False)
    return found.last_hidden_state if case.alone else found.logits


@pytest.mark.parametrize("name", ["qwen3_moe", "granitemoehybrid", "lfm2"])
def test_matrices_alone_are_quantised(name: str, tmp_path: Path) -> None:
    model_of(CASES[name], tmp_path / "hf")
    af.convert(tmp_path / "hf", tmp_path / "ours.gguf", quantise="q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "ours.gguf").tensors}
    precise = re.compile(r".*(norm|gate_inp|conv|conv1d)\.weight|.*\.ssm_[ad]|.*\.bias")
    assert all((kind == "F32") == bool(precise.fullmatch(each)) for each, kind in kinds.items()), kinds
    ours, exact = (af.load(tmp_path / name)[0].state_dict() for name in ("ours.gguf", "hf"))
    for name, tensor in exact.items():
        assert distance(ours[name], tensor) < 0.01, name


REFUSED: dict[str, tuple[str, str, Any, str]] = {
    "windows that are no list": (
        "olmo3",
        "attention.sliding_window_pattern",
        4,
        "no list of which layers have a window",
    ),
    "heads that differ": ("lfm2", "attention.head_count_kv", [0, 2, 0, 1], "no list of one number"),
    "heads in no layer": ("lfm2", "attention.head_count_kv", [0, 0, 0, 0], "no list of one number"),
    "norms of steps": ("mamba", "ssm.dt_b_c_rms", True, "is computed by no class here"),
    "no heads": ("mamba2", "ssm.time_step_rank", 0, "goes with no other size of the file"),
    "activations that are sparse by no number": ("gemma3n", "activation_sparsity_scale", 3, "no list of quantiles"),
    "another stream that is computed": ("gemma3n", "altup.active_idx", 1, "is computed by no class here"),
    "experts that are chosen otherwise": ("lfm2_moe", "expert_gating_func", 1, "is computed by no class here"),
    "an encoder that sees nothing ahead": ("modernbert", "attention.causal", True, "is computed by no class here"),
    "a decoder that sees what is ahead": ("qwen3", "attention.causal", False, "is computed by no class here"),
    "heads of which a part turns": ("qwen3", "rope.dimension_count", 4, "must be 32: a head turns as a whole here"),
    "heads of LLaMA of which a part turns": ("llama", "rope.dimension_count", 4, "must be 16: a head turns as a whole"),
    "an unknown key": ("qwen3", "expert_count", 4, "is unknown here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_class_computes_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, key, value, says = REFUSED[name]
    architecture = gguf.MODEL_ARCH_NAMES[CASES[case].arch]
    model_of(CASES[case], tmp_path / "hf")
    begin = gguf.GGUFWriter.write_header_to_file

    def spoilt(self: gguf.GGUFWriter, *args: Any) -> None:
        kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, list: gguf.GGUFValueType.ARRAY}
        self.kv_data[0][f"{architecture}.{key}"] = gguf.GGUFValue(value, kinds[type(value)], gguf.GGUFValueType.UINT32)
        begin(self, *args)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", spoilt)
    filed(tmp_path / "hf", CASES[case], tmp_path / "theirs.gguf")
    with pytest.raises(AnyformerError, match=says) as refused:
        af.load(tmp_path / "theirs.gguf")
    assert "\n" not in str(refused.value)
    assert f"{architecture}." in str(refused.value)
