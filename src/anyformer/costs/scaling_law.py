"""The loss of a model by its size and its text: L(N, D) = E + A / N^α + B / D^β, and what it says is the best use of arithmetic.

Hoffmann et al. 2022, arXiv:2203.15556, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.errors import UsageError

FLOPS_A_PARAMETER = 6.0  # and token (Kaplan et al. 2020, arXiv:2001.08361)


@dataclass(frozen=True)
class ScalingLaw:
    """E + A / N^α + B / D^β, in nats a token, of N parameters and D tokens."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    objective: float = 0.0  # the summed Huber loss at the fit

    def loss(self, n_params: float, tokens: float) -> float:
        """Nats a token."""
        return self.E + self.A * n_params**-self.alpha + self.B * tokens**-self.beta

    def _held(self) -> None:
        if not (self.A > 0 and self.B > 0 and self.alpha > 0 and self.beta > 0):
            raise UsageError(f"{self} has no optimum; A, B, alpha and beta must be above 0")

    @property
    def _root(self) -> float:
        self._held()
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))

    @property
    def exponent(self) -> float:
        """By which the optimal parameters go with FLOPs: ∝ FLOPs^exponent. Raises what `optimum` does."""
        self._held()
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """(parameters, tokens) of the least loss for 6 N D FLOPs. Raises UsageError where there is none."""
        both = self.alpha + self.beta
        n = self._root * (flops / FLOPS_A_PARAMETER) ** (self.beta / both)
        return n, flops / FLOPS_A_PARAMETER / n

    def optimal_tokens(self, n_params: float) -> float:
        """Tokens for which a model of this size is the optimum of its FLOPs. Raises what `optimum` does."""
        return (n_params / self._root) ** ((self.alpha + self.beta) / self.beta) / n_params


HOFFMANN = ScalingLaw(E=1.69, A=406.4, B=410.7, alpha=0.3392, beta=0.2849)  # with the digits of its source
# To the same runs: arXiv:2404.10102, table 1.
BESIROGLU = ScalingLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)
