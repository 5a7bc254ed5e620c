"""Of two kernels the one that is faster for the tokens and the mask of a pass, on a CPU.

The limits come from `benchmarks/blocked.py`, which writes what it measured into `benchmarks/results/blocked.json`. A GPU's
are not measured: there blocks are computed only where `blocked` is asked for by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.blocked import Blocked, laid_out
from anyformer.kernels.plan import Section
from anyformer.kernels.sdpa import SDPA, flagged
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Bias, Kernel, Tokens

# Queries from which on blocks take less time than the other kernel, each pass's plan included.
LEAST = {"sdpa": 1024, "eager": 512}
SHARE = 0.7  # of all pairs: up to so many computed by blocks take less time than all of them by PyTorch's operator


class Taken(NamedTuple):
    """The kernel of this pass, and what it prepared."""

    kernel: Kernel
    seen: Any


class Fastest:
    """Blocks where leaving out the hidden ones pays, and else another kernel."""

    brings = False

    def __init__(self, blocked: Blocked, other: Kernel) -> None:
        self.blocked, self.other = blocked, other
        self.name = f"{blocked.name} or {other.name}"

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why neither can compute this attention, or None."""
        return self.blocked.refuses(spec) and self.other.refuses(spec)

    def sections(
        self, mask: Mask, query: Tokens, key: Tokens, n_heads: int, *, biased: bool
    ) -> tuple[Section, ...] | None:
        """The blocks to compute, or None where the other kernel is faster. A compiler is left PyTorch's own operators."""
        if torch.compiler.is_compiling() or query.n < LEAST[self.other.name]:
            return None
        dense = not isinstance(self.other, SDPA)  # written out, all scores in memory
        if not dense and not biased and flagged(mask, query, key) is not None:
            return None
        sections = self.blocked.plan(mask, query, key, n_heads)
        rows = max(1, len({section.row for section in sections}))
        pairs = sum(section.pairs for section in sections)
        return sections if dense or pairs <= SHARE * rows * n_heads * query.n * key.n else None

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Taken:
        """What the faster kernel prepares."""
        sections = self.sections(mask, query, key, n_heads, biased=bias is not None)
        if sections is None:
            return Taken(self.other, self.other.prepare(mask, bias, query, key, n_heads))
        return Taken(self.blocked, laid_out(sections, bias, query, key, n_heads))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Taken, **options: Any) -> tuple[Tensor, Tensor | None]:
        """As the kernel that was taken."""
        return seen.kernel(q, k, v, seen.seen, **options)
