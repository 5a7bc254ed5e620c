"""Rotary positions to and from configurations: rope_theta and rope_scaling of transformers 4, rope_parameters of 5."""

from __future__ import annotations

from typing import Any

from anyformer.errors import did_you_mean
from anyformer.families.hf.settings import REQUIRED, Settings
from anyformer.layers import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    ProportionalRoPE,
    RotaryScalingSpec,
    RotarySpec,
    YaRN,
)
from anyformer.layers.rope_scaling import sharpening
from anyformer.spec import Length

THETA, FRACTION = "rope_theta", "partial_rotary_factor"
ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = "short_mscale", "long_mscale"
# How features are shared among time, height and width (M-RoPE: Wang et al. 2024, arXiv:2409.12191, section 2.1), which are one
# position for text.
OF_PLACES = ("mrope_section", "mrope_interleaved")


def rotary(
    settings: Settings,
    context: int,
    *,
    plain: RotarySpec | None = None,
    theta: str = THETA,
    fraction: str | None = FRACTION,
    magnitudes: bool = False,
) -> RotarySpec:
    """The rotary positions that a whole configuration describes. Raises CheckpointError.

    `plain` is what the class takes where nothing is said (theta, fraction, where, layout); `theta` and `fraction` are its names
    for these two, None where the class rotates all features whatever is said; `context` is its max_position_embeddings.
    `magnitudes`: the class has one for each of longrope's lists, short_mscale and long_mscale.
    """
    plain = plain or RotarySpec()
    plain = plain.but(theta=settings.positive(theta, float, plain.theta))
    if fraction is None:
        for table in (settings, settings.section("rope_scaling"), settings.section("rope_parameters")):
            if table is not None:
                table.require(FRACTION, 1.0)
    else:
        plain = plain.but(fraction=settings.take(fraction, float, plain.fraction))
    original = settings.optional(ORIGINAL, int)  # Phi-3 writes it here; it goes before the one inside
    old, new = settings.section("rope_scaling"), settings.section("rope_parameters")
    inner = old or new
    return plain if inner is None else rotary_of(inner, context, plain, original, magnitudes=magnitudes)


def rotary_of(
    inner: Settings, context: int, plain: RotarySpec, original: int | None = None, *, magnitudes: bool = False
) -> RotarySpec:
    """The rotary positions of one table of settings, all of which are used or refused. Raises CheckpointError."""
    theta = inner.positive(THETA, float, plain.theta)
    older = inner.take("type", str, "default")
    kind = inner.take("rope_type", str, older)
    inner.ignore(*OF_PLACES)
    kind = "default" if kind == "mrope" else kind
    if kind != "default" and kind not in SCALINGS:
        known = f"there are default, {', '.join(SCALINGS)}"
        near = did_you_mean(kind, SCALINGS)
        raise inner.refusal("rope_type" if kind != older else "type", f"is no scaling known here{near}; {known}")
    scaling = None if kind == "default" else _scaling(kind, inner, context, original, plain.fraction)
    # Of p-RoPE it is the scaling's: all features turn, most of them by nothing.
    fraction = 1.0 if isinstance(scaling, ProportionalRoPE) else inner.take(FRACTION, float, plain.fraction)
    if magnitudes and isinstance(scaling, LongRoPE):
        short, long = inner.optional(SHORT, float), inner.optional(LONG, float)
        scaling = scaling.but(magnitude_short=short, magnitude_long=long)
    inner.close()
    return plain.but(theta=theta, fraction=fraction, scaling=scaling)


def rotary_settings(
    rotary: RotarySpec | None, *, theta: str = THETA, fraction: str | None = FRACTION, magnitudes: bool = False
) -> dict[str, Any]:
    """The settings in the older spelling, which both read; the arguments are those of `rotary`."""
    rotary = rotary or RotarySpec()
    table, scaling = scaling_settings(rotary.scaling), rotary.scaling
    if magnitudes and table is not None and isinstance(scaling, LongRoPE):
        table.pop("attention_factor", None)
        table |= _given(SHORT, scaling.magnitude_short) | _given(LONG, scaling.magnitude_long)
    found: dict[str, Any] = {theta: rotary.theta, "rope_scaling": table}
    return found if fraction is None else {**found, fraction: rotary.fraction}


