"""Rows shared out over processes next to each other, a stretch of the tokens to each: context parallelism.

Weights are as under data parallelism, and a process's gradient is what its own tokens give, to everybody's keys and values too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from anyformer.model import Transformer
from anyformer.training.cluster.world import Group, World, groups_of


class GroupStretches(Group):
    """The processes of a group, as `Stretches`."""

    def gather(self, x: Tensor) -> Tensor:
        """All tensors [rank, …] of one shape."""
        found = x.new_empty(self.size, *x.shape)
        dist.all_gather(list(found), x, group=self.group)
        return found

    def scatter(self, x: Tensor) -> Tensor:
        """This rank's of the sum over ranks."""
        found = torch.empty_like(x[0])
        dist.reduce_scatter(found, list(x), group=self.group)
        return found

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Send tensors to ranks, and receive into others from ranks, all at once."""
        ways = ((dist.isend, sends), (dist.irecv, receives))
        each = [dist.P2POp(way, x, group=self.group, group_peer=rank) for way, those in ways for rank, x in those]
        for work in dist.batch_isend_irecv(each) if each else ():
            work.wait()


def stretch_rows(model: Transformer, world: World) -> None:
    """Have a model's passes without a cache be of this process's stretch of the rows that they are given."""
    if world.cp > 1:
        model.stretches = GroupStretches(of_row(world))
        for head in model.heads:
            head.stretches = model.stretches


def of_row(world: World) -> dist.ProcessGroup:
    """The processes that share this one's rows."""
    cp, tp = world.cp, world.tp
    firsts = (row + part for row in range(0, world.size, cp * tp) for part in range(tp))
    return groups_of(tuple(range(first, first + cp * tp, tp) for first in firsts), dist.group.WORLD)[world.rank]
