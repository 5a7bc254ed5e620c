"""Rotary positions to and from configurations: rope_theta and rope_scaling of transformers 4, rope_parameters of 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.errors import did_you_mean
from anyformer.families.hf.settings import Settings
from anyformer.layers import DynamicNTK, LinearScaling, Llama3Scaling, LongRoPE, RotaryScalingSpec, RotarySpec, YaRN
from anyformer.layers.rope_scaling import sharpening
from anyformer.spec import Length

THETA, FRACTION = "rope_theta", "partial_rotary_factor"
ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = "short_mscale", "long_mscale"


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
    plain = plain.but(theta=settings.take(theta, float, plain.theta))
    if fraction is None:
        for table in (settings, settings.section("rope_scaling"), settings.section("rope_parameters")):
            if table is not None:
                table.require(FRACTION, 1.0)
    else:
        plain = plain.but(fraction=settings.take(fraction, float, plain.fraction))
    original = settings.optional(ORIGINAL, int)  # Phi-3 writes it here; it goes before the one inside
    old, new = settings.section("rope_scaling"), settings.section("rope_parameters")
    inner = old or new
    return plain if inner is None else within(inner, context, plain, original, magnitudes=magnitudes)


def within(
    inner: Settings, context: int, plain: RotarySpec, original: int | None = None, *, magnitudes: bool = False
) -> RotarySpec:
    """The rotary positions of one table of settings, all of which are used or refused. Raises CheckpointError."""
    theta, fraction = inner.take(THETA, float, plain.theta), inner.take(FRACTION, float, plain.fraction)
    older = inner.take("type", str, "default")
    kind = inner.take("rope_type", str, older)
    if kind != "default" and kind not in READERS:
        known = f"there are default, {', '.join(READERS)}"
        near = did_you_mean(kind, READERS)
        raise inner.refusal("rope_type" if kind != older else "type", f"is no scaling known here{near}; {known}")
    scaling = None if kind == "default" else READERS[kind](inner, context, original)
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


def scaling_settings(scaling: RotaryScalingSpec | None) -> dict[str, Any] | None:
    """The table of a scaling; None for none, and for one that no configuration can hold."""
    match scaling:
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case DynamicNTK():  # its original context is the configuration's max_position_embeddings
            return {"rope_type": "dynamic", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                ORIGINAL: scaling.original_context,
            }
        case YaRN():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
                ORIGINAL: scaling.original_context,
                **_given("attention_factor", scaling.attention_factor),
            }
        case LongRoPE():
            return {
                "rope_type": "longrope",
                "factor": scaling.factor,
                "short_factor": list(scaling.short),
                "long_factor": list(scaling.long),
                ORIGINAL: scaling.original_context,
                **_given("attention_factor", scaling.magnitude_short),
            }
    return None


def _given(name: str, value: float | None) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _linear(inner: Settings, context: int, original: int | None) -> RotaryScalingSpec:
    return LinearScaling(factor=inner.take("factor", float))


def _dynamic(inner: Settings, context: int, original: int | None) -> RotaryScalingSpec:
    return DynamicNTK(factor=inner.take("factor", float), original_context=Length(context))


def _llama3(inner: Settings, context: int, original: int | None) -> RotaryScalingSpec:
    return Llama3Scaling(
        factor=inner.take("factor", float),
        low_frequency_factor=inner.take("low_freq_factor", float),
        high_frequency_factor=inner.take("high_freq_factor", float),
        original_context=_original(inner, context, original),
    )


def _yarn(inner: Settings, context: int, original: int | None) -> RotaryScalingSpec:
    length = _original(inner, context, original)
    factor = inner.take("factor", float, context / length)
    shares = inner.optional("mscale", float), inner.optional("mscale_all_dim", float)
    magnitude = inner.optional("attention_factor", float)
    if magnitude is None and shares[0] and shares[1]:
        magnitude = sharpening(factor, shares[0]) / sharpening(factor, shares[1])
    return YaRN(
        factor=factor,
        original_context=length,
        beta_fast=inner.take("beta_fast", float, 0.0) or 32.0,
        beta_slow=inner.take("beta_slow", float, 0.0) or 1.0,
        truncate=inner.take("truncate", bool, True),
        attention_factor=magnitude,
    )


def _longrope(inner: Settings, context: int, original: int | None) -> RotaryScalingSpec:
    length = _original(inner, context, original)
    magnitude = inner.optional("attention_factor", float)
    return LongRoPE(
        short=inner.numbers("short_factor"),
        long=inner.numbers("long_factor"),
        factor=inner.take("factor", float, context / length),
        original_context=length,
        magnitude_short=magnitude,
        magnitude_long=magnitude,
    )


def _original(inner: Settings, context: int, original: int | None) -> Length:
    within = inner.take(ORIGINAL, int, context)
    return Length(within if original is None else original)


Reader = Callable[[Settings, int, int | None], RotaryScalingSpec]
READERS: dict[str, Reader] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in the first Phi-3 files
}
