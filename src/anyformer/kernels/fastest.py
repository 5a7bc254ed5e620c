"""Of several kernels the one that is faster for the tokens and the mask of a pass, on a CPU and on a GPU.

The limits come from `benchmarks/blocked.py` and `benchmarks/gpu.py`, which write what they measured into `benchmarks/results`.
"""

from __future__ import annotations

import shutil
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from anyformer.kernels.blocked import Blocked, laid_out
from anyformer.kernels.flex import Flex
from anyformer.kernels.plan import TileGroup, pairs_of_row
from anyformer.kernels.rows import Rows
from anyformer.kernels.sdpa import SDPA, flagged
from anyformer.layers.context import Kernel, SoftmaxOptions
from anyformer.layers.execution import exporting, product_dtype, transformed
from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Bias, Tokens

# Queries from which on blocks take less time than the other kernel, each pass's plan included.
LEAST = {"sdpa": 1024, "eager": 512}
# Queries in bfloat16 up to which rows take less time than PyTorch's operator, which multiplies tiles where the CPU does (AMX).
MOST_BF16 = 128 if torch.cpu._is_amx_tile_supported() else 512
# From which on FlexAttention takes less time than the other kernel: from what 8,192 and 2,048 took, by the squares of lengths.
LEAST_ON_GPU = {"sdpa": 4096, "eager": 1024}
SHARE = 0.7  # of all pairs: up to so many computed by blocks take less time than all of them by PyTorch's operator


class Taken(NamedTuple):
    """The kernel of this pass, and what it prepared."""

    kernel: Kernel
    seen: Any


class Fastest:
    """Blocks where leaving out the hidden ones pays; beside PyTorch's operator, rows where it would keep all weights."""

    brings = False

    def __init__(self, blocked: Blocked | None, other: Kernel) -> None:
        self.blocked, self.other = blocked, other
        self.rows = Rows() if isinstance(other, SDPA) else None
        self.name = " or ".join(kernel.name for kernel in (blocked, self.rows, other) if kernel is not None)

    def sections(
        self, mask: Mask, query: Tokens, key: Tokens, n_heads: int, *, biased: bool
    ) -> tuple[TileGroup, ...] | None:
        """The blocks to compute, or None where the other kernel is faster. A compiler is left PyTorch's own operators."""
        if self.blocked is None or torch.compiler.is_compiling() or query.n < LEAST[self.other.name] or transformed():
            return None
        dense = self.rows is None  # written out, all scores in memory
        if not dense and not biased and flagged(mask, query, key) is not None:
            return None
        sections = self.blocked.plan(mask, query, key, n_heads)
        pays = dense or pairs_of_row(sections) <= SHARE * n_heads * query.n * key.n
        return sections if pays else None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Taken:
        """What the faster kernel prepares."""
        sections = self.sections(mask, query, key, n_heads, biased=bias is not None)
        if self.blocked is not None and sections is not None:
            return Taken(self.blocked, laid_out(sections, bias, query, key, n_heads))
        biased = bias is not None and query.n > 1 and not (exporting() or transformed())
        kernel = self.rows if self.rows is not None and biased else self.other
        return Taken(kernel, kernel.prepare(mask, bias, query, key, n_heads))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Taken, how: SoftmaxOptions
    ) -> tuple[Tensor, Tensor | None]:
        """As the kernel that was taken."""
        kernel = seen.kernel
        if self.rows is not None and kernel is self.other and _keeps_weights(q, v, how):
            kernel = self.rows  # which takes what the other prepared
        return kernel(q, k, v, seen.seen, how)


def _keeps_weights(q: Tensor, v: Tensor, how: SoftmaxOptions) -> bool:
    """Whether PyTorch's operator would keep all weights, or takes longer.

    The same with and without gradients, so that a layer that runs again draws the same dropout.
    """
    n, width = q.shape[2:]
    keeps = how.dropout > 0 or how.scores is not None or v.shape[3] != width
    half = product_dtype(q) == torch.bfloat16
    if n == 1 or not (keeps or half) or exporting() or transformed():
        return False
    return keeps or n <= MOST_BF16


class FastestOnGPU:
    """FlexAttention where a dense mask, or scores written out, would take longer; else the other kernel.

    It compiles for each mask and length, seconds each, so decoding, whose prompts have any length, is left the other;
    likewise layers that are compiled, whose compiler cannot read a plan of blocks.
    """

    brings = False

    def __init__(self, flex: Flex, other: Kernel) -> None:
        self.flex, self.other = flex, other
        self.name = f"{flex.name} or {other.name}"

    def pays(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens) -> bool:
        """Whether FlexAttention takes less time; of biases nobody has seen it."""
        if bias is not None or query.n < LEAST_ON_GPU[self.other.name]:
            return False
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return False
        if not is_fake(query.position) and not can_compile():  # what is foreseen is of another machine
            return False
        return self.other.name == "eager" or flagged(mask, query, key) is None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Taken:
        """What the faster kernel prepares, and how the other would."""
        if not self.pays(mask, bias, query, key):
            return Taken(self.other, self.other.prepare(mask, bias, query, key, n_heads))
        rest = cache(lambda: self.other.prepare(mask, bias, query, key, n_heads))
        return Taken(self.flex, (self.flex.prepare(mask, bias, query, key, n_heads), rest))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Taken, how: SoftmaxOptions
    ) -> tuple[Tensor, Tensor | None]:
        """As the kernel that was taken; what FlexAttention cannot, such as dropout, the other computes."""
        if seen.kernel is self.other:
            return self.other(q, k, v, seen.seen, how)
        blocks, rest = seen.seen
        if self.flex.cannot(q, v, how) is not None:
            return self.other(q, k, v, rest(), how)
        return self.flex(q, k, v, blocks, how)


@cache
def can_compile() -> bool:
    """Whether a GPU's kernels can be made here, which takes Triton and a C compiler."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
