"""Where a pass goes through a model, layer by layer and branch by branch, and what is watched or changed there.

Layers and branches are told by the order in which a pass calls them, so that those that share weights are told apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from anyformer.layers.block import Block, Branch
from anyformer.layers.tokens import ForwardContext, KeepNothing, Store
from anyformer.model import Transformer
from anyformer.spec import BranchSpec, MixerSpec, ModelSpec
from anyformer.surgery import Anatomy

PLACE = re.compile(r"(encoder|stack|heads\.(?P<head>.+)\.layers)\.blocks\.(?P<layer>\d+)(?:\.(?P<branch>.+))?")
UNTOLD = (None, MixerSpec.counted_as)  # what a mixer is counted as that is of no kind by itself
M = TypeVar("M", bound=nn.Module)
See = Callable[[int, tuple[Any, ...], Any], Any]


class Site(NamedTuple):
    """A layer, or a branch of it, where a pass calls it."""

    stack: str  # "encoder", "decoder", "" where there is one stack, or the head whose layers these are
    layer: int
    path: str  # as `surgery.Anatomy` has it
    branch: BranchSpec | None = None  # None: the whole layer

    @property
    def kind(self) -> str:
        """What it does, in a word: attention, feed-forward, experts; of a whole layer "layer"."""
        mixer = self.branch and self.branch.mixer
        return "layer" if mixer is None else mixer.kind if mixer.counted_as in UNTOLD else str(mixer.counted_as)

    @property
    def reads_memory(self) -> bool:
        """Whether its keys are of what the encoder made."""
        return self.branch is not None and self.branch.mixer.kept_as() == "memory"

    @property
    def of_layer(self) -> str:
        """The path of the layer that it is in."""
        found = PLACE.fullmatch(self.path)
        assert found is not None
        return f"{found[1]}.blocks.{self.layer}"

    def __str__(self) -> str:
        return f"{self.stack} {self.layer}".strip() + ("" if self.branch is None else f" {self.kind}")


class Sites(NamedTuple):
    """All that one pass calls, in its order."""

    layers: tuple[Site, ...]
    branches: tuple[Site, ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Sites:
        """Those of an architecture's stacks, and of heads with layers of their own; of what predicts further tokens, none."""
        anatomy = Anatomy(spec)

        def site(path: str, branch: BranchSpec | None = None) -> Site | None:
            found = PLACE.fullmatch(path)
            if found is None:
                return None
            stack = {"encoder": "encoder", "stack": "decoder" if spec.encoder else ""}.get(found[1], found["head"])
            return Site(stack, int(found["layer"]), path, branch)

        layers = (site(path) for path in anatomy.layers)
        branches = (site(path, branch) for path, branch in anatomy.branches)
        return cls(tuple(filter(None, layers)), tuple(filter(None, branches)))

    @property
    def main(self) -> range:
        """The numbers, among the layers, of those of the main stack."""
        found = [i for i, site in enumerate(self.layers) if site.path.startswith("stack.")]
        return range(found[0], found[-1] + 1) if found else range(0)


@contextmanager
def watched(model: Transformer, kind: type[nn.Module], see: See) -> Iterator[None]:
    """Have every pass show its layers (Block) or branches (Branch) meanwhile.

    `see` is called with the number of the call in the pass, what it was given and what it makes; what `see` returns, unless that
    is None, stands in the place of what was made.
    """
    with _numbers(model) as number:

        def show(_: Any, given: tuple[Any, ...], made: Any) -> Any:
            return see(number(), given, made)

        handles = [module.register_forward_hook(show) for module in _called(model, kind)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def without_layers(model: Transformer, numbers: Collection[int]) -> Iterator[None]:
    """Have layers of these numbers pass on what they read meanwhile; what they lend to others they still do."""
    with _numbers(model) as number:

        def instead(block: Block) -> Callable[..., Any]:
            whole, lends = block.forward, any(mixer.lends() for mixer in block.spec.mixers)

            def called(state: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]) -> Any:
                if number() not in numbers:
                    return whole(state, residual, context, stores)
                computed = lends or not isinstance(stores, KeepNothing)  # which count on being taken
                return state, whole(state, residual, context, stores)[1] if computed else []

            return called

        blocks = [(block, block.__dict__.get("forward")) for block in _called(model, Block)]
        for block, _ in blocks:
            block.forward = instead(block)
        try:
            yield
        finally:
            for block, former in blocks:
                del block.forward
                if former is not None:
                    block.forward = former


def without_branch(model: Transformer, number: int) -> Any:
    """A context in which the branch of this number writes nothing."""
    return watched(model, Branch, lambda i, _, made: (torch.zeros_like(made[0]), made[1]) if i == number else None)


@contextmanager
def _numbers(model: Transformer) -> Iterator[Callable[[], int]]:
    """The numbers of calls, from 0 in each pass, one each time it is asked."""
    calls = count()

    def begin(*_: Any) -> None:
        nonlocal calls
        calls = count()

    handle = model.register_forward_pre_hook(begin)
    try:
        yield lambda: next(calls)
    finally:
        handle.remove()


def _called(model: Transformer, kind: type[M]) -> list[M]:
    """The modules of a kind that a pass calls: those that predict further tokens are not among them."""
    ahead = {id(each) for each in model.ahead.modules()} if isinstance(model.ahead, nn.Module) else set()
    return [module for module in model.modules() if isinstance(module, kind) and id(module) not in ahead]
