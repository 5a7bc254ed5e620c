"""gpt-oss to and from transformers' GptOssForCausalLM, whose experts are (in, out), gate and up feature by feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from anyformer.families.compose import changed
from anyformer.families.gpt_oss import gpt_oss
from anyformer.families.hf import table
from anyformer.families.hf.experts import mixtures, router_rows
from anyformer.families.hf.llama import ATTENTION, D_FF, NORMS
from anyformer.families.hf.mapping import TensorRow, Tensors, one, same
from anyformer.families.hf.settings import Settings
from anyformer.layers import GELU, GatedFeedForwardSpec, GQASpec, RMSNormSpec, RotarySpec, RouterSpec, Swish, YaRN
from anyformer.spec import ModelSpec, Width

TEMPLATE = gpt_oss(
    n_layers=2, n_experts=128, top_k=1, d_model=8, d_ff=8, n_heads=1, n_kv_heads=1, head_dim=64, window=128
)
QUICK = 1.702  # GELU's quick form is the swish of this beta
HEAD_DIM = 64  # where nothing is said; null is d_model / n_heads


def _head_dim(settings: Settings, spec: ModelSpec) -> ModelSpec:
    return spec if settings.names("head_dim") else changed(spec, GQASpec, head_dim=Width(HEAD_DIM))


def _activation(settings: Settings, spec: ModelSpec) -> ModelSpec:
    beta = settings.take("swiglu_alpha", float, QUICK)
    activation = GELU(form="quick") if beta == QUICK else Swish(beta=beta)
    return changed(spec, GatedFeedForwardSpec, activation=activation)


def _alpha(spec: ModelSpec) -> dict[str, Any]:
    activation = one(spec, GatedFeedForwardSpec, "gated feed-forward").activation
    return {"swiglu_alpha": activation.beta if isinstance(activation, Swish) else QUICK}


def _repeated(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Take what the released files say a second time by another name; it must be the same."""
    settings.require("experts_per_token", one(spec, RouterSpec, "router").top_k)
    scaling = one(spec, RotarySpec, "rotary positions").scaling
    if isinstance(scaling, YaRN):
        settings.require("initial_context_length", int(scaling.original_context))
    return spec


def rows(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of sinks, routers and experts."""
    for ours, theirs in mixtures(spec):
        yield same(f"{ours.rsplit('.', 4)[0]}.0.branches.0.mixer.sink", f"{theirs}.self_attn.sinks")
        yield from router_rows(spec, f"{ours}.router", f"{theirs}.mlp.router")
        for end, their_end in (("weight", ""), ("bias", "_bias")):
            pair = (f"{ours}.experts.gate.{end}", f"{ours}.experts.up.{end}")
            yield TensorRow(pair, (f"{theirs}.mlp.experts.gate_up_proj{their_end}",), _apart, _in_turn)
            down, name = f"{ours}.experts.down.{end}", f"{theirs}.mlp.experts.down_proj{their_end}"
            yield same(down, name) if end == "bias" else TensorRow((down,), (name,), _transposed, _transposed)


def _apart(whole: Tensors) -> Tensors:
    return tuple(_turned(whole[0][..., i::2]) for i in (0, 1))


def _in_turn(pair: Tensors) -> Tensors:
    return (torch.stack([_turned(each) for each in pair], -1).flatten(-2),)


def _transposed(one_tensor: Tensors) -> Tensors:
    return (_turned(one_tensor[0]),)


def _turned(tensor: Tensor) -> Tensor:
    """The matrices of a stack transposed; biases are as they are."""
    return (tensor.transpose(1, 2) if tensor.dim() == 3 else tensor).contiguous()


GPT_OSS = table.family(
    "gpt_oss",
    "GptOssForCausalLM",
    TEMPLATE,
    (
        table.VOCABULARY,
        table.D_MODEL,
        D_FF,
        table.heads(n_kv_heads=8),
        table.Pair(_head_dim, lambda spec: {}),
        table.at(
            "attention_bias", bool, GQASpec, *(f"bias_{x}" for x in ("query", "key", "value", "output")), default=True
        ),
        table.Pair(_activation, _alpha),
        table.at("swiglu_limit", float, GatedFeedForwardSpec, "limit", default=7.0),
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(theta=150_000.0, scaling=YaRN(factor=32.0, truncate=False)), context=131_072),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=128),
        table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=4),
        table.Pair(_repeated, lambda spec: {}),
        table.layer_types(full_every=2, size=128),
        table.tables(tied=False),
    ),
    {**NORMS, **ATTENTION},
    experts=table.ExpertRows(rows, rows),
    ignored=("output_router_logits", "router_aux_loss_coef", "hidden_act"),
)
