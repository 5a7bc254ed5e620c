"""What an architecture costs, as arithmetic on its specification: nothing is allocated."""

from anyformer.costs.card import card
from anyformer.costs.report import CONVENTIONS, CacheKind, CostReport, cost

__all__ = ["CONVENTIONS", "CacheKind", "CostReport", "card", "cost"]
