"""Where a pass goes through a model, layer by layer and branch by branch, and what is watched or changed there.

Layers and branches are told by the order in which a whole pass calls them, so that those that share weights are told apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from anyformer.layers.block import Block, Branch
from anyformer.layers.context import KeepNothing, Notes
from anyformer.model import Transformer
from anyformer.spec import BranchSpec, MixerSpec, ModelSpec
from anyformer.surgery import Anatomy

PLACE = re.compile(r"(encoder|stack|heads\.(?P<head>.+)\.layers)\.blocks\.(?P<layer>\d+)(?:\.(?P<branch>.+))?")
UNTOLD = (None, MixerSpec.counted_as)  # what a mixer is counted as that is of no kind by itself
M = TypeVar("M", bound=nn.Module)
See = Callable[[int, tuple[Any, ...], Any], Any]
Forward = Callable[..., tuple[Any, list[Notes]]]  # a Block's
Step = Forward  # of the number of a layer, its Block, how that computes it, and what it is given


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

    def within(self, stack: Literal["stack", "encoder"]) -> range:
        """The numbers, among the layers, of those of the main stack, or of the encoder beside it."""
        found = [i for i, site in enumerate(self.layers) if site.path.startswith(f"{stack}.")]
        return range(found[0], found[-1] + 1) if found else range(0)

    @property
    def main(self) -> range:
        """The numbers, among the layers, of those of the main stack."""
        return self.within("stack")


@contextmanager
def watched(model: Transformer, kind: type[nn.Module], see: See) -> Iterator[None]:
    """Have every pass show its layers (Block) or branches (Branch) meanwhile.

    `see` is called with the number of the layer or branch, what it was given and what it makes; what `see` returns, unless that
    is None, stands in the place of what was made.
    """
    with _calls(model) as at, ExitStack() as hooks:
        for module in _called(model, kind):
            hooks.enter_context(module.register_forward_hook(lambda _, given, made: see(at[kind], given, made)))
        yield


@contextmanager
def instead(model: Transformer, step: Step) -> Iterator[None]:
    """Have every pass take what `step` makes for what its layers would, meanwhile."""
    with _calls(model) as at:

        def around(block: Block) -> Forward:
            whole = block.forward
            return lambda *given: step(at[Block], block, whole, *given)

        blocks = [(block, block.__dict__.get("forward")) for block in _called(model, Block)]
        for block, _ in blocks:
            block.forward = around(block)
        try:
            yield
        finally:
            for block, former in blocks:
                del block.forward
                if former is not None:
                    block.forward = former


def without_layers(model: Transformer, numbers: Collection[int]) -> AbstractContextManager[None]:
    """A context in which layers of these numbers pass on what they read; what they lend to others they still do."""

    def step(number: int, block: Block, whole: Forward, state: Any, *given: Any) -> tuple[Any, list[Notes]]:
        if number not in numbers:
            return whole(state, *given)
        lends = any(mixer.lends() for mixer in block.spec.mixers)
        computed = lends or not isinstance(given[-1], KeepNothing)  # stores, which count on being taken
        return state, whole(state, *given)[1] if computed else []

    return instead(model, step)


def without_branch(model: Transformer, number: int) -> AbstractContextManager[None]:
    """A context in which the branch of this number writes nothing."""
    return watched(model, Branch, lambda i, _, made: (torch.zeros_like(made[0]), made[1]) if i == number else None)


@contextmanager
def _calls(model: Transformer) -> Iterator[dict[type[nn.Module], int]]:
    """Which layer (Block) and branch (Branch) is being called, by their numbers in a pass that leaves none out."""
    sites, at = Sites.of(model.spec), {Block: -1, Branch: -1}
    within = Counter(site.of_layer for site in sites.branches)
    before = list(accumulate((within[site.path] for site in sites.layers), initial=0))  # branches, by layer

    def begin(*_: Any) -> None:
        at[Block] = -1

    def enter(module: nn.Module, _: Any) -> None:
        if isinstance(module, Block):
            at[Block] += 1
            at[Branch] = before[at[Block]] - 1
        else:
            at[Branch] += 1

    with ExitStack() as hooks:
        hooks.enter_context(model.register_forward_pre_hook(begin))
        for module in (*_called(model, Block), *_called(model, Branch)):
            hooks.enter_context(module.register_forward_pre_hook(enter))
        yield at


def _called(model: Transformer, kind: type[M]) -> list[M]:
    """The modules of a kind that a pass calls: not those that predict further tokens, nor those inside a branch."""
    apart = {id(each) for each in model.ahead.modules()} if isinstance(model.ahead, nn.Module) else set()
    apart |= {id(each) for branch in model.modules() if isinstance(branch, Branch) for each in branch.mixer.modules()}
    return [module for module in model.modules() if isinstance(module, kind) and id(module) not in apart]
