"""Weights laid out for decoding: one token's products are as fast as matrices are read; fewer, larger ones read faster."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.layers.experts import StackedLinear
from anyformer.layers.feed_forward import GatedFeedForward
from anyformer.layers.gqa import GQA
from anyformer.layers.head import Unembedding
from anyformer.layers.held import HeldWeight
from anyformer.layers.linear import Linear, Together, lay
from anyformer.layers.mla import MLA
from anyformer.layers.packed import PackedWeight
from anyformer.layers.part import is_plain
from anyformer.layers.reordered import Reordered, can_reorder, in_blocks, whole
from anyformer.model import Transformer

LEAST = 1 << 20  # numbers of a matrix from which on blocks save more than their operator costs


def lay_out_for_decoding(model: Transformer, *, several: bool = False, compiled: bool = False) -> Transformer:
    """Let q, k and v, and gate and up, lie together, and float32 matrices as products read them fastest; return the model.

    It happens in place: names, shapes and values stay, and nobody holds a copy. Where a pass has `several` rows or tokens
    (texts at once, beams, guesses), large matrices lie in blocks (`layers/reordered.py`) and get no gradient: four to sixteen
    rows take half the time, the prompt five sixths. Those of int8 do for one row too, where products of integers are faster
    than PyTorch's operator, and as exact as float32's (`layers/int8_blocks.py`). Otherwise wide ones lie column by column, and
    training can go on, but for PyTorch's fused optimisers, which `Trainer` then leaves: they take a gradient to lie as its
    parameter does. A product with one vector then adds up long columns, which CPU libraries do at up to twice the speed of as
    many short dot products (AMD Zen 3, MKL: 12 to 23 GB/s). A step that is `compiled` reads rows, at a memory's speed: nothing
    is moved.
    """
    if compiled or any(isinstance(each, Reordered) for each in model.parameters()):
        return model
    joined: set[nn.Module] = set()
    for module in model.modules():
        maps = (module.q, module.k, module.v) if isinstance(module, GQA) else ()
        maps = (module.gate, module.up) if isinstance(module, GatedFeedForward) else maps
        linear = [each for each in maps if type(each) is Linear]
        if isinstance(module, GQA | GatedFeedForward) and len(linear) == len(maps) and Together.can(linear):
            module.together = Together(linear, partial(_arranged, several=several))
            joined.update(linear)
    # A token's query is folded with these two matrices themselves.
    folded = {each for module in model.modules() if isinstance(module, MLA) for each in (module.k, module.v)}
    # Tied tables are looked up by rows as well, and stay.
    tables = {head.table for head in model.heads if is_plain(head.table, Unembedding)}
    for module in model.modules():
        if (type(module) is Linear and module not in joined) or module in tables:
            weight: Any = module.weight
            lay(module, by_columns(weight.data) if module in folded else _arranged(weight.data, several))
        elif isinstance(module, StackedLinear) and not several:
            # Of several rows an expert has two or three, which read rows faster.
            lay(module, by_columns(module.weight.data))
    return model


def _arranged(weight: Tensor, several: bool) -> Tensor:
    """The same numbers, as products read them fastest."""
    if weight.numel() < LEAST:
        return by_columns(weight)
    if isinstance(weight, PackedWeight):
        blocks = weight.scheme.in_blocks(weight.held) if weight.dim() == 2 else None
        return weight if blocks is None else whole(blocks)
    return in_blocks(weight) if several and can_reorder(weight) else by_columns(weight)


def by_columns(weight: Tensor) -> Tensor:
    """Column by column, where it is of float32 on a CPU and wide."""
    wide = weight.dtype == torch.float32 and weight.is_cpu and weight.shape[-2] > weight.shape[-1]
    return weight.mT.contiguous().mT if wide and not isinstance(weight, HeldWeight) else weight
