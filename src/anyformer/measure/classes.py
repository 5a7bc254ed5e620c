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

from anyformer.costs.hardware.operators import Operator

CLASSES: tuple[str, ...] = ("contraction", "normalisation", "element-wise", "movement", "framework")
# The first that matches the name of an operator; norms first, whatever they are made of.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("normalisation", re.compile(r"(?<!vector_)norm(?!al_|ByRoot_)|softmax|NormByRoot|logsumexp", re.IGNORECASE)),
    (
        "contraction",
        re.compile(r"::(add|b|ba)?(mm|mv|ddbmm)_?$|attention|::linear$|::matmul$|einsum|grouped_mm|outer_op"),
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
INHERITED = ("normalisation",)  # whatever runs inside one of these is part of it

# FLOPs of one number that goes through, forward; a backward pass is counted as twice that. Ivanov et al. count 7 for LayerNorm.
EACH: Mapping[str, int] = {
    "LayerNorm": 7, "RMSNorm": 4, "Add": 1, "Rotary": 3, "ReLU": 1, "SiLU": 5, "GELU": 8, "softmax": 5, "loss": 5,
}  # fmt: skip
UPDATE_FLOPS = 14  # of one parameter in AdamW, its clipping among them


def class_of(name: str) -> str | None:
    """The class of an operator by its name; None where it is none of PyTorch's."""
    return next((kind for kind, pattern in PATTERNS if pattern.search(name)), None)


def seconds_by_class(step: Callable[[], object], device: torch.device, times: int = 3) -> dict[str, float]:
    """The seconds of one step by class, from `times` profiled ones; of a GPU, those of its kernels."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    step()
    with profile(activities=activities) as found:
        for _ in range(times):
            step()
        getattr(torch, device.type).synchronize()
    sums = dict.fromkeys(CLASSES, 0.0)
    for event in found.events() or ():
        microseconds = event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        sums[_class(event)] += microseconds / 1e6 / times
    return sums


def flops_by_class(found: tuple[Operator, ...], *, training: bool, n_params: int) -> dict[str, int]:
    """The FLOPs of one step by class: those of products by the exact count, the others by `EACH`."""
    sums, times = dict.fromkeys(CLASSES, 0), 3 if training else 1
    for o in found:
        n = times * o.times
        if o.kind in ("contraction", "attention"):
            sums["contraction"] += n * o.flops
            if o.kind == "attention" and o.shape is not None:  # a softmax over the pairs that the kernel multiplies
                sums["normalisation"] += n * EACH["softmax"] * (o.flops // (4 * o.shape[2]))
            if o.part == "logits" and training:
                sums["normalisation"] += o.times * EACH["loss"] * o.features
        elif o.kind == "normalisation":
            sums["normalisation"] += n * EACH.get(o.name, 5) * o.features
        elif o.kind in ("activation", "element-wise"):
            gate = 1 if o.name.endswith("gated") else 0
            sums["element-wise"] += n * (EACH.get(o.name.split(" ")[0], 5) + gate) * o.features
    if training:
        sums["element-wise"] += UPDATE_FLOPS * n_params
    return sums


def _class(event: Any) -> str:
    """The class of an event: that of a norm that it runs in, else its own, else that of what called it."""
    own, at = class_of(event.name), event.cpu_parent
    while at is not None:
        above = class_of(at.name)
        if above in INHERITED and "attention" not in event.name:
            return above
        own = own or above
        at = at.cpu_parent
    return own or "framework"
