"""What an architecture is, in the words of the field: facts of a specification, and views of them."""

from anyformer.descriptions.card.card import Card, card
from anyformer.descriptions.check.check import Finding, check
from anyformer.descriptions.check.field_comparison import FieldPosition, field_comparison
from anyformer.descriptions.diagram.grid import Diagram
from anyformer.descriptions.diagram.model import diagram
from anyformer.descriptions.diagram.svg import FORMS, as_picture, as_svg
from anyformer.descriptions.diagram.text import as_text
from anyformer.descriptions.diff.as_variant import as_variant
from anyformer.descriptions.diff.diff import Diff, DiffRow, Effect, Measure, SpecComparison, diff, side_by_side
from anyformer.descriptions.history import History, history, lineage

__all__ = [
    "Card",
    "Diagram",
    "Diff",
    "DiffRow",
    "Effect",
    "FORMS",
    "FieldPosition",
    "Finding",
    "History",
    "Measure",
    "SpecComparison",
    "as_picture",
    "as_svg",
    "as_text",
    "as_variant",
    "card",
    "check",
    "diagram",
    "diff",
    "field_comparison",
    "history",
    "lineage",
    "side_by_side",
]
