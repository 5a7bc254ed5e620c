"""A narrowed model made one of several that compute together: where the ranks meet, and which gradients they add up.

Three places: before what enters a split mixer, after what it writes, and at tables of the vocabulary, where the loss is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.layers.attention import Attention
from anyformer.layers.block import Branch
from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.embedding import Table
from anyformer.layers.experts import StackedLinear
from anyformer.layers.head import Unembedding
from anyformer.layers.linear import Linear
from anyformer.layers.moa import MoA
from anyformer.layers.moe import MoE
from anyformer.layers.ranks import Ranks, SplitRows, alike, entering, summed
from anyformer.model import Transformer
from anyformer.training.cluster.narrowing import TensorPart

Owned = tuple[nn.Module, str]  # a parameter: whose it is, and its name there


def meet(model: Transformer, cuts: Mapping[str, TensorPart | None], vocabulary: int, ranks: Ranks) -> set[Owned]:
    """Have the ranks of a narrowed model meet in its passes; return the parameters whose gradients they must add up after them.

    Those are what all ranks, or several, read alike within split mixers: each has the part of the gradient that comes through
    its heads. `vocabulary` is the whole one. Raises SpecError where what is read so is read outside of split mixers too.
    """
    cut = {owner_of(model, name): each for name, each in cuts.items()}
    # One may stand in several branches.
    mixers = dict.fromkeys(each.mixer for each in model.modules() if isinstance(each, Branch))
    split = [mixer for mixer in mixers if any(cut[own] for own in _parameters(mixer))]
    within = {own for mixer in split for own in _parameters(mixer)}
    added = {own for own in within if (each := cut[own]) is None or each.shared}
    if both := added & set(_parameters(model, beside=(*split, model.shared))):
        name = next(name for name in cuts if owner_of(model, name) in both)
        raise SpecError(
            f"tp = {ranks.size}: {name} is read by layers that can be split and by one that cannot; use dp or fsdp"
        )
    for mixer in split:
        mixer.register_forward_pre_hook(partial(_enter, ranks))
        mixer.register_forward_hook(partial(_leave, ranks))
    for module in dict.fromkeys(module for mixer in split for module in reached(mixer)):
        if isinstance(module, Attention):
            more = [] if module.relative_values is None else [module.relative_values]
            for part in (*module.scores, *more):
                part.place = replace(part.place, heads=(ranks.rank * module.n_heads, ranks.size * module.n_heads))
        elif isinstance(module, MoE | MoA):
            module.share = 1 / ranks.size
        elif isinstance(module, Linear | StackedLinear) and module.bias is not None:
            matrix = cut[module, "weight"]
            # Its products are summed, and its bias is whole.
            if matrix is not None and matrix.dim == module.weight.dim() - 1:
                module.register_forward_hook(partial(_share_of_bias, ranks))
    for module in model.modules():
        if isinstance(module, Table | Unembedding) and (rows := cut[module, "weight"]) is not None:
            module.split = SplitRows(rows.start, vocabulary, ranks)
    return added


def _enter(ranks: Ranks, mixer: nn.Module, given: tuple[Tensor, ForwardContext, Any]) -> tuple[Any, ...]:
    """Before a split mixer: all that it may read is every rank's alike."""
    x, context, store = given
    memory, first = (each if each is None else entering(each, ranks) for each in (context.memory, context.input))
    return entering(x, ranks), replace(context, memory=memory, input=first), store


def _leave(ranks: Ranks, mixer: nn.Module, given: Any, made: tuple[Tensor, Notes]) -> tuple[Tensor, Notes]:
    """After a split mixer: what the ranks write adds up; what it notes, of a router that all have, counts once."""
    y, notes = made
    return summed(y, ranks), {name: alike(note, ranks) if note.requires_grad else note for name, note in notes.items()}


def _share_of_bias(ranks: Ranks, module: Linear | StackedLinear, given: Any, made: Any) -> Any:
    """A bias beside a matrix of which each rank has a part is added in parts too."""
    bias = module.bias
    assert bias is not None
    if isinstance(module, StackedLinear):
        return made[0], bias / ranks.size
    return made - (bias * (1 - 1 / ranks.size)).to(made.dtype)


def reached(module: nn.Module, beside: tuple[nn.Module, ...] = ()) -> Iterator[nn.Module]:
    """A module and all that it holds, shared ones too, which the model has registered elsewhere; but what stands `beside`."""
    left, seen = [module], set(beside)
    while left:
        each = left.pop()
        if each not in seen:
            seen.add(each)
            yield each
            left += [*each.children(), *(value for value in vars(each).values() if isinstance(value, nn.Module))]


def _parameters(module: nn.Module, beside: tuple[nn.Module, ...] = ()) -> Iterator[Owned]:
    for each in reached(module, beside):
        yield from ((each, name) for name, _ in each.named_parameters(recurse=False))


def owner_of(model: nn.Module, name: str) -> Owned:
    """The parameter of this name in the state dict."""
    owner, _, last = name.rpartition(".")
    return model.get_submodule(owner), last
