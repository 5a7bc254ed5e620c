"""What an architecture costs, as arithmetic on its specification: nothing is allocated."""

from anyformer.costs.activations import Activations, activation_nbytes, activations
from anyformer.costs.conventions import CONVENTIONS, Convention
from anyformer.costs.formulas import active_parameters
from anyformer.costs.report import CostReport, cost
from anyformer.costs.state import CacheKind, StateBytes, cache_kinds, state_nbytes

__all__ = [
    "active_parameters",
    "Convention",
    "state_nbytes",
    "activations",
    "activation_nbytes",
    "StateBytes",
    "Activations",
    "CONVENTIONS",
    "CacheKind",
    "cache_kinds",
    "CostReport",
    "cost",
]
