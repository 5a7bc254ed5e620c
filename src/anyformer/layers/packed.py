"""Linear maps whose weights are held in 8 or 4 bits, for inference on a CPU: fewer bytes are read for each token.

The scheme is that of weight-only quantisation (LLM.int8(): Dettmers et al. 2022, arXiv:2208.07339, section 2, rows; groups
of 32: GGML's Q4_1), the products are PyTorch's own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import KernelError
from anyformer.layers.embedding import Table
from anyformer.layers.head import Head, Unembedding
from anyformer.layers.linear import Linear
from anyformer.layers.part import is_plain

Packing = Literal["int8", "int4"]
PACKINGS: tuple[Packing, ...] = ("int8", "int4")

GROUP = 32  # weights of a row that have a scale and a middle of their own in 4 bits; kernels take a multiple of both
ROWS = 16  # of which PyTorch's kernels take a multiple
FEW = 16  # vectors up to which a product with 8 bits is faster as it is packed; benchmarks/generation.py


class PackedLinear(nn.Module):
    """y = W x + b, for a W [d_out, d_in] that is held in few bits.

    "int8": a row has a scale, its largest magnitude over 127. "int4": 32 weights of a row have a scale and a least value, and
    are one of 16 numbers evenly from there. Scales are bfloat16, and so are the vectors and what is made of them; more than
    16 vectors are multiplied in their own dtype with a W of 8 bits. Raises KernelError where there is no kernel: off a CPU.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packing: Packing) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packing = packing
        if not weight.is_cpu:
            raise KernelError(
                f"weights in {packing} are for a CPU, and these are on {weight.device.type}; take bfloat16"
            )
        # What a kernel takes at once is filled up: by rows of zeros, whose products are cut off, and by the last column, which
        # no group's range grows by, and which meets zeros.
        self.missing = -self.in_features % GROUP
        padded = F.pad(weight.detach().float(), (0, 0, 0, -self.out_features % ROWS))
        padded = torch.cat((padded, padded[:, -1:].expand(-1, self.missing)), 1)
        held, scales = (_in_8_bits if packing == "int8" else _in_4_bits)(padded)
        self.register_buffer("held", held)
        self.register_buffer("scales", scales)
        self.bias = bias

    held: Tensor
    scales: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """[…, d_out] of `input` […, d_in]."""
        x = input.reshape(-1, self.in_features)
        x = F.pad(x, (0, self.missing)) if self.missing else x
        if self.packing == "int4":
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.bfloat16(), self.held, GROUP, self.scales)
        elif len(x) <= FEW:
            y = torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.held, self.scales)
        else:
            y = F.linear(x, self.held.to(x.dtype) * self.scales.to(x.dtype)[:, None])
        y = y[:, : self.out_features].to(input.dtype).reshape(*input.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.packing}"


def _in_8_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers from -127 to 127 [d_out, d_in], scales [d_out]) of W [d_out, d_in]."""
    scales = _no_less(weight.abs().amax(1) / 127)
    return (weight / scales.float()[:, None]).round().to(torch.int8), scales


def _in_4_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers from 0 to 15 as the kernel wants them, scales and middles [group, d_out, 2]) of W [d_out, d_in]."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    scales = _no_less((most - least) / 15)
    middles = (least + 8 * scales.float()).bfloat16()  # what the number 8 stands for
    numbers = ((groups - middles.float()[..., None]) / scales.float()[..., None] + 8).round().clamp(0, 15)
    held = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1).int(), 1)
    return held, torch.stack((scales, middles), -1).transpose(0, 1).contiguous()


def _no_less(scales: Tensor) -> Tensor:
    """Scales in bfloat16, rounded up, so that the largest number still has a place; 1 for rows of zeros."""
    rounded = scales.bfloat16()
    rounded = torch.where(rounded.float() < scales, (scales * (1 + 2.0**-7)).bfloat16(), rounded)
    return torch.where(rounded == 0, torch.ones_like(rounded), rounded)


def pack(model: nn.Module, packing: Packing) -> nn.Module:
    """Replace the weights of a model's linear maps, and of its heads, in place; return the model, for inference alone.

    Tables stay as they are for looking up rows, and a tied head has its product besides. Experts, convolutions, norms and
    biases stay. Raises KernelError, naming the map, where there is no kernel.
    """
    for name, module in [*model.named_modules()]:
        for child_name, child in [*module.named_children()]:
            if type(child) in (Linear, Unembedding):
                where = f"{name}.{child_name}".lstrip(".")
                setattr(module, child_name, _packed(where, child.weight, child.bias, packing))
        if isinstance(module, Head) and module.spec.tied and is_plain(module.table, Table):
            module.product = _packed(f"{name}.table", module.table.weight, None, packing)
    return model


def _packed(name: str, weight: Tensor, bias: Tensor | None, packing: Packing) -> PackedLinear:
    try:
        return PackedLinear(weight, bias, packing)
    except KernelError as error:
        raise KernelError(f"{name}: {error}") from None
