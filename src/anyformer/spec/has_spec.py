"""Whatever is described by a specification stands for it: a preset, a model, the specification itself."""

from __future__ import annotations

from typing import Protocol

from anyformer.errors import SpecError
from anyformer.spec.model import ModelSpec


class HasSpec(Protocol):
    """Has the specification of a whole model."""

    @property
    def spec(self) -> ModelSpec: ...


Architecture = ModelSpec | HasSpec


def specification(architecture: Architecture) -> ModelSpec:
    """The specification that this is or has. Raises SpecError for anything else, a name among them."""
    if isinstance(architecture, ModelSpec):
        return architecture
    found = getattr(architecture, "spec", None)
    if isinstance(found, ModelSpec):
        return found
    if isinstance(architecture, str):
        raise SpecError(f"{architecture!r} is a name, no specification; give load_spec({architecture!r})")
    given = " ".join(repr(architecture).split())
    given = given if len(given) <= 60 else f"{given[:60]}…"
    raise SpecError(f"{given} is no specification and has none; give a ModelSpec, a Preset or a model")
