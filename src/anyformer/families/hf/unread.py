"""What to say of a configuration whose class is not read: which of its settings no class has that is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from anyformer.errors import AnyformerError, CheckpointError
from anyformer.families.hf.mapping import Family
from anyformer.families.hf.settings import REQUIRED, Settings, T

# Settings that only a model has which sees or hears.
SENSES = (
    "vision_config", "audio_config", "image_size", "image_token_id", "image_token_index", "video_token_id", "patch_size",
    "num_channels", "num_mel_bins", "n_mels", "audio_token_id", "feat_extract_norm", "sampling_rate", "num_codebooks",
)  # fmt: skip
# In a model_type: what only such a model is called.
SENSE = re.compile(
    r"audio|speech|whisper|wav2?vec|wavlm|hubert|seamless|music|moshi|moonshine|voxtral|parakeet|canary|encodec|"
    r"vision|image|video|visual|pixtral|pix2struct|llava|vlm|mllama|idefics|flamingo|paligemma|florence|kosmos|internvl|"
    r"clip|siglip|blip|beit|dino|swin|convnext|mobilenet|resnet|segformer|detr|yolos|"
    r"(?:^|[-_])(?:asr|tts|sew|vl|omni|ocr|sam|(?:mobile|le)?vit)(?:[-_.\dvd]|$)"
)
LISTED = "docs/parity.md lists the classes that are"
OWN = "a family of your own is known by --import FILE"
MOST = 8  # settings that are named


def refusal(families: Collection[Family], config: Mapping[str, Any], where: str) -> CheckpointError:
    """The error for a `model_type` that no family reads, with what our parts lack for it."""
    said = f"{where}: model_type {config['model_type']!r}"
    sense = next((name for name in SENSES if config.get(name)), None)
    if sense is not None or SENSE.search(config["model_type"]):
        has = "" if sense is None else f" has {sense}"
        return CheckpointError(f"{said}{has}: audio and images are out of scope; text models are read ({LISTED})")
    if not Settings(config, "").left():
        return CheckpointError(f"{said} is not read here; {LISTED}, and {OWN}")
    alike = [family.hf_type for family in families if _reads(family, config)]
    if alike:
        return CheckpointError(
            f"{said} is not read here; all its settings are those of {alike[0]!r}: "
            f"if it computes the same, give --as {alike[0]}; {OWN}"
        )
    left = {family.hf_type: _left(family, config) for family in families}
    nearest = min(left, key=lambda hf_type: len(left[hf_type]))
    everybody = [set(names) for names in left.values()]
    nobodys = [name for name in left[nearest] if all(name in names for names in everybody)]
    more = f" and {len(nobodys) - MOST} more" if len(nobodys) > MOST else ""
    lacking = f"; no class that is has {', '.join(nobodys[:MOST])}{more}" if nobodys else ""
    return CheckpointError(
        f"{said} is not read here{lacking}; the nearest by its settings is {nearest!r} ({LISTED}, and {OWN})"
    )


class _Asked(Settings):
    """Settings that refuse nothing, to see which are asked for."""

    def take(self, name: str, kind: type[T], default: T = REQUIRED) -> T:
        value = self.optional(name, kind)
        return value if value is not None else kind(1) if default is REQUIRED else default

    def optional(self, name: str, kind: type[T]) -> T | None:
        value = self.written(name)
        return value if isinstance(value, kind) else None

    def require(self, name: str, *allowed: Any) -> None:
        self.written(name)


def _reads(family: Family, config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one of this family in all but its name."""
    try:
        family.to_spec(Settings(config, ""))
    except AnyformerError:
        return False
    return True


def _left(family: Family, config: Mapping[str, Any]) -> list[str]:
    """The settings that reading a configuration as one of this family does not come to."""
    settings = _Asked(config, "")
    with suppress(AnyformerError):
        family.to_spec(settings)
    return settings.left()
