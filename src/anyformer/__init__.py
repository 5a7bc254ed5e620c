"""One spec, any Transformer: built, costed, trained, compared, run, imported and exported from one piece of data."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from anyformer.version import __version__

if TYPE_CHECKING:
    from anyformer.cache import KVCache
    from anyformer.costs import cost
    from anyformer.descriptions import card, check, diagram, diff, history, side_by_side
    from anyformer.families import Preset, preset, presets, with_classifier
    from anyformer.hub import convert, load, load_spec, loads, save, vary
    from anyformer.inference import audit, classify, embed, evaluate, evaluate_task, generate, translate
    from anyformer.inspection import inspect, transplant
    from anyformer.measure import plan, roofline
    from anyformer.measure.here import calibrate
    from anyformer.measure.profile import profile
    from anyformer.measure.verify import verify
    from anyformer.model import Transformer, build
    from anyformer.recipe import Recipe
    from anyformer.resizing import resize, shrink
    from anyformer.spec import ModelSpec, dumps, parameters
    from anyformer.study.comparison import compare
    from anyformer.study.run_study import plan_study, run_study
    from anyformer.study.train import prepare_training, train
    from anyformer.text import Tokenizer
    from anyformer.text.trained import compare_tokenizers, tokenizer
    from anyformer.training.checkpoint.listing import list_runs

# Where the public names live. They are imported when first used, so that `import anyformer` costs nothing.
_ROOMS = {
    "cache": "KVCache",
    "costs": "cost",
    "descriptions": "card check diagram diff history side_by_side",
    "families": "Preset preset presets with_classifier",
    "hub": "convert load load_spec loads save vary",
    "inference": "audit classify embed evaluate evaluate_task generate translate",
    "inspection": "inspect transplant",
    "measure": "plan roofline",
    "measure.here": "calibrate",
    "measure.profile": "profile",
    "measure.verify": "verify",
    "model": "Transformer build",
    "recipe": "Recipe",
    "resizing": "resize shrink",
    "spec": "ModelSpec dumps parameters",
    "study.comparison": "compare",
    "study.run_study": "plan_study run_study",
    "study.train": "prepare_training train",
    "text": "Tokenizer",
    "text.trained": "compare_tokenizers tokenizer",
    "training.checkpoint.listing": "list_runs",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
    value = getattr(import_module(f"anyformer.{_HOMES[name]}"), name)
    if isinstance(value, FunctionType):
        from anyformer.arguments import held  # here: it takes as long as all else that `import anyformer` does

        value = held(value, __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
