"""The next token from those before it in its document (causal language modelling), and further ones beside it."""

from __future__ import annotations

from anyformer.training.objectives.specification import ObjectiveSpec


class CausalLM(ObjectiveSpec):
    """The next token of the same document."""


class MultiToken(CausalLM):
    """And further ones: `weight` times the mean of the losses of the model's modules for them is added to the loss.

    DeepSeek-V3: arXiv:2412.19437, equations 24 and 25; 0.3 for the first 10T tokens there, then 0.1.
    """

    weight: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise self.refusal("weight", "must be above 0; the objective CausalLM predicts the next token alone")