# Of each scaling, by its name: the part, and the field that each setting is.
FACTOR, LENGTH = {"factor": "factor"}, {ORIGINAL: "original_context"}
FREQUENCIES = {"low_freq_factor": "low_frequency_factor", "high_freq_factor": "high_frequency_factor"}
RAMP = {name: name for name in ("beta_fast", "beta_slow", "truncate")}
LISTS = {"short_factor": "short", "long_factor": "long"}
YARN = FACTOR | RAMP | LENGTH | {"attention_factor": "attention_factor"}
LONGROPE = FACTOR | LISTS | LENGTH | {"attention_factor": "magnitude_short"}
SCALINGS: dict[str, tuple[type[RotaryScalingSpec], dict[str, str]]] = {
    "linear": (LinearScaling, FACTOR),
    "dynamic": (DynamicNTK, FACTOR),
    "llama3": (Llama3Scaling, FACTOR | FREQUENCIES | LENGTH),
    "yarn": (YaRN, YARN),
    "longrope": (LongRoPE, LONGROPE),
    "proportional": (ProportionalRoPE, {FRACTION: "share"}),
    "su": (LongRoPE, LONGROPE),  # its name in the first Phi-3 files
    "deepseek_yarn": (YaRN, YARN),  # and in Sarvam's
}


def scaling_settings(scaling: RotaryScalingSpec | None) -> dict[str, Any] | None:
    """The table of a scaling; None for none, and for one that no configuration can hold.

    Of the dynamic one the original context is the configuration's max_position_embeddings.
    """
    for name, (part, fields) in SCALINGS.items():
        if type(scaling) is part:
            said = {setting: getattr(scaling, field) for setting, field in fields.items()}
            said |= {setting: list(said[setting]) for setting in LISTS if setting in said}
            return {"rope_type": name, **{setting: x for setting, x in said.items() if x is not None}}
    return None


def _given(name: str, value: float | None) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _scaling(kind: str, inner: Settings, context: int, original: int | None, fraction: float) -> RotaryScalingSpec:
    """The scaling that a table describes, for a model of this context and original context, if that is said outside.

    `fraction` is the share of features that turn where the table does not say it.
    """
    part, fields = SCALINGS[kind]
    if part is ProportionalRoPE:
        return part(share=inner.take(FRACTION, float, fraction))
    found: dict[str, Any] = {}
    default = REQUIRED
    if ORIGINAL in fields:
        length = inner.positive(ORIGINAL, int, context)
        found["original_context"] = Length(length if original is None else original)
        default = REQUIRED if part is Llama3Scaling else context / found["original_context"]
    found["factor"] = inner.positive("factor", float, default)
    if part is DynamicNTK:
        found["original_context"] = Length(context)
    elif part is Llama3Scaling:
        found |= {field: inner.positive(name, float) for name, field in FREQUENCIES.items()}
    elif part is YaRN:
        shares = inner.optional("mscale", float), inner.optional("mscale_all_dim", float)
        magnitude = inner.optional("attention_factor", float)
        if magnitude is None and shares[0] and shares[1]:
            magnitude = sharpening(found["factor"], shares[0]) / sharpening(found["factor"], shares[1])
        betas = {name: beta for name in ("beta_fast", "beta_slow") if (beta := inner.optional(name, float))}
        found |= {**betas, "truncate": inner.take("truncate", bool, True), "attention_factor": magnitude}
    elif part is LongRoPE:
        magnitude = inner.optional("attention_factor", float)
        found |= {field: inner.numbers(name) for name, field in LISTS.items()}
        found |= {"magnitude_short": magnitude, "magnitude_long": magnitude}
    return part(**found)
