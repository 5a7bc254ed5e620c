"""Blocks of the text that see their neighbours: Reformer's local attention. Kitaev et al. 2020, arXiv:2001.04451."""

from __future__ import annotations

from torch import Tensor

from anyformer.layers.mask import Mask
from anyformer.layers.tokens import Tokens
from anyformer.spec import Window


class AdjacentBlocks(Mask):
    """A token sees its own block of `size` tokens, `before` blocks before it and `after` behind it."""

    size: Window
    before: int = 1
    after: int = 0

    def __post_init__(self) -> None:
        self.require("before", self.before >= 0, "must be at least 0")
        self.require("after", self.after >= 0, "must be at least 0")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        back = query.position // self.size - key.position // self.size
        return (back <= self.before) & (back >= -self.after)

    def reach(self) -> int:
        return (self.before + 1) * self.size
