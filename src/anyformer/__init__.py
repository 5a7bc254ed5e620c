"""One spec, any Transformer: built, costed, trained, compared, run, imported and exported from one piece of data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer.cache import KVCache
    from anyformer.costs import cost
    from anyformer.descriptions import card, check, diagram, diff, history, side_by_side
    from anyformer.families import Preset, preset, presets, with_classifier
    from anyformer.generation import generate
    from anyformer.hub import convert, load, load_spec, loads, save, vary
    from anyformer.inference import classify, embed
    from anyformer.measure import plan, roofline
    from anyformer.model import Transformer, build
    from anyformer.resizing import resize, shrink
    from anyformer.spec import ModelSpec, dumps, parameters

# Where each public name lives. They are imported when first used, so that `import anyformer` costs nothing.
_HOMES = {
    "KVCache": "cache",
    "ModelSpec": "spec",
    "Preset": "families",
    "Transformer": "model",
    "build": "model",
    "card": "descriptions",
    "check": "descriptions",
    "classify": "inference",
    "convert": "hub",
    "cost": "costs",
    "diagram": "descriptions",
    "diff": "descriptions",
    "dumps": "spec",
    "embed": "inference",
    "generate": "generation",
    "history": "descriptions",
    "with_classifier": "families",
    "load": "hub",
    "load_spec": "hub",
    "loads": "hub",
    "parameters": "spec",
    "plan": "measure",
    "preset": "families",
    "presets": "families",
    "resize": "resizing",
    "roofline": "measure",
    "save": "hub",
    "shrink": "resizing",
    "side_by_side": "descriptions",
    "vary": "hub",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
    value = getattr(import_module(f"anyformer.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
