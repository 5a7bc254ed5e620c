"""Each tensor of a new model from those of a given one, where both do the same and their axes can be brought together.

Experts that begin as copies of a feed-forward network: Komatsuzaki et al. 2022, arXiv:2212.05055 (sparse upcycling). Attention's
maps in a mixer with a state: Wang et al. 2024, arXiv:2408.15237 (the Mamba in the Llama). Both stacks of an encoder-decoder from
one stack: Rothe et al. 2020, arXiv:1907.12461.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.spec import HeadMap, Weight
from anyformer.surgery.anatomy import Anatomy
from anyformer.surgery.depth import Layer
from anyformer.surgery.plans import (
    AxisPlan,
    Importance,
    again,
    chosen,
    each_head,
    heads_that_matter,
    neurons,
    regrouped,
    reread,
    stretch,
    taken,
    those_that_matter,
    weights_of,
)

LAYER = re.compile(r"(encoder|stack)\.blocks\.(\d+)\.")
MIXER, EXPERTS, SHARED = ".mixer.", ".mixer.experts.", ".mixer.shared_expert."


class CarriedTensor(NamedTuple):
    """A tensor as it begins."""

    tensor: Tensor
    numel: int  # of its numbers, those that are given ones
    how: str = ""  # what became of them; "": they are as they were


class Operation:
    """A given model's tensors put into a new one, whose own were drawn."""

    def __init__(
        self,
        new: Anatomy,
        old: Anatomy,
        begun: Mapping[str, Tensor],
        given: Mapping[str, Tensor],
        layers: Mapping[str, Sequence[Layer | None]],
        rows: AxisPlan | None = None,
        importance: Importance | None = None,
    ) -> None:
        """`begun`, `given`: state dicts; `layers`: what those of the new "stack" or "encoder" begin as, else as they stand;
        `rows`: of tables of other tokens; `importance`: which of the given heads, neurons and experts stay where there are to be
        fewer."""
        self.new, self.old, self.begun, self.given, self.layers, self.rows = new, old, begun, given, layers, rows
        self.importance = importance or {}
        self.one_stack = not any(path.startswith("encoder.") for path in old.tensors)
        # Mixers with an expert of all tokens; maps of heads by (their mixer, what they make); how many heads a mixer has.
        self.beside = {path.partition(SHARED)[0] for path in new.tensors if SHARED in path}
        self.maps = {(_mixer(path), heads.makes): (path, heads) for path, heads in reversed(old.maps)}
        self.n_heads = {(mixer, heads.n) for (mixer, _), (_, heads) in self.maps.items()}
        self.kept = dict(self._kept())  # which heads stay, by (mixer, how many, of how many)
        self.carried: dict[str, CarriedTensor] = {}

    def done(self) -> Mapping[str, CarriedTensor]:
        """What is carried over, by its name in the state dict. Raises UsageError for a layer that cannot be silent."""
        self._refuse_loud()
        for path, (name, weight) in self.new.tensors.items():
            made = (self._fitted(source, weight, self.begun[name]) for source in self._sources(path))
            if name not in self.carried and (found := next(filter(None, made), None)) is not None:
                self.carried[name] = found
        self._regroup()
        for path, (name, _) in self.new.tensors.items():
            if self._is_silent(path, name):
                zeros = torch.zeros_like(self.begun[name])
                self.carried[name] = CarriedTensor(zeros, 0, "what writes nothing at first")
        return self.carried

    def _sources(self, path: str) -> Iterator[str]:
        """Where the given model may have what does the same, the likest first."""
        if (found := LAYER.match(path)) is not None:
            layer = self._layer(found)
            if layer is None:
                return
            path = f"{found[1]}.blocks.{layer.number}.{path[found.end() :]}"
        if self.one_stack and path.startswith("encoder."):
            path = f"stack.{path.removeprefix('encoder.')}"
        yield path
        yield path.replace(".memory.", ".mixing.")
        # An expert of all tokens is what the network of all tokens was; without one, every expert is.
        if SHARED in path or path.partition(EXPERTS)[0] not in self.beside:
            yield path.replace(SHARED, MIXER).replace(EXPERTS, MIXER)

    def _layer(self, found: re.Match[str]) -> Layer | None:
        return self.layers[found[1]][int(found[2])] if found[1] in self.layers else Layer(int(found[2]))

    def _in_silence(self, path: str) -> bool:
        """Whether a tensor is of a layer that is to write nothing at first."""
        found = LAYER.match(path)
        layer = found and self._layer(found)
        return layer is not None and layer.silent

    def _is_silent(self, path: str, name: str) -> bool:
        """Whether a tensor writes to the stream for a layer that is to write nothing, or for experts beside what is carried."""
        weight = self.new.tensors.get(re.sub(r"bias$", "weight", path))
        of_sum = weight is None and MIXER in path and self.new.tensors[path].weight.axes == ("d_model",)
        if not of_sum and (weight is None or weight.weight.role != "output"):  # a bias of a sum is of experts'
            return False
        network = self.new.tensors.get(path.replace(EXPERTS, SHARED))
        drawn = EXPERTS in path and name not in self.carried and network is not None and network.name in self.carried
        return drawn or self._in_silence(path)

    def _refuse_loud(self) -> None:
        """Raise UsageError where a layer is to write nothing and has no map for it, or one that others write with too."""
        silent = {path: each for path, each in self.new.tensors.items() if MIXER in path and self._in_silence(path)}
        written = {path: name for path, (name, weight) in silent.items() if weight.role == "output"}
        quiet, shared = set(map(_mixer, written)), set(written.values())
        loud = next((found for path in silent if _mixer(path) not in quiet and (found := LAYER.match(path))), None)
        if loud is not None:
            raise UsageError(
                f"layer {loud[2]} cannot write nothing at first: a part of it has no output map; leave ~ out"
            )
        if any(name in shared and path not in silent for path, (name, _) in self.new.tensors.items()):
            raise UsageError(
                "a layer that others share their weights with cannot alone write nothing; "
                "leave ~ out, or say sharing=none of the architecture"
            )

    def _fitted(self, source: str, weight: Weight, begun: Tensor) -> CarriedTensor | None:
        """A tensor that begins as the given one at `source`; None where there is none with the same axes, or one is too long."""
        if source not in self.old.tensors:
            return None
        name, theirs = self.old.tensors[source]
        # A gain around 0 is none around 1; where each channel starts from its own (RWKV's shifts), that is no more than a start.
        neutral = {each.fill for each in (weight, theirs) if weight.role == "gain" and not isinstance(each.fill, tuple)}
        if weight.below != theirs.below or len(neutral) > 1:
            return None
        if weight.axes == theirs.axes:
            return self._along(source, weight, theirs, begun, self.given[name])
        if weight.axes != ("experts", *theirs.axes):
            return None
        each = [
            self._along(source, weight, theirs, begun[i], self.given[name], expert=i) for i in range(weight.shape[0])
        ]
        whole = [one for one in each if one is not None]
        if not whole:
            return None
        how = whole[0].how or "experts that are each what the network was"
        return CarriedTensor(torch.stack([one.tensor for one in whole]), sum(one.numel for one in whole), how)

    def _along(
        self, source: str, weight: Weight, theirs: Weight, begun: Tensor, given: Tensor, expert: int | None = None
    ) -> CarriedTensor | None:
        """A tensor whose axes are the given one's, each cut or grown."""
        plans: dict[int, AxisPlan] = {}
        for dim, (axis, n, m) in enumerate(zip(theirs.axes, begun.shape, theirs.shape, strict=True)):
            plan = self._plan(source, axis, n, m, weight, expert)
            if plan is not None:
                plans[dim] = plan
            elif n != m:
                return None
        tensor, numel = taken(given, begun, plans, zero=weight.role == "output")
        return CarriedTensor(tensor, numel, ", ".join(filter(None, (plan.how for plan in plans.values()))))

    def _plan(self, source: str, axis: str, n: int, given: int, weight: Weight, expert: int | None) -> AxisPlan | None:
        """What an axis begins as; None: as it is, or nothing is known."""
        if axis == "vocab" and self.rows is not None and (n, given) == self.rows.sizes:
            return self.rows
        match axis:
            case _ if n == given:
                return None
            case "d_ff" if expert is not None and n < given:
                return stretch(n, given, expert)
            case "d_ff" if n < given and (matters := self._matters(_network(source), axis)) is not None:
                return those_that_matter(n, matters, "neurons")
            case "d_ff":
                return neurons(n, given, self._weighs(source))
            case "heads" if not any(source.startswith(path) for path, _ in self.old.maps):
                if (kept := self.kept.get((_mixer(source), n, given))) is not None:
                    return AxisPlan(kept, given, chosen(n, given, "heads"))
                return each_head(n, given) if (_mixer(source), given) in self.n_heads else None
            case "experts" if n < given and (matters := self._matters(_mixer(source), axis)) is not None:
                return those_that_matter(n, matters, "experts")
            case "experts":
                return again(n, given, "experts", fresh=weight.used is None)
            case "position":
                return again(n, given, "positions")
            case _:
                return None

    def _weighs(self, source: str) -> Tensor | None:
        """How much each neuron weighs of the network that a tensor is of."""
        maps = [each for path, each in self.old.tensors.items() if _network(path) == _network(source)]
        return weights_of([(self.given[name], w.axes.index("d_ff")) for name, w in maps if "d_ff" in w.axes])

    def _matters(self, within: str, axis: str) -> Tensor | None:
        """How much each head, neuron or expert of what stands at a path matters, where that is known."""
        names = (each.name for path, each in self.old.tensors.items() if path.startswith(within))
        known = (self.importance.get(name, {}).get(axis) for name in names)
        return next((each for each in known if each is not None), None)

    def _kept(self) -> Iterator[tuple[tuple[str, int, int], Tensor]]:
        """Which heads stay of mixers that are to have fewer, of queries and of keys, where it is known how much they matter."""
        sizes = {(_mixer(path), heads.makes): heads.n for path, heads in self.new.maps}
        for mixer in {mixer for mixer, _ in sizes}:
            for source in map(_mixer, self._sources(mixer)):
                old = [self.maps[source, each][1].n for each in ("query", "key") if (source, each) in self.maps]
                new = [sizes[mixer, each] for each in ("query", "key") if (mixer, each) in sizes]
                matters = self._matters(source, "heads")
                if len(old) == len(new) == 2 and matters is not None:
                    kept = heads_that_matter(matters, (new[0], new[1]), (old[0], old[1]))
                    for n, given, each in zip(new, old, kept or (), strict=False):
                        yield (source, n, given), each

    def _regroup(self) -> None:
        """Carry over what makes and reads heads, of other numbers of them, or in a mixer of another kind."""
        whole, met = set(self.carried), set[tuple[str, int]]()  # met: (tensor, where in it), of what layers share once
        for path, heads in self.new.maps:
            sources = (self.maps.get((each, heads.makes)) for each in self._sources(_mixer(path)))
            if (found := next(filter(None, sources), None)) is None:
                continue
            for own in ("weight", "bias"):
                new, old = self.new.tensors.get(f"{path}{own}"), self.old.tensors.get(f"{found[0]}{own}")
                if new is None or old is None:
                    continue
                if new.name in whole and heads.width != found[1].width:
                    self.carried[new.name] = self.carried[new.name]._replace(how=reread(heads, found[1]))
                if new.name in whole or (new.name, heads.first) in met:
                    continue
                met.add((new.name, heads.first))
                kept = self.kept.get((_mixer(found[0]), heads.n, found[1].n))
                self._put(new.name, heads, self.given[old.name], found[1], kept)

    def _put(self, name: str, heads: HeadMap, given: Tensor, theirs: HeadMap, kept: Tensor | None) -> None:
        reads = heads.makes == "output"
        before = self.carried.get(name, CarriedTensor(self.begun[name].clone(), 0))
        dim = 1 if reads else 0
        if dim == given.dim():  # a bias of what reads heads is of none of them
            if before.tensor.shape == given.shape:
                self.carried[name] = CarriedTensor(given, given.numel())
            return
        part = given.narrow(dim, theirs.first, theirs.n * theirs.width).movedim(dim, 0)
        into = before.tensor.narrow(dim, heads.first, heads.n * heads.width).movedim(dim, 0)
        made = regrouped(part.unflatten(0, (theirs.n, theirs.width)), heads.n, reads, kept)
        if made is None or heads.width != theirs.width or part.shape[1:] != into.shape[1:]:
            return
        into.copy_(made[0].flatten(0, 1))
        self.carried[name] = CarriedTensor(before.tensor, before.numel + into.numel(), made[1])


def _network(path: str) -> str:
    """The path of the network that a map's tensor is of."""
    return path.rsplit(".", 2)[0] + "."


def _mixer(path: str) -> str:
    """The path of the mixer that a map is of."""
    return path[: path.index(MIXER) + len(MIXER)] if MIXER in path else path
