"""How routers are trained, as data: what keeps the experts' load even, and noise on what routers see."""

from __future__ import annotations

from typing import Literal

from anyformer.spec import Spec


class RouterLossSpec(Spec, abstract=True):
    """A loss of the routers, added `weight` times to the mean cross-entropy; `training.step.routing` has the function of each.

    f_i is the share of tokens that choose expert i, P_i the mean of its probability over tokens; padding counts for nothing.
    """

    weight: float

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise self.refusal("weight", "must be above 0; leave the loss out to train without it")


class LoadBalance(RouterLossSpec):
    """n_experts · Σ f_i P_i: Fedus et al. 2021, arXiv:2101.03961, equation 4; Σ f_i = top_k.

    Over each layer by itself, the layers' losses added up (Switch), or over the tokens of all layers together (Mixtral's
    code in transformers).
    """

    over: Literal["layer", "layers"] = "layers"


class SequenceBalance(RouterLossSpec):
    """n_experts / top_k · Σ f_i P_i within each sequence, the mean over sequences, layers added up.

    DeepSeek-V3: arXiv:2412.19437, equations 17 to 20; a sequence is a row of the batch.
    """


class RouterZLoss(RouterLossSpec):
    """log² Σ exp logits, the mean over tokens of all layers: Zoph et al. 2022, arXiv:2202.08906, equation 5."""


class RouterTraining(Spec):
    """The training of routers; nothing of it concerns models without experts."""

    losses: tuple[RouterLossSpec, ...] = ()
    # by which corrections of the choice move after each step, against the load (DeepSeek-V3)
    correction_speed: float = 0.0
    jitter: float = 0.0  # what a router sees is multiplied by numbers from 1 - jitter to 1 + jitter (Switch)

    def __post_init__(self) -> None:
        if self.correction_speed < 0:
            raise self.refusal("correction_speed", "must be at least 0")
        if not 0 <= self.jitter < 1:
            raise self.refusal("jitter", "must be at least 0 and below 1")
        kinds = [loss.kind for loss in self.losses]
        if len(set(kinds)) < len(kinds):
            raise self.refusal("losses", f"are {', '.join(kinds)}; give each kind once")
