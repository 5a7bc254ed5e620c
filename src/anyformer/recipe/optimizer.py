"""Optimisers as data: AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), Adam (Kingma & Ba 2014, arXiv:1412.6980)."""

from __future__ import annotations

from anyformer.spec import ScaleSpec, Spec


class OptimizerSpec(Spec, abstract=True):
    """`lr` is the schedule's peak: a number, or a law of d_model."""

    lr: float | ScaleSpec = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.peak(1) <= 0:
            raise self.refusal("lr", "must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise self.refusal(name, "must be at least 0 and below 1")
        if self.eps <= 0:
            raise self.refusal("eps", "must be above 0")

    def peak(self, d_model: int) -> float:
        """The peak learning rate of a model of this width."""
        return self.lr.value(d_model) if isinstance(self.lr, ScaleSpec) else self.lr


class Adam(OptimizerSpec):
    """Without weight decay."""


class AdamW(OptimizerSpec):
    """Decoupled decay, lr · weight_decay each step, of matrices alone: never of biases, gains and tables."""

    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay < 0:
            raise self.refusal("weight_decay", "must be at least 0")
