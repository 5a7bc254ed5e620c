"""Muon: steps of matrices are their momentum made orthogonal, steps of all else are Adam's.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; as large as Adam's steps: Liu et al. 2025, arXiv:2502.16982,
section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.training.cluster.parts import part_as, together

# X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X moves singular values from above 0 to about 1, whatever the matrix.
A, B, C = 3.4445, -4.7750, 2.0315
RMS = 0.2  # of a step's numbers, as Adam's steps have it


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """Matrices […, n, m] with their singular vectors, and singular values of about 1: from .7 to 1.2 after five iterations.

    On a GPU in bfloat16, as published.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(1e-7)
    for _ in range(iterations):
        squares = x @ x.mT
        x = A * x + (B * squares + C * squares @ squares) @ x
    return (x if wide else x.mT).to(matrices.dtype)


class MuonAdam(torch.optim.Adam):
    """The optimiser of `groups`, of which `maps` are matrices […, d_out, d_in] that features pass through.

    Their rate is times the number beside them. Of a matrix that several processes have parts of, each makes the whole orthogonal.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        maps: Mapping[Tensor, float],
        *,
        momentum: float,
        iterations: int,
        **adam: Any,
    ) -> None:
        super().__init__(groups, decoupled_weight_decay=True, **adam)
        self.maps, self.momentum, self.iterations = maps, momentum, iterations

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Adam's own step is of what has a gradient when it is called."""
        loss = closure and torch.enable_grad()(closure)()
        taken: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p in self.maps and p.grad is not None:
                    self._step(p, p.grad, group["lr"], group["weight_decay"])
                    taken[p], p.grad = p.grad, None
        super().step()
        for p, grad in taken.items():
            p.grad = grad
        return loss

    def _step(self, p: Tensor, grad: Tensor, lr: float, decay: float) -> None:
        state = self.state[p]
        if not state:
            state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(p)
        state["step"] += 1
        momentum = state["momentum"].mul_(self.momentum).add_(grad)
        update = orthogonal(together(grad.add(momentum, alpha=self.momentum)), self.iterations)
        size = self.maps[p] * RMS * max(p.shape[-2:]) ** 0.5
        p.mul_(1 - lr * decay).add_(part_as(p, update), alpha=-lr * size)
