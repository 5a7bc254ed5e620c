"""Recomputation: what a layer makes is made again in the backward pass instead of kept. Chen et al. 2016, arXiv:1604.06174.

Of attention alone, "selective": Korthikanti et al. 2022, arXiv:2205.05198, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.layers.tokens import ForwardContext


def checkpointed(step: Callable[..., Any], *tensors: Tensor | None, context: ForwardContext) -> Any:
    """step(*tensors), of which only the tensors stay until the backward pass; dropout is drawn as it was."""
    return checkpoint(step, *tensors, use_reentrant=False, preserve_rng_state=context.dropout is not None)


def checkpointed_layer(step: Callable[[Tensor, ForwardContext], Any], state: Tensor, context: ForwardContext) -> Any:
    """step(state [batch, token, width], context) likewise; what layers share the first time makes and the second finds."""
    known, compiling = dict(context.memo), torch.compiler.is_compiling()
    passes = iter((context,)) if not compiling else iter(())

    def run(state: Tensor, memory: Tensor | None) -> Any:
        # The second time starts from what the first found in the memo: autograd asks for the same steps again.
        here = next(passes, None) or replace(context, memo=dict(known), again=not compiling)
        return step(state, replace(here, memory=memory, recompute="none"))

    return checkpointed(run, state, context.memory, context=context)
