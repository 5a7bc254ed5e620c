"""Blocks near the query's and every n-th one, others for each head: Phi-3-small, arXiv:2404.14219, section 2."""

from __future__ import annotations

from torch import Tensor

from anyformer.layers.counting import sum_of_floors
from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Tokens
from anyformer.spec import Window


class LocalAndVertical(Mask):
    """Blocks of `size` keys: a query sees the last `near` ones, its own included, and every `stride`-th.

    Head h starts counting h blocks earlier than head 0. What comes after the query is left to other masks.
    """

    size: Window
    near: Window
    stride: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        q, k = query.position // self.size, key.position // self.size
        return (q - k < self.near) | ((k + head + 1) % self.stride == 0)

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        return self._of_first(past + query, n_heads) - self._of_first(past, n_heads)

    def _of_first(self, n: int, n_heads: int) -> int:
        """The pairs of the first n queries."""
        size, (blocks, rest) = self.size, divmod(n, self.size)
        far = max(0, blocks - self.near + 1)  # blocks of keys that are not near to the queries of the last block
        total = n_heads * (n * (n + 1) // 2 - size * (size * sum_of_floors(far, 1) + rest * far))
        for head in range(min(n_heads, self.stride)):
            alike = len(range(head, n_heads, self.stride))  # heads that start counting alike
            seen = size * sum_of_floors(far + head, self.stride) + rest * ((far + head) // self.stride)
            total += alike * size * seen
        return total
