"""Optimisers as data: the rule of a step at the recipe's rates. `training.step.rules` makes PyTorch's optimiser of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from anyformer.spec import Few, NotNegative, Positive, Rate, ScaleSpec, Spec


class OptimizerSpec(Spec, abstract=True):
    """`lr` is the schedule's peak: a number, or a law of d_model."""

    lr: Positive | ScaleSpec = 1e-3

    def peak(self, d_model: int) -> float:
        """The peak learning rate of a model of this width."""
        return self.lr.value(d_model) if isinstance(self.lr, ScaleSpec) else self.lr

    def decay(self, share: float) -> float:
        """PyTorch's `weight_decay` of matrices that learn at a share of the rate."""
        return 0.0

    def numbers_kept(self, shape: Sequence[int], is_map: bool) -> int:
        """The numbers in float32 that are kept of a tensor [*shape] between steps; a map is a matrix that features pass."""
        return 2 * prod(shape)

    def become(self, rule: type[OptimizerSpec]) -> OptimizerSpec:
        """Another rule, with what was chosen here of what both inherit; what was not is as that rule has it."""
        usual, bases = type(self)().values(), [base for base in type(self).__mro__ if issubclass(rule, base)]
        both = {name for base in bases if issubclass(base, OptimizerSpec) for name in base.types()}
        return rule(**{name: value for name, value in self.values().items() if name in both and value != usual[name]})


class DecoupledSpec(OptimizerSpec, abstract=True):
    """Decoupled decay, lr · weight_decay each step, of matrices alone: never of biases, gains and tables.

    Loshchilov & Hutter 2017, arXiv:1711.05101.
    """

    weight_decay: NotNegative = 0.1

    def decay(self, share: float) -> float:
        """Where they learn slower they decay no less."""
        return self.weight_decay / share


class MomentsSpec(OptimizerSpec, abstract=True):
    """Averages of gradients and of their squares; a step is the one over the root of the other."""

    beta1: Rate = 0.9
    beta2: Rate = 0.95
    eps: Positive = 1e-8


class Adam(MomentsSpec):
    """Kingma & Ba 2014, arXiv:1412.6980. To the clipped gradient of a matrix, not of others, `l2` times the matrix is added."""

    l2: NotNegative = 0.0

    def decay(self, share: float) -> float:
        return self.l2


class AdamW(MomentsSpec, DecoupledSpec):
    """Adam with decoupled decay (algorithm 2 there)."""


class Muon(MomentsSpec, DecoupledSpec):
    """Momentum made orthogonal, for matrices that features pass through, experts' too; AdamW for routers, tables and all else.

    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. A step's numbers have a root mean square of .2 of the rate,
    as AdamW's do, so that its rates and decay suit (Liu et al. 2025, arXiv:2502.16982, section 2.2).
    """

    momentum: Rate = 0.95  # Nesterov's
    iterations: Few = 5  # of the polynomial that moves singular values to about 1

    def numbers_kept(self, shape: Sequence[int], is_map: bool) -> int:
        return prod(shape) if is_map else super().numbers_kept(shape, is_map)


class Lion(DecoupledSpec):
    """Each number moves by the rate, by the sign of a mixture of its gradient and momentum. Chen et al. 2023, arXiv:2302.06675.

    Steps are larger than AdamW's: its rates are 3 to 10 times as low, and its decay as much higher (section 5).
    """

    lr: Positive | ScaleSpec = 1e-4
    beta1: Rate = 0.9  # the momentum's share in the sign
    beta2: Rate = 0.99  # the momentum's own
    weight_decay: NotNegative = 1.0

    def numbers_kept(self, shape: Sequence[int], is_map: bool) -> int:
        return prod(shape)


class Adafactor(DecoupledSpec):
    """Adam's step without momentum, of squares that are kept by row and by column. Shazeer & Stern 2018, arXiv:1804.04235.

    The rate is a share of a tensor's root mean square, which counts for eps2 at least; at step t the average of squares keeps
    1 - t^-power of itself; an update whose root mean square is above the threshold is scaled down to that (algorithms 4 to 6).
    """

    lr: Positive | ScaleSpec = 1e-2
    weight_decay: NotNegative = 0.0
    power: Rate = 0.8
    threshold: Positive = 1.0
    eps1: Positive = 1e-30  # is added to squares
    eps2: Positive = 1e-3

    def numbers_kept(self, shape: Sequence[int], is_map: bool) -> int:
        *several, n, m = 1, 1, *shape
        return prod(several) * (n + m) if len(shape) > 1 else prod(shape)


OPTIMIZERS: Mapping[str, type[OptimizerSpec]] = {
    "adam": Adam,
    "adamw": AdamW,
    "muon": Muon,
    "lion": Lion,
    "adafactor": Adafactor,
}
