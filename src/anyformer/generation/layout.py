"""Weights laid out for decoding: one token's products are as fast as matrices are read; fewer, larger ones read faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from anyformer.layers.experts import StackedLinear
from anyformer.layers.feed_forward import GatedFeedForward
from anyformer.layers.gqa import GQA
from anyformer.layers.head import Unembedding
from anyformer.layers.held import HeldWeight
from anyformer.layers.linear import Linear, Together
from anyformer.layers.mla import MLA
from anyformer.layers.part import is_plain
from anyformer.layers.reordered import can_reorder, in_blocks
from anyformer.model import Transformer

LEAST = 1 << 20  # numbers of a matrix from which on blocks save more than their operator costs


def lay_out_for_decoding(model: Transformer, *, several: bool = False, compiled: bool = False) -> Transformer:
    """Let q, k and v, and gate and up, lie together, and float32 matrices as products read them fastest; return the model.

    It happens in place: names, shapes and values stay, and nobody holds a copy. Where a pass has `several` rows or tokens
    (texts at once, beams, guesses), large matrices lie in blocks (`layers/reordered.py`) and get no gradient: four to sixteen
    rows take half the time, the prompt five sixths. Otherwise wide ones lie column by column, and training can go on, but for
    PyTorch's fused optimisers, which `Trainer` then leaves: they take a gradient to lie as its parameter does. A product
    with one vector then adds up long columns, which CPU libraries do at up to twice the speed of as many short dot products
    (AMD Zen 3, MKL: 12 to 23 GB/s). A step that is `compiled` reads rows, at a memory's speed: nothing is moved.
    """
    if compiled or any(isinstance(each, HeldWeight) for each in model.parameters()):
        return model  # which lie as their operators read them
    joined: set[nn.Module] = set()
    for module in model.modules():
        maps = (module.q, module.k, module.v) if isinstance(module, GQA) else ()
        maps = (module.gate, module.up) if isinstance(module, GatedFeedForward) else maps
        if isinstance(module, GQA | GatedFeedForward) and (together := _together(maps, several)):
            module.together = together
            joined.update(maps)
    # A token's query is folded with these two matrices themselves.
    folded = {each for module in model.modules() if isinstance(module, MLA) for each in (module.k, module.v)}
    for module in model.modules():
        if type(module) is Linear and module not in joined:
            _lay_out(module, several and module not in folded)
        elif isinstance(module, StackedLinear) and not several:
            _lay_out(module, False)  # by columns; of several rows an expert has two or three, which read rows faster
    for head in model.heads:
        # A tied table is looked up by rows as well, and stays.
        if is_plain(head.table, Unembedding):
            _lay_out(head.table, several)
    return model


def _together(maps: Sequence[nn.Module], several: bool) -> Together | None:
    linear = [each for each in maps if type(each) is Linear]
    if len(linear) < len(maps) or not Together.can(linear):
        return None
    together = Together(linear)
    if several and _in_blocks(together.weight):
        together.lie_in_blocks(linear)
    else:
        together.lie_by_columns(linear, _by_columns(together.weight))
    return together


def _lay_out(module: nn.Module, several: bool) -> None:
    weight: Any = module.weight
    if several and _in_blocks(weight):
        module.weight = nn.Parameter(in_blocks(weight.data), requires_grad=False)
    elif _by_columns(weight):
        weight.data = weight.data.mT.contiguous().mT


def _in_blocks(weight: torch.Tensor) -> bool:
    return weight.numel() >= LEAST and can_reorder(weight)


def _by_columns(weight: torch.Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.is_cpu and weight.shape[-2] > weight.shape[-1]
