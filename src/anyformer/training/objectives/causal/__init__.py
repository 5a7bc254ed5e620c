"""The next token from those before it in its document (causal language modelling), and further ones beside it."""

from __future__ import annotations

from anyformer.spec import Positive
from anyformer.training.objectives.specification import ObjectiveSpec


class CausalLM(ObjectiveSpec):
    """The next token of the same document."""


class MultiToken(CausalLM):
    """And further ones: `weight` times the mean of the losses of the model's modules for them is added to the loss.

    DeepSeek-V3: arXiv:2412.19437, equations 24 and 25; 0.3 for the first 10T tokens there, then 0.1.
    """

    weight: Positive = 0.3
