"""Masks of whole blocks of keys: local and vertical blocks, the latter others for each head (arXiv:2404.14219, section 2)."""

from __future__ import annotations

from torch import Tensor

from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Tokens
from anyformer.spec import Window


class LocalAndVertical(Mask):
    """Blocks of `size` keys: a query sees the last `near` ones, its own included, and every `stride`-th (Phi-3-small).

    Head h starts counting h blocks earlier than head 0. What comes after the query is left to other masks.
    """

    size: Window
    near: Window
    stride: Window

    def __post_init__(self) -> None:
        for name in ("size", "near", "stride"):
            if getattr(self, name) < 1:
                raise self.refusal(name, "must be at least 1")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        q, k = query.position // self.size, key.position // self.size
        return (q - k < self.near) | ((k + head + 1) % self.stride == 0)

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        total, size, stop = 0, self.size, past + query
        for block in range(past // size, -(-stop // size)):
            first, last = max(past, block * size), min(stop, (block + 1) * size)  # positions of queries in this block
            n, far = last - first, max(0, block - self.near + 1)  # blocks of keys that are not near
            total += n_heads * (n * (first + 1 + last) // 2 - n * far * size)
            for head in range(min(n_heads, self.stride)):
                alike = len(range(head, n_heads, self.stride))  # heads that start counting alike
                total += n * alike * size * ((far + head) // self.stride)
        return total
