"""Causal language modelling: every token from those before it in its document."""

from __future__ import annotations

from anyformer.training.objectives.specification import ObjectiveSpec


class CausalLM(ObjectiveSpec):
    """The next token of the same document."""
