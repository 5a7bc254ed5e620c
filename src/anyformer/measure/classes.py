"""Where time goes by class of operator, by PyTorch's profiler: products, normalisation, element-wise, movement, the rest.

The classes are those of Ivanov et al. 2020, arXiv:2007.00072, table 1, who found that 0.2 % of BERT's FLOPs, its
normalisation, take a quarter of its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from anyformer.observation.operators import Operator
from anyformer.screen import muted

CLASSES: tuple[str, ...] = ("contraction", "normalisation", "element-wise", "movement", "framework")
# The first that matches the name of an operator; norms first, whatever they are made of.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("normalisation", re.compile(r"(?<!vector_)norm(?!al_|ByRoot_)|softmax|NormByRoot|logsumexp", re.IGNORECASE)),
    (
        "contraction",
        re.compile(r"::(add|b|ba)?(mm|mv|ddbmm)_?$|pack_mm|attention|::linear$|::matmul$|einsum|grouped_mm|outer_op"),
    ),
    (
        "movement",
        re.compile(
            r"::(_to_copy|copy_|to|cat|stack|embedding|embedding_dense_backward|_embedding_bag\w*|index\w*|_?index_put\w*|"
            r"gather|scatter\w*|fill_|zero_|zeros\w*|empty\w*|clone|contiguous|narrow|slice\w*|split\w*|transpose|t|view|"
            r"_unsafe_view|reshape|expand|permute|as_strided|select\w*|unsqueeze|squeeze|repeat\w*|flip|roll|pad|"
            r"constant_pad_nd|sort|topk|searchsorted|arange|detach\w*|resize_|alias|unbind|unflatten|flatten|chunk|"
            r"ones\w*|full\w*|lift_fresh|set_|item|_local_scalar_dense|is_nonzero)$|Memcpy|Memset"
        ),
    ),
    ("element-wise", re.compile(r"^aten::|^void |elementwise|vectorized", re.IGNORECASE)),
)

# FLOPs of one number in the result of what is no product. Ivanov et al. count 7 for LayerNorm.
EACH: Mapping[str, int] = {"normalisation": 7, "element-wise": 1, "movement": 0}
FUNCTIONS, FUNCTION_FLOPS = re.compile("gelu|silu|exp|tanh|sigmoid|erf|sin|cos|log|pow|sqrt"), 5
SOFTMAX_FLOPS = 5  # of one weight of attention
UPDATE_FLOPS = 14  # of one parameter in AdamW, its clipping among them


def class_of(name: str) -> str | None:
    """The class of an operator by its name; None where it is none of PyTorch's."""
    return next((kind for kind, pattern in PATTERNS if pattern.search(name)), None)


def shares_of_time(step: Callable[[], object], device: torch.device, times: int = 3) -> dict[str, float]:
    """The share of a step's time by class, from `times` profiled ones; of a GPU, that of its kernels.

    Shares, since the profiler itself takes time, several times that of a small step.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    step()
    with muted(), profile(activities=activities, acc_events=True) as found:
        for _ in range(times):
            step()
        getattr(torch, device.type).synchronize()
    sums = dict.fromkeys(CLASSES, 0.0)
    for event in found.events() or ():
        microseconds = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        sums[_class(event)] += microseconds
    return {name: microseconds / sum(sums.values()) for name, microseconds in sums.items()}


def flops_by_class(found: tuple[Operator, ...], *, n_updated: int = 0) -> dict[str, int]:
    """The FLOPs of one step by class: those of products as they were observed, the others by the numbers that they give.

    `n_updated`: parameters that the step updates.
    """
    sums = dict.fromkeys(CLASSES, 0)
    for o in found:
        if o.shape is not None:
            sums["contraction"] += o.times * o.flops
            if o.kind == "attention":  # a softmax over the pairs that the kernel multiplies
                sums["normalisation"] += o.times * SOFTMAX_FLOPS * (o.flops // (4 * o.shape[2]))
        else:
            each = FUNCTION_FLOPS if o.kind == "element-wise" and FUNCTIONS.search(o.name) else EACH[o.kind]
            sums[o.kind] += o.times * each * o.numel
    sums["element-wise"] += UPDATE_FLOPS * n_updated
    return sums


def _class(event: Any) -> str:
    """The class of an event: that of a norm that it runs in, else its own, else that of what called it."""
    own, at = class_of(event.name), event.cpu_parent
    while at is not None:
        above = class_of(at.name)
        if above == "normalisation" and "attention" not in event.name:
            return above
        own = own or above
        at = at.cpu_parent
    return own or "framework"
