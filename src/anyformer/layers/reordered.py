"""Matrices in the order in which oneDNN reads them, for inference on a CPU: of float32, and of int8 (`int8_blocks.py`).

For a product with a few rows, a library first copies a matrix that lies row by row into blocks, which takes as long as the
product. Kept in blocks, four rows take no longer than one, and sixteen half as long (measured: `benchmarks/decoding.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from anyformer.layers.execution import product_dtype
from anyformer.layers.held import HeldWeight

FEWEST = 4  # rows: fewer take longer than these
aten = torch.ops.aten


def can_reorder(weight: Tensor) -> bool:
    """Whether a weight may lie in blocks: a float32 matrix on a CPU, where PyTorch has oneDNN's operators."""
    plain = weight.is_cpu and weight.dtype == torch.float32 and weight.dim() == 2
    return plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


class ReorderedBlocks(ABC):
    """Matrices [d_out, d_in] of one input, one below the other, as one in blocks: `Reordered` are parts of it."""

    rounded: ClassVar[bool]  # as of the weights that lie in it
    shape: tuple[int, int]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes that hold it."""

    @abstractmethod
    def plain(self) -> Tensor:
        """The numbers, row by row, in float32."""

    @abstractmethod
    def part(self, rows: slice) -> ReorderedBlocks:
        """Some of its rows, in blocks of their own."""

    @abstractmethod
    def products(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[…, d_out] of x […, d_in] in float32."""

    @abstractmethod
    def write(self, matrix: Tensor) -> None:
        """Let it be these numbers. Raises KernelError where it cannot hold them."""

    def __deepcopy__(self, memo: Any) -> ReorderedBlocks:
        return self.part(slice(None))


class Float32Blocks(ReorderedBlocks):
    """Of float32 numbers, kept as they are."""

    rounded = False

    def __init__(self, matrix: Tensor) -> None:
        self.write(matrix)

    def write(self, matrix: Tensor) -> None:
        self.shape = (matrix.shape[0], matrix.shape[1])
        with torch.inference_mode(False):
            self.held = torch.ops.mkldnn._reorder_linear_weight(matrix.detach().contiguous(), None)

    @property
    def nbytes(self) -> int:
        return 4 * self.held.numel()

    def plain(self) -> Tensor:
        return self.held.to_dense()

    def part(self, rows: slice) -> ReorderedBlocks:
        return Float32Blocks(self.plain()[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return Float32Blocks, (self.plain(),)

    def products(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        n = len(rows)
        if n < FEWEST:
            rows = F.pad(rows, (0, 0, 0, FEWEST - n))
        y = torch.ops.mkldnn._linear_pointwise(rows, self.held, bias, "none", [], "")
        return y[:n].view(*x.shape[:-1], self.shape[0])


class Reordered(HeldWeight):
    """Rows of `blocks` as a matrix [d_out, d_in] to all who see it; what is written to it is written there.

    Raises KernelError where it shall get a gradient.
    """

    refusal = (
        "weights laid out for decoding are float32, of one process, without gradients; load the model anew to train it"
    )
    blocks: ReorderedBlocks
    part: slice

    @staticmethod
    def __new__(cls: type[Reordered], blocks: ReorderedBlocks, part: slice) -> Reordered:
        shape = (part.stop - part.start, blocks.shape[1])
        reordered = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=torch.device("cpu"))
        reordered.blocks, reordered.part = blocks, part
        return reordered

    @property
    def nbytes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Its share of the blocks."""
        return self.blocks.nbytes * len(self) // self.blocks.shape[0]

    @property
    def rounded(self) -> bool:
        return self.blocks.rounded

    def lies_in(self, whole: Tensor) -> bool:
        return isinstance(whole, Reordered) and self.blocks is whole.blocks

    def plain(self) -> Tensor:
        return self.blocks.plain()[self.part]

    def linear(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """Likewise; row by row where a gradient or another dtype is asked for, or there is no vector."""
        learns = torch.is_grad_enabled() and input.requires_grad
        if learns or product_dtype(input) != torch.float32 or not input.numel():
            return F.linear(input, self.plain(), bias)
        if len(self) == self.blocks.shape[0]:
            return self.blocks.products(input, bias)
        y = self.blocks.products(input, None)[..., self.part]
        return y if bias is None else y + bias

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.plain())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Reordered, (self.blocks, self.part)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Reordered({tuple(self.shape)}, {self.nbytes:,} bytes)"

    @classmethod
    def done(cls, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        first = args[0]
        if isinstance(first, Reordered):
            if func in (aten.detach.default, aten.alias.default):
                return cls(first.blocks, first.part)
            if func is aten.clone.default:
                return whole(first.blocks.part(first.part))
            if func is aten.split_with_sizes.default and first.part.start == 0 and not args[2:]:
                return [
                    cls(first.blocks, slice(end - n, end)) for n, end in zip(args[1], accumulate(args[1]), strict=True)
                ]
        plain = tree_map_only(Reordered, cls.plain, (args, given))
        y = func(*plain[0], **plain[1])
        if isinstance(first, Reordered) and func._schema.is_mutable:
            matrix = first.blocks.plain()
            matrix[first.part] = plain[0][0]
            first.blocks.write(matrix)
            return first
        return y


def whole(blocks: ReorderedBlocks) -> Reordered:
    """All rows of blocks."""
    return Reordered(blocks, slice(0, blocks.shape[0]))


def in_blocks(matrix: Tensor) -> Reordered:
    """A float32 matrix [d_out, d_in] in blocks of its own."""
    return whole(Float32Blocks(matrix))
