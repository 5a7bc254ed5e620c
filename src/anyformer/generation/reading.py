"""What a step asks numbers of, which a recording would not ask again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reading(TorchDispatchMode):
    """Whether operators wait for a device: for numbers that Python is given, that say a result's size, or that leave or come.

    Asked beforehand: a recording that fails leaves PyTorch's allocator, and what it draws, as if it went on.
    """

    reads = False
    supports_higher_order_operators = True  # FlexAttention, which has no overloads

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays so."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not isinstance(func, OpOverload):
            return made
        self.reads |= isinstance(made, bool) or Tag.data_dependent_output in func.tags
        packet = func.overloadpacket
        if packet in INDEXING:  # by flags, which are counted first
            self.reads |= any(each.dtype == torch.bool for each in tree_leaves(args[1]) if isinstance(each, Tensor))
        else:
            self.reads |= Tag.dynamic_output_shape in func.tags
        if packet in COPYING:
            devices = {each.device for each in tree_leaves((args, made)) if isinstance(each, Tensor)}
            self.reads |= packet is ATEN.lift_fresh or len(devices) > 1
        return made


ATEN = torch.ops.aten
INDEXING = (ATEN.index, ATEN.index_put, ATEN.index_put_)
COPYING = (ATEN.to, ATEN._to_copy, ATEN.copy_, ATEN.lift_fresh)  # the last of what Python has
