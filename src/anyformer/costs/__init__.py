"""What an architecture costs, as arithmetic on its specification: nothing is allocated."""

from anyformer.costs.activations import Activations, activation_nbytes, activations
from anyformer.costs.card.card import Card, card
from anyformer.costs.conventions import CONVENTIONS, Convention
from anyformer.costs.diagram.grid import Diagram
from anyformer.costs.diagram.model import diagram
from anyformer.costs.diagram.svg import as_svg
from anyformer.costs.diagram.text import as_text
from anyformer.costs.diff.diff import Comparison, Diff, Effect, Measure, Row, diff, side_by_side
from anyformer.costs.formulas import active_parameters
from anyformer.costs.history import Entry, History, Mark, history
from anyformer.costs.lineage import Step, lineage
from anyformer.costs.report import CacheKind, CostReport, cost
from anyformer.costs.state import StateBytes, state_nbytes

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
    "Card",
    "Comparison",
    "CostReport",
    "Diagram",
    "Diff",
    "Effect",
    "Measure",
    "Entry",
    "History",
    "Mark",
    "Row",
    "Step",
    "as_svg",
    "as_text",
    "card",
    "cost",
    "diagram",
    "diff",
    "history",
    "lineage",
    "side_by_side",
]
