"""The activations of the field, each a value that is also a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.part import Part
from anyformer.spec import MapSpec, Place, Positive, Weight


class ActivationSpec(MapSpec, abstract=True):
    """A function of each number by itself. A subclass writes `__call__`; its module is `Activation`, or one that learns."""

    by_result: ClassVar[bool] = False  # whether its result alone says its gradient

    def __call__(self, x: Tensor) -> Tensor:
        """The function of x, of the same shape."""
        raise TypeError(f"{self.kind} is an activation without a function; give it a __call__")


class Activation(Part[ActivationSpec]):
    spec: ActivationSpec

    def forward(self, x: Tensor) -> Tensor:
        """The function of x [batch, token, width], of the same shape."""
        return self.spec(x)


class Identity(ActivationSpec):
    def __call__(self, x: Tensor) -> Tensor:
        return x


class ReLU(ActivationSpec):
    by_result: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x)


class ReLU2(ActivationSpec):
    """Squared ReLU: So et al. 2021, arXiv:2109.08668."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class GELU(ActivationSpec):
    """Hendrycks & Gimpel 2016, arXiv:1606.08415: x·Φ(x) by erf, its tanh approximation, or x·σ(1.702 x)."""

    form: Literal["erf", "tanh", "quick"] = "erf"

    def __call__(self, x: Tensor) -> Tensor:
        if self.form == "quick":
            return x * torch.sigmoid(1.702 * x)
        return F.gelu(x, approximate="tanh" if self.form == "tanh" else "none")


class SiLU(ActivationSpec):
    """x·σ(x), also called swish."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Swish(ActivationSpec):
    """x·σ(βx): Ramachandran et al. 2017, arXiv:1710.05941."""

    beta: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Sigmoid(ActivationSpec):
    def __call__(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class Tanh(ActivationSpec):
    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class ELU(ActivationSpec):
    """Clevert et al. 2015, arXiv:1511.07289."""

    alpha: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)


class SELU(ActivationSpec):
    """Klambauer et al. 2017, arXiv:1706.02515."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.selu(x)


class Softplus(ActivationSpec):
    """ln(1 + e^(βx)) / β."""

    beta: Positive = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return F.softplus(x, beta=self.beta)


class XIELU(ActivationSpec):
    """α x² + βx above 0 and α' (e^min(x, eps) - 1 - x) + βx below, both α learned: Huang & Schlag 2024, arXiv:2411.13010.

    α = softplus(p), α' = β + softplus(n); p and n are what is stored.
    """

    beta: Positive = 0.5
    eps: float = -1e-6
    start: Positive = 0.8  # of α and of α', above beta

    def __post_init__(self) -> None:
        self.require("start", self.start > self.beta, f"must be above beta = {self.beta}, which α' is never below")

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        starts = {"positive": self.start, "negative": self.start - self.beta}
        return {name: Weight((1,), ("alpha",), "gain", fill=math.log(math.expm1(x))) for name, x in starts.items()}


class LearnedXIELU(Part[XIELU]):
    positive: Tensor
    negative: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The function of x [batch, token, width], of the same shape."""
        beta = self.spec.beta
        above = F.softplus(self.positive) * x * x
        below = (beta + F.softplus(self.negative)) * (torch.expm1(x.clamp(max=self.spec.eps)) - x)
        return torch.where(x > 0, above, below) + beta * x


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """Cap · tanh(x / cap) of each number, which stays within ± cap; None leaves it: Gemma 2, arXiv:2408.00118, section 2."""
    return x if cap is None else cap * (x / cap).tanh()
