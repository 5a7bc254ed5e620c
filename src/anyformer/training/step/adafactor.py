"""Adafactor: Adam's step without momentum, of squares of which a matrix keeps the means of its rows and of its columns.

Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.training.cluster.parts import part_as, together


class FactoredAdam(torch.optim.Optimizer):
    """The optimiser of `groups`, of which a parameter's rate is times its number in `scales`.

    Of a tensor that several processes have parts of, each makes the whole step: it goes by means over all of it.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        scales: Mapping[Tensor, float],
        *,
        power: float,
        threshold: float,
        eps: tuple[float, float],
    ) -> None:
        super().__init__(groups, {})
        self.scales, self.power, self.threshold, self.eps = scales, power, threshold, eps

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Of what has a gradient."""
        loss = closure and torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    left = 1 - group["lr"] * group["weight_decay"]
                    self._step(p, together(p.grad), group["lr"] * self.scales[p], left)
        return loss

    def _step(self, p: Tensor, grad: Tensor, rate: float, left: float) -> None:
        """Of one parameter and its whole gradient; so much of it is left by decay."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros(())
            if grad.dim() > 1:
                state["rows"] = grad.new_zeros(*grad.shape[:-1], 1)
                state["columns"] = grad.new_zeros(*grad.shape[:-2], 1, grad.shape[-1])
            else:
                state["squares"] = torch.zeros_like(p)
        state["step"] += 1
        new = float(state["step"]) ** -self.power
        squares = grad.square().add_(self.eps[0])
        if grad.dim() > 1:
            rows = state["rows"].lerp_(squares.mean(-1, True), new)
            columns = state["columns"].lerp_(squares.mean(-2, True), new)
            update = grad * (rows.mean(-2, True) / rows).sqrt() * columns.rsqrt()
        else:
            update = grad * together(state["squares"].lerp_(part_as(p, squares), new)).rsqrt()
        size = _rms(together(p)).clamp_min(self.eps[1]) / (_rms(update) / self.threshold).clamp_min(1.0)
        p.mul_(left).add_(part_as(p, update.mul_(-rate * size)))


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5
