"""MXFP4 weights, as gpt-oss is released: 32 numbers of 4 bits share a power of two; unpacked as they are read.

Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification" v1.0, sections 5.2, 5.3.3 and 5.4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.hub.weights import Weights

BLOCKS, SCALES = "_blocks", "_scales"
SETTING, METHOD = "quantization_config", "quant_method"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1: a sign, two bits of exponent, one of mantissa
BIAS, NOT_A_NUMBER = 127, 255  # E8M0: an exponent without a sign


def unpacked(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers [..., 32 n] of uint8 blocks [..., n, 16], the lower four bits first, and uint8 scales [..., n].

    bfloat16 and float32 hold each of them exactly, but for those of 2^128 and more, which are infinite.
    """
    levels = torch.tensor([*MAGNITUDES, *(-level for level in MAGNITUDES)])
    pairs = torch.stack((levels.repeat(16), levels.repeat_interleave(16)), -1)  # of each byte: [256, 2]
    power = torch.ldexp(torch.ones(256), torch.arange(256) - BIAS)
    power[NOT_A_NUMBER] = float("nan")
    found = torch.empty((*blocks.shape[:-2], blocks.shape[-2] * 32), dtype=dtype)
    for out, block, scale in zip(found, blocks, scales, strict=True):  # one expert at a time, to stay small
        numbers = pairs[block.int()].flatten(-2) * power[scale.int()].unsqueeze(-1)
        out.copy_(numbers.flatten(-2))
    return found


class MXFP4Weights(Weights):
    """Files in which NAME_blocks [experts, out, n, 16] and NAME_scales [experts, out, n] are NAME [experts, 32 n, out]."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._packed: dict[str, tuple[str, str]] = {}
        for blocks in [name for name in self._homes if name.endswith(BLOCKS)]:
            plain = blocks.removesuffix(BLOCKS)
            self._packed[plain] = (blocks, plain + SCALES)
            found, beside = self._size(blocks), self._size(plain + SCALES)
            if len(found) != 4 or found[3] != 16 or beside != found[:3]:
                raise CheckpointError(
                    f"{directory}: {blocks} is {list(found)} and {plain + SCALES} is {list(beside) or 'missing'}; "
                    "MXFP4 has [experts, out, n, 16] and [experts, out, n], copy it again"
                )

    def _size(self, name: str) -> tuple[int, ...]:
        return super().shape(name) if name in self._homes else ()

    def __contains__(self, name: str) -> bool:
        return name in self.listed()

    def listed(self) -> list[str]:
        hidden = {name for pair in self._packed.values() for name in pair}
        return [*(name for name in self._homes if name not in hidden), *self._packed]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._packed:
            return super().shape(name)
        n_experts, out, n_blocks, _ = self._size(self._packed[name][0])
        return n_experts, 32 * n_blocks, out

    def stored(self, name: str) -> str:
        return "BF16" if name in self._packed else super().stored(name)

    def read(self, name: str) -> Tensor:
        if name not in self._packed:
            return super().read(name)
        blocks, scales = self._packed[name]
        return unpacked(super().read(blocks), super().read(scales)).transpose(1, 2).contiguous()


def is_packed(settings: Mapping[str, Any], where: str) -> bool:
    """Whether a configuration's weights are MXFP4. Raises CheckpointError for any other quantisation."""
    section = settings.get(SETTING)
    if not section:
        return False
    method = section.get(METHOD) if isinstance(section, Mapping) else None
    if method != "mxfp4":
        raise CheckpointError(
            f"{where}: {SETTING} has {METHOD} {method!r}, which is not unpacked here (only 'mxfp4' is); "
            "give the model's weights in bfloat16, float16 or float32"
        )
    return True
