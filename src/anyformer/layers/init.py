"""How weights start: a distribution for each role, as data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.spec import (
    Exponent,
    HeadSpec,
    InitSpec,
    ModelSpec,
    NotNegative,
    Place,
    Positive,
    ScaleSpec,
    Spec,
    Weight,
    in_turn,
    tensors,
)


class DistributionSpec(Spec, abstract=True):
    """Where the numbers of one weight are drawn from."""

    def std(self, weight: Weight, n_branches: int) -> float:
        """The standard deviation of one number; `n_branches` write to the weight's stream."""
        raise TypeError(f"{self.kind} does not say its standard deviation")

    def fill(self, tensor: Tensor, std: float, generator: torch.Generator) -> None:
        """Draw the numbers in place."""
        tensor.normal_(0.0, std, generator=generator)


class Normal(DistributionSpec):
    """A normal distribution of deviation std · fan_in^fan_in_power · n_branches^depth_power."""

    scale: NotNegative = 0.02
    fan_in_power: Exponent = 0.0
    depth_power: Exponent = 0.0  # -0.5: GPT-2's 1/√(number of branches) for what writes to the stream

    def std(self, weight: Weight, n_branches: int) -> float:
        return self.scale * fans(weight)[0] ** self.fan_in_power * n_branches**self.depth_power


class Xavier(DistributionSpec):
    """Uniform with variance 2 gain² n_branches^(2 depth_power) / (fan_in + fan_out): Glorot & Bengio 2010."""

    gain: NotNegative = 1.0
    depth_power: Exponent = 0.0

    def std(self, weight: Weight, n_branches: int) -> float:
        return self.gain * n_branches**self.depth_power * math.sqrt(2 / sum(fans(weight)))

    def fill(self, tensor: Tensor, std: float, generator: torch.Generator) -> None:
        tensor.uniform_(-std * math.sqrt(3), std * math.sqrt(3), generator=generator)


def fans(weight: Weight) -> tuple[int, int]:
    """(fan_in, fan_out): how many numbers one output is made of, and to how many outputs one input goes."""
    shape = weight.shape
    if weight.axes[-1] == "tokens":  # a kernel, as torch.nn.init counts it
        return math.prod(shape[1:]), math.prod(shape) // shape[1]
    return shape[-1], math.prod(shape[-2:-1])


class ByRole(InitSpec):
    """One distribution for tables, one for matrices, one for matrices that write to the stream; biases 0, gains 1."""

    table: DistributionSpec = Normal()
    matrix: DistributionSpec = Normal()
    output: DistributionSpec | None = None  # None: as matrix
    inner: DistributionSpec | None = None  # of values and of a feed-forward's first matrices; None: as matrix
    query: DistributionSpec | None = None  # of queries (T5, whose scores are not scaled); None: as matrix

    def of(self, weight: Weight) -> DistributionSpec:
        """The distribution of a weight that has no constant to start from."""
        return getattr(self, weight.role, None) or self.matrix


class MuP(ByRole):
    """Maximal update parametrisation for Adam: one learning rate, and one start, serve every width.

    Matrices start with a deviation of 1/√fan_in and learn at base / d_model of the recipe's rate; tables, gains and biases
    start and learn alike at every width; logits are multiplied by base / d_model, but for a head that makes vectors of a width
    of its own first, since its table is as wide at every width. Heads keep their width: where that grows, attention's `scale`
    is 1 / head_dim. Yang et al. 2022, arXiv:2203.03466, table 8.
    """

    base: Positive = 256.0  # the width that has the recipe's own rate for all weights
    matrix: DistributionSpec = Normal(scale=1.0, fan_in_power=-0.5)

    def begun(self, model: ModelSpec) -> ModelSpec:
        logits = ScaleSpec(factor=self.base, power=-1.0)

        def width(head: HeadSpec, d_model: int) -> int:
            return in_turn(head.transform, Place(d_model).at(d_model))[1].shape[-1]

        d_model = model.stack.d_model
        grows = [head.table is not None and width(head, 2 * d_model) > width(head, d_model) for head in model.heads]
        heads = tuple(head.but(scale=logits) if own else head for head, own in zip(model.heads, grows, strict=True))
        return model.but(init=self, heads=heads)

    def rate(self, weight: Weight, d_model: int) -> float:
        grows = weight.role not in ("table", "bias", "gain") and not FIXED.issuperset(weight.axes[1:])
        return self.base / d_model if grows else 1.0


def distinct(weight: Weight, generator: torch.Generator) -> Tensor:
    """Whole numbers, no two alike along the last axis of the weight's shape, all choices as likely."""
    assert weight.below is not None
    return torch.rand(*weight.shape[:-1], weight.below, generator=generator).topk(weight.shape[-1], -1).indices


FIXED = frozenset({"one", "rank", "tokens"})  # axes that are as long at every width: of kernels, of low ranks


def initialise(
    model: nn.Module, spec: ModelSpec, seed: int, put: Callable[[Tensor, Tensor], object] = Tensor.copy_
) -> None:
    """Set every parameter of a built model; the same numbers for the same seed, in the order of the state dict.

    `put` copies numbers, of its shape or to be expanded to it, into a parameter. What a model has a part of is drawn whole.
    """
    init = spec.init
    if not isinstance(init, ByRole):
        raise SpecError(f"Model.init = {init.kind} says no distribution by role; use ByRole")
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    of_encoder = spec.encoder.n_branches if spec.encoder else 0
    with torch.no_grad():
        for path, weight in tensors(spec, Place()):
            n_branches = of_encoder if path.startswith("encoder.") else spec.stack.n_branches
            numbers = _drawn(weight, init, n_branches, generator)
            if (target := parameters.get(path)) is not None:
                put(target, numbers)


def _drawn(weight: Weight, init: ByRole, n_branches: int, generator: torch.Generator) -> Tensor:
    """What a weight starts with, whole, or what is expanded to it."""
    if weight.fill is not None:
        return torch.tensor(weight.fill)
    if weight.below is not None:
        return distinct(weight, generator)
    drawn = torch.empty(weight.shape)
    distribution = init.of(weight) if weight.std is None else Normal(scale=weight.std)
    distribution.fill(drawn, distribution.std(weight, n_branches), generator)
    return drawn
