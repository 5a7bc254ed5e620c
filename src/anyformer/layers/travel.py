"""Tokens that travel to the processes which have the experts that they chose, and back: expert parallelism.

Lepikhin et al. 2020, arXiv:2006.16668, section 3.2. Each process has tokens of its own and some of the experts, in the order of
ranks. A row is sent for each choice, as many to each process as chose its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyformer.layers.execution import as_given, product_dtype

# (rows, which expert of those here [row, 1], weights) -> what it makes
Served = Callable[[Tensor, Tensor, Tensor], Tensor]


class Travel(Protocol):
    """The processes that share experts, as one of them sees them. All make the same calls in the same order."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def n_experts(self) -> int:
        """How many of the experts each has."""
        ...

    def loads(self, expert: Tensor) -> tuple[list[int], list[int]]:
        """(how many rows go to each process, how many come from each), of the expert of each row here; -1 is nobody's."""
        ...

    def exchange(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """The rows [received, …] that others have for this process, by rank, of those [sent, …] that it has for them."""
        ...


def travelling(x: Tensor, chosen: Tensor, weights: Tensor, travel: Travel, served: Served) -> Tensor:
    """What experts make of x [token, d_model], wherever they are; chosen and weights are [token, top_k], -1 chooses none."""
    x = x.to(product_dtype(x))
    expert, order = chosen.flatten().sort(stable=True)
    sends, receives = travel.loads(expert)
    first = len(expert) - sum(sends)  # behind the choices that nobody serves
    expert, order = expert[first:], order[first:]
    token = order // chosen.shape[1]
    rows = _Travelled.apply(x[token], sends, receives, travel)
    own = travel.exchange(expert % travel.n_experts, sends, receives)[:, None]
    made = served(rows, own, torch.ones_like(own, dtype=x.dtype))
    back = _Travelled.apply(made, receives, sends, travel)
    with as_given(back):
        share = weights.flatten()[order, None].to(back.dtype)
        return torch.zeros_like(x, dtype=back.dtype).index_add(0, token, back * share)


class _Travelled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sends: Sequence[int], receives: Sequence[int], travel: Travel) -> Tensor:
        """[received, width] of rows [sent, width]."""
        ctx.sends, ctx.receives, ctx.travel = sends, receives, travel
        return travel.exchange(rows, sends, receives)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.travel.exchange(grads[0], ctx.receives, ctx.sends), None, None, None
