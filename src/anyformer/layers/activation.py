"""The activations of the field, each a value that is also a function."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.part import Part
from anyformer.spec import MapSpec, Positive


class ActivationSpec(MapSpec, abstract=True):
    """A function of each number by itself. A subclass writes `__call__`; its module is `Activation`."""

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
