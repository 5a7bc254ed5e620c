"""What an architecture costs, as arithmetic on its specification: nothing is allocated."""

from anyformer.costs.activations import activations
from anyformer.costs.conventions import CONVENTIONS
from anyformer.costs.formulas import active_parameters
from anyformer.costs.report import CostReport, cost
from anyformer.costs.state import state_nbytes

__all__ = ["active_parameters", "state_nbytes", "activations", "CONVENTIONS", "CostReport", "cost"]
