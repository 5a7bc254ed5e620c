"""What is inside a trained model: what its layers and heads do, where they look, and what it would say half way."""

from anyformer.inspection.importance import importance
from anyformer.inspection.inspect import inspect
from anyformer.inspection.keeping import transplant
from anyformer.inspection.results import Inspection
from anyformer.inspection.sites import Sites, watched, without_branch, without_layers

__all__ = [
    "Inspection",
    "Sites",
    "importance",
    "inspect",
    "transplant",
    "watched",
    "without_branch",
    "without_layers",
]
