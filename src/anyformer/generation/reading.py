"""What a step asks numbers of, which a recording would not ask again."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HostReads(TorchDispatchMode):
    """Whether operators wait for a device: for numbers that Python is given, that say a result's size, or that leave or come.

    Asked beforehand: a recording that fails leaves PyTorch's allocator, and what it draws, as if it went on.
    """

    reads = False
    supports_higher_order_operators = True  # FlexAttention, which has no overloads

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays so."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: it would be imported for that, a second or more."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        self.see(func, args, kwargs, made)
        return made

    def see(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Take note of what an operator made."""
        if not isinstance(func, OpOverload):
            return
        packet = func.overloadpacket
        self.reads |= waits(func) or isinstance(made, bool)
        if packet in INDEXING:  # by flags, which are counted first
            self.reads |= any(each.dtype == torch.bool for each in tree_leaves(args[1]) if isinstance(each, Tensor))
        elif packet in COPYING:
            devices = {each.device for each in tree_leaves((args, made)) if isinstance(each, Tensor)}
            self.reads |= len(devices) > 1


@cache
def waits(func: OpOverload) -> bool:
    """Whether an operator does whatever it is given; the last reads what Python has."""
    packet = func.overloadpacket
    sized = Tag.dynamic_output_shape in func.tags and packet not in INDEXING
    return sized or Tag.data_dependent_output in func.tags or packet is ATEN.lift_fresh


ATEN = torch.ops.aten
INDEXING = (ATEN.index, ATEN.index_put, ATEN.index_put_)
COPYING = (ATEN.to, ATEN._to_copy, ATEN.copy_)
