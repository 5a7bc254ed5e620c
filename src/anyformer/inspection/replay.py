"""What the layers of a pass gave, given again by passes that change nothing before some layer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from anyformer.inspection.sites import Forward, instead, watched
from anyformer.layers.block import Block, Branch
from anyformer.layers.context import Notes
from anyformer.model import Transformer

Made = tuple[Any, list[Notes]]  # the residual's state behind a layer, and notes


class Replay:
    """All that the layers of some passes hand on; it is not copied, and kept as long as this is."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.passes: list[list[tuple[Made, dict[str, Any]]]] = []  # with the memo, where lent keys lie

    def keep(self) -> AbstractContextManager[None]:
        """A context in which what passes make is kept."""

        def see(number: int, given: tuple[Any, ...], made: Made) -> None:
            if number == 0:
                self.passes.append([])
            self.passes[-1].append((made, dict(given[2].memo.found)))

        return watched(self.model, Block, see)

    def until(self, layer: int) -> AbstractContextManager[None]:
        """A context in which the same passes, made once more, take what the layers before this number made.

        What these would keep for the next passes (a memory of segments) is not theirs to keep: its places stay empty.
        """
        passes, now = iter(self.passes), list[tuple[Made, dict[str, Any]]]()

        def step(number: int, block: Block, whole: Forward, *given: Any) -> Made:
            nonlocal now
            if number == 0:
                now = next(passes)
            if number >= layer:
                return whole(*given)
            context, stores = given[2:]
            for branch in block.modules():
                for _ in range(sum(branch.n_stores) if isinstance(branch, Branch) else 0):
                    next(stores)
            made, memo = now[number]
            context.memo.found |= memo
            return made

        return instead(self.model, step)
