"""Mixtures of experts as a user would add them: data that counts, without a module yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from anyformer.spec import Caveat, Count, MixerSpec, PartSpec, Placed, Site, Weight, tensors


class ScoresOfExpertsSpec(PartSpec):
    """How a token chooses: one score an expert, the `top_k` best, and what weighs their results."""

    n_experts: Count
    top_k: int
    weighs: Literal["softmax", "softmax-of-chosen", "sigmoid-of-chosen"]
    bias: bool = False
    correction: bool = False  # a bias of the choice alone, moved by the load and not by the gradient (DeepSeek-V3)
    n_groups: int = 1
    top_groups: int = 1
    factor: float = 1.0

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        one_each = Weight((self.n_experts,), ("experts",), "bias", fill=0.0)
        moved = Weight(one_each.shape, one_each.axes, "bias", fill=0.0, trainable=False)
        return {
            "weight": Weight((self.n_experts, site.d_model), ("experts", "d_model")),
            "bias": one_each if self.bias else None,
            "correction": moved if self.correction else None,
        }


class RoutedSpec(MixerSpec):
    """Experts of one kind, their tensors stacked, and one for all tokens beside them."""

    choice: ScoresOfExpertsSpec
    expert: MixerSpec
    always: MixerSpec | None = None
    capacity: int | None = None  # tokens an expert takes of a sequence; those beyond pass by it

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        each = tensors(self.expert, site)
        return {name.replace(".", "_"): weight.stacked("experts", self.choice.n_experts) for name, weight in each}

    def parts(self, site: Site) -> Mapping[str, Placed]:
        return {"choice": (self.choice, site), "always": self.always and (self.always, site)}

    def caveats(self) -> tuple[Caveat, ...]:
        dropped = Caveat("cache", "tokens compete for an expert's places, so a chunk's size changes who gets one")
        return () if self.capacity is None else (dropped,)
