"""Float32 matrices in the order in which oneDNN reads them, for inference on a CPU.

For a product with a few rows, a library first copies a matrix that lies row by row into blocks, which takes as long as the
product. Kept in blocks, four rows take no longer than one, and sixteen half as long (measured: `benchmarks/decoding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from anyformer.layers.held import HeldWeight
from anyformer.layers.tokens import autocast_dtype

FEWEST = 4  # rows: fewer take longer than these
aten = torch.ops.aten


def can_reorder(weight: Tensor) -> bool:
    """Whether a weight may lie in blocks: a float32 matrix on a CPU, where PyTorch has oneDNN's operators."""
    plain = weight.is_cpu and weight.dtype == torch.float32 and weight.dim() == 2
    return plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


class Blocks:
    """Matrices [d_out, d_in] of one input, one below the other, as one in blocks: `Reordered` are parts of it."""

    def __init__(self, matrix: Tensor) -> None:
        self.write(matrix)

    def write(self, matrix: Tensor) -> None:
        """Let it be these numbers."""
        with torch.inference_mode(False):
            self.held = torch.ops.mkldnn._reorder_linear_weight(matrix.detach().contiguous(), None)

    def plain(self) -> Tensor:
        """The numbers, row by row."""
        return self.held.to_dense()

    def __deepcopy__(self, memo: Any) -> Blocks:
        return Blocks(self.plain())

    def products(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[…, d_out] of x […, d_in]."""
        rows = x.reshape(-1, x.shape[-1])
        n = len(rows)
        if n < FEWEST:
            rows = F.pad(rows, (0, 0, 0, FEWEST - n))
        y = torch.ops.mkldnn._linear_pointwise(rows, self.held, bias, "none", [], "")
        return y[:n].view(*x.shape[:-1], self.held.shape[0])


class Reordered(HeldWeight):
    """Rows of `blocks` as a matrix [d_out, d_in], exact, to all who see it; what is written to it is written there.

    Raises KernelError where it shall get a gradient.
    """

    refusal = "weights laid out for decoding get no gradient; load the model anew to train it"
    blocks: Blocks
    part: slice

    @staticmethod
    def __new__(cls: type[Reordered], blocks: Blocks, part: slice) -> Reordered:
        shape = (part.stop - part.start, blocks.held.shape[1])
        reordered = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=torch.device("cpu"))
        reordered.blocks, reordered.part = blocks, part
        return reordered

    @property
    def nbytes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Its share of the blocks."""
        return 4 * self.numel()

    def plain(self) -> Tensor:
        return self.blocks.plain()[self.part]

    def linear(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Likewise; row by row where a gradient or another dtype is asked for."""
        if (torch.is_grad_enabled() and input.requires_grad) or (autocast_dtype(input) or input.dtype) != torch.float32:
            return F.linear(input, self.plain(), bias)
        if len(self) == len(self.blocks.held):
            return self.blocks.products(input, bias)
        y = self.blocks.products(input, None)[..., self.part]
        return y if bias is None else y + bias

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.plain())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return in_blocks, (self.plain(),)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Reordered({tuple(self.shape)}, {self.nbytes:,} bytes)"

    @classmethod
    def done(cls, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        first = args[0]
        if isinstance(first, Reordered):
            if func in (aten.detach.default, aten.alias.default):
                return cls(first.blocks, first.part)
            if func is aten.clone.default:
                return in_blocks(first.plain())
        plain = tree_map_only(Reordered, cls.plain, (args, given))
        y = func(*plain[0], **plain[1])
        if isinstance(first, Reordered) and func._schema.is_mutable:
            whole = first.blocks.plain()
            whole[first.part] = plain[0][0]
            first.blocks.write(whole)
            return first
        return y


def in_blocks(matrix: Tensor) -> Reordered:
    """A matrix [d_out, d_in] in blocks of its own."""
    return Reordered(Blocks(matrix), slice(0, len(matrix)))
