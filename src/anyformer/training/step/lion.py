"""Lion: each number moves by the rate, the way that a mixture of its gradient and its momentum points.

Chen et al. 2023, arXiv:2302.06675, program 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class SignedMomentum(torch.optim.Optimizer):
    """The optimiser of `groups`; betas are of the sign's mixture and of the momentum, all that is kept."""

    def __init__(self, groups: Sequence[dict[str, Any]], *, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Of what has a gradient."""
        loss = closure and torch.enable_grad()(closure)()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, beta1).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - beta2)
        return loss
