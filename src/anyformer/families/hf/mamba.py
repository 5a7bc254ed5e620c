"""Mamba-2 to and from transformers' Mamba2ForCausalLM."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import INFINITY, Settings
from anyformer.families.mamba import mamba2
from anyformer.layers import CausalConvolutionSpec, Mamba2Spec, RMSNormSpec
from anyformer.spec import ModelSpec


def mixer(theirs: str, ours: str = "0.branches.0.mixer") -> dict[str, str | Theirs]:
    """The modules of a Mamba-2 mixer."""
    names = {
        "inner": "in_proj",
        "convolution": "conv1d",
        "out": "out_proj",
        "rate": "A_log",
        "step": "dt_bias",
        "skip": "D",
    }
    return {
        **{f"{ours}.{own}": f"{theirs}.{name}" for own, name in names.items()},
        f"{ours}.norm": Theirs(f"{theirs}.norm", by="vector"),
    }


def _expanded(settings: Settings, spec: ModelSpec) -> ModelSpec:
    width = one(spec, Mamba2Spec, "Mamba-2 mixer").width
    if settings.take("expand", int, 2) * spec.stack.d_model != width:
        raise settings.refusal(
            "expand", f"times hidden_size = {spec.stack.d_model} must be num_heads · head_dim = {width}"
        )
    return spec


def _limits(settings: Settings, spec: ModelSpec) -> ModelSpec:
    said = settings.written("time_step_limit")
    least, most = (
        said if isinstance(said, list) and len(said) == 2 else (0.0, INFINITY) if said is None else (None, None)
    )
    most = None if most == INFINITY else most
    if not isinstance(least, int | float) or not isinstance(most, int | float | None):
        raise settings.refusal("time_step_limit", "must be the least and the largest step")
    return changed(spec, Mamba2Spec, least_step=float(least), most_step=None if most is None else float(most))


def _said(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, Mamba2Spec, "Mamba-2 mixer")
    most = INFINITY if found.most_step is None else found.most_step
    limits = {} if (found.least_step, most) == (0.0, INFINITY) else {"time_step_limit": [found.least_step, most]}
    return {"expand": found.width // spec.stack.d_model, **limits}


MAMBA2 = table.family(
    "mamba2",
    "Mamba2ForCausalLM",
    mamba2(1, 32, 8),
    (
        table.VOCABULARY,
        table.D_MODEL,
        table.at("num_heads", int, Mamba2Spec, "n_heads", default=128),
        table.at("head_dim", int, Mamba2Spec, "head_dim", default=64),
        table.at("state_size", int, Mamba2Spec, "state_dim", default=128),
        table.at("n_groups", int, Mamba2Spec, "n_groups", default=8),
        table.at("conv_kernel", int, CausalConvolutionSpec, "size", default=4),
        table.at("use_conv_bias", bool, CausalConvolutionSpec, "bias", default=True),
        table.at("use_bias", bool, Mamba2Spec, "bias", default=False),
        table.activation("hidden_act", "silu", CausalConvolutionSpec),
        table.at("layer_norm_epsilon", float, RMSNormSpec, "eps", default=1e-5),
        table.Pair(_limits),
        table.Pair(_expanded, _said),
        table.tables(tied=False, start=0.1),
        table.layers(),
    ),
    {"0.norm_in": "norm", **mixer("mixer")},
    stack="backbone",
    tokens="embeddings",
    norm="norm_f",
    buffers=(),
    ignored=(
        "chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank", "time_step_min", "time_step_max",
        "time_step_floor",
    ),
)  # fmt: skip
