"""Mamba, Falcon Mamba and Mamba-2 to and from transformers' classes, and their mixers as other classes have them too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import Family, one
from anyformer.families.hf.settings import INFINITY, Settings
from anyformer.families.mamba import falcon_mamba, mamba, mamba2
from anyformer.layers import CausalConvolutionSpec, RMSNormSpec, S6Spec, SSDSpec
from anyformer.spec import ModelSpec

OF_A_HYBRID = {
    "n_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state_dim": "mamba_d_state",
    "n_groups": "mamba_n_groups",
    "expand": "mamba_expand",
    "bias": "mamba_proj_bias",
    "size": "mamba_d_conv",
    "biased": "mamba_conv_bias",
}
ALONE = {
    "n_heads": "num_heads",
    "head_dim": "head_dim",
    "state_dim": "state_size",
    "n_groups": "n_groups",
    "expand": "expand",
    "bias": "use_bias",
    "size": "conv_kernel",
    "biased": "use_conv_bias",
}


def modules(theirs: str) -> dict[str, str | Theirs]:
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
        **{f"{table.MIXER}.{own}": f"{theirs}.{name}" for own, name in names.items()},
        f"{table.MIXER}.norm": Theirs(f"{theirs}.norm", by=(-1,)),
    }


def mixer(
    names: dict[str, str],
    state_dim: int,
    n_groups: int,
    activation: str = "hidden_act",
    usual: int | None = None,
    heads: int = 128,
) -> tuple[table.Pair, ...]:
    """The settings of every Mamba-2 mixer; the numbers go where nothing is said, and a head's width follows from the others.

    All heads together are as wide as `names` has it: a `width`, `usual` where nothing is said, or `expand` times the stream's, or
    what their own widths sum up to. A class may say biases elsewhere, and bound steps from below alone, by the setting `least`.
    """
    least = names.get("least")

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        d_model, n_heads = spec.stack.d_model, settings.positive(names["n_heads"], int, heads)
        said = settings.written(names["head_dim"])
        head_dim = None if said in (None, "auto") else settings.positive(names["head_dim"], int)
        own = settings.nullable(names["width"], int, usual) if "width" in names else None
        factor = settings.positive(names["expand"], int, 2) if "expand" in names else None
        width = own or (d_model * factor if factor else n_heads * (head_dim or 64))
        head_dim = head_dim or width // n_heads
        if width != n_heads * head_dim:
            inner = f"{names['n_heads']} · {names['head_dim']} = {n_heads * head_dim}"
            times = f"times hidden_size = {d_model} " if own is None else ""
            raise settings.refusal(names["width" if own else "expand"], f"{times}must be {inner}")
        return changed(
            spec,
            SSDSpec,
            n_heads=n_heads,
            head_dim=head_dim,
            state_dim=settings.positive(names["state_dim"], int, state_dim),
            n_groups=settings.positive(names["n_groups"], int, n_groups),
            **(_limits(settings) if least is None else {"least_step": settings.take(least, float, 0.001)}),
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, SSDSpec)
        most = INFINITY if found.most_step is None else found.most_step
        limits = {} if (found.least_step, most) == (0.0, INFINITY) else {"time_step_limit": [found.least_step, most]}
        limits = limits if least is None else {least: found.least_step}
        own = {names[x]: getattr(found, x) for x in ("n_heads", "head_dim", "state_dim", "n_groups")}
        if "width" in names:
            own[names["width"]] = found.width
        elif "expand" in names:
            own[names["expand"]] = found.width // spec.stack.d_model
        return {**own, **limits}

    return (
        table.Pair(read, write),
        table.at(names["size"], int, CausalConvolutionSpec, "size", default=4),
        table.at(names["biased"], bool, CausalConvolutionSpec, "bias", default=True),
        *(table.at(names[x], bool, SSDSpec, "bias", default=False) for x in ("bias",) if x in names),
        table.activation(activation, "silu", CausalConvolutionSpec),
    )


def _limits(settings: Settings) -> dict[str, float | None]:
    said = settings.written("time_step_limit")
    least, most = (
        said if isinstance(said, list) and len(said) == 2 else (0.0, INFINITY) if said is None else (None, None)
    )
    most = None if most in (INFINITY, math.inf) else most
    if not isinstance(least, int | float) or not isinstance(most, int | float | None):
        raise settings.refusal("time_step_limit", "must be the least and the largest step")
    return {"least_step": float(least), "most_step": None if most is None else float(most)}


OF_S6 = {
    "state_dim": "state_size",
    "expand": "expand",
    "rank": "time_step_rank",
    "bias": "use_bias",
    "size": "conv_kernel",
    "biased": "use_conv_bias",
}
S6_IN_A_HYBRID = {
    "state_dim": "mamba_d_state",
    "expand": "mamba_expand",
    "rank": "mamba_dt_rank",
    "bias": "mamba_proj_bias",
    "size": "mamba_d_conv",
    "biased": "mamba_conv_bias",
}


def s6_modules(theirs: str) -> dict[str, str]:
    """The modules of a Mamba mixer."""
    names = {
        "inner": "in_proj",
        "convolution": "conv1d",
        "chosen": "x_proj",
        "norm_step": "dt_layernorm",
        "norm_write": "b_layernorm",
        "norm_read": "c_layernorm",
        "widened": "dt_proj",
        "step": "dt_proj.bias",
        "rate": "A_log",
        "skip": "D",
        "out": "out_proj",
    }
    return {f"{table.MIXER}.{own}": f"{theirs}.{name}" for own, name in names.items()}


def s6_mixer(names: dict[str, str]) -> tuple[table.Pair, ...]:
    """The settings of every Mamba mixer."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        width = settings.positive(names["expand"], int, 2) * spec.stack.d_model
        auto = settings.written(names["rank"]) in (None, "auto")
        rank = None if auto else settings.positive(names["rank"], int)
        if rank == -(-spec.stack.d_model // 16):
            rank = None
        return changed(spec, S6Spec, width=width, step_rank=rank)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, S6Spec)
        return {names["expand"]: found.width // spec.stack.d_model, names["rank"]: found.step_rank or "auto"}

    return (
        table.Pair(read, write),
        table.at(names["state_dim"], int, S6Spec, "state_dim", default=16),
        table.at(names["size"], int, CausalConvolutionSpec, "size", default=4),
        table.at(names["biased"], bool, CausalConvolutionSpec, "bias", default=True),
        table.at(names["bias"], bool, S6Spec, "bias", default=False),
        table.activation("hidden_act", "silu", CausalConvolutionSpec),
    )


NORM = table.Pair(
    lambda settings, spec: changed(
        spec, S6Spec, norm=RMSNormSpec(weight=False, eps=settings.take("mixer_rms_eps", float, 1e-6))
    ),
    lambda spec: {"mixer_rms_eps": one(one(spec, S6Spec), RMSNormSpec).eps},
)


def _alone(
    hf_type: str, architecture: str, template: ModelSpec, tied: bool, modules: Mapping[str, Any], *pairs: table.Pair
) -> Family:
    """The family of a class without feed-forwards; mixers' own norms are set after the stream's."""
    return table.family(
        hf_type,
        architecture,
        template,
        (
            *table.STREAM,
            table.rms_eps(1e-5, "layer_norm_epsilon"),
            *pairs,
            table.tables(tied=tied, start=0.1),
            table.layers(),
        ),
        {"0.norm_in": "norm", **modules},
        stack="backbone",
        tokens="embeddings",
        norm="norm_f",
        ignored=IDLE,
    )


# What sets how weights start, how much a machine does at once, and in which precision the stream adds up.
IDLE = (
    "chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank", "time_step_min", "time_step_max",
    "time_step_floor", "time_step_scale", "time_step_init_scheme", "use_falcon_mambapy", "intermediate_size",
)  # fmt: skip
MAMBA = _alone("mamba", "MambaForCausalLM", mamba(1, 32), True, s6_modules("mixer"), *s6_mixer(OF_S6))
FALCON_MAMBA = _alone(
    "falcon_mamba",
    "FalconMambaForCausalLM",
    falcon_mamba(1, 32),
    True,
    s6_modules("mixer"),
    *s6_mixer(OF_S6),
    NORM,
)
MAMBA2 = _alone("mamba2", "Mamba2ForCausalLM", mamba2(1, 32, 8), False, modules("mixer"), *mixer(ALONE, 128, 8))
