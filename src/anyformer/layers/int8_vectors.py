"""Vectors in 8 bits: up to 32 numbers side by side share a scale, as in GGML's Q8_0. What a cache of keys and values may hold."""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 127
SCALE = torch.bfloat16


def group(width: int) -> int:
    """How many numbers of a vector share a scale: the most up to 32 that divide its width."""
    return next(size for size in range(min(width, 32), 0, -1) if width % size == 0)


def nbytes(width: int) -> int:
    """The bytes of one vector."""
    return width + SCALE.itemsize * (width // group(width))


def packed(x: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 […, width], scales in bfloat16 […, width / group]) of vectors x […, width]: off by half a scale at most."""
    groups = x.unflatten(-1, (-1, group(x.shape[-1]))).float()
    scales = (groups.abs().amax(-1, keepdim=True) / MOST).to(SCALE)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    numbers = (groups / scales.float()).round_().clamp_(-MOST, MOST).to(torch.int8)
    return numbers.flatten(-2), scales[..., 0]


def unpacked(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The vectors […, width] that are held."""
    groups = numbers.unflatten(-1, (scales.shape[-1], -1))
    return (groups * scales.float()[..., None]).flatten(-2).to(dtype)
