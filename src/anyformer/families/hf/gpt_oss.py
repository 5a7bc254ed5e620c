"""gpt-oss to and from transformers' GptOssForCausalLM, whose experts are (in, out), gate and up feature by feature."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.gpt_oss import gpt_oss
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import EXPERTS, mixtral_routing
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, D_FF, NORMS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import GELU, GatedFeedForwardSpec, GQASpec, RotarySpec, RouterSpec, Swish, YaRN
from anyformer.spec import ModelSpec, Width

TEMPLATE = gpt_oss(n_layers=2, n_experts=128, d_model=8, d_ff=8, n_heads=1, n_kv_heads=1)
QUICK = 1.702  # GELU's quick form is the swish of this beta
HEAD_DIM = 64  # where nothing is said; null is d_model / n_heads


def _head_dim(settings: Settings, spec: ModelSpec) -> ModelSpec:
    return spec if settings.names("head_dim") else changed(spec, GQASpec, head_dim=Width(HEAD_DIM))


def _activation(settings: Settings, spec: ModelSpec) -> ModelSpec:
    beta = settings.take("swiglu_alpha", float, QUICK)
    activation = GELU(form="quick") if beta == QUICK else Swish(beta=beta)
    return changed(spec, GatedFeedForwardSpec, activation=activation)


def _alpha(spec: ModelSpec) -> dict[str, Any]:
    activation = one(spec, GatedFeedForwardSpec).activation
    return {"swiglu_alpha": activation.beta if isinstance(activation, Swish) else QUICK}


# What gates are clamped to, and the activation.
GATES = (
    table.Pair(_activation, _alpha),
    table.at("swiglu_limit", float, GatedFeedForwardSpec, "limit", default=7.0),
)


def _repeated(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Take what the released files say a second time by another name; it must be the same."""
    settings.require("experts_per_token", one(spec, RouterSpec).top_k)
    scaling = one(spec, RotarySpec).scaling
    if isinstance(scaling, YaRN):
        settings.require("initial_context_length", int(scaling.original_context))
    return spec


GATE_AND_UP = tuple(f"{EXPERTS}.{x}" for x in ("gate", "up"))
MODULES = {
    **NORMS,
    **ATTENTION,
    f"{table.MIXER}.sink": "self_attn.sinks",
    f"{table.FEED}.router": "mlp.router",
    tuple(f"{x}.weight" for x in GATE_AND_UP): Theirs("mlp.experts.gate_up_proj", turned=True, by="feature"),
    tuple(f"{x}.bias" for x in GATE_AND_UP): Theirs("mlp.experts.gate_up_proj_bias", by="feature"),
    f"{EXPERTS}.down.weight": Theirs("mlp.experts.down_proj", turned=True),
    f"{EXPERTS}.down.bias": "mlp.experts.down_proj_bias",
}
GPT_OSS = table.family(
    "gpt_oss",
    "GptOssForCausalLM",
    TEMPLATE,
    (
        *table.STREAM,
        D_FF,
        table.heads(n_kv_heads=8),
        table.Pair(_head_dim),
        table.at("attention_bias", bool, GQASpec, *table.ALL_BIASES, default=True),
        *GATES,
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=150_000.0, scaling=YaRN(factor=32.0, truncate=False)), context=131_072),
        mixtral_routing(128, 4),
        table.Pair(_repeated),
        windows.layer_types(windows.each(2), 128),
        table.tables(tied=False),
    ),
    MODULES,
    ignored=("hidden_act",),
)
