"""Layers that are one object are asked once; what comes out is what layers of their own would say, each asked by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from anyformer.families import preset
from anyformer.spec import BlockSpec, ModelSpec, Place, StackSpec, Workload, inside, tensors

# One kind of layer; two in turn; some at the start; one set of weights for all; a shared bias in both stacks; layers ahead.
NAMES = ("llama2-7b", "gemma3-27b", "deepseek-v3", "albert-base", "t5-base", "deberta-v3-base")
LOAD = Workload(batch=2, query=48, memory=48)


def with_layers(spec: ModelSpec, layer: Callable[[BlockSpec], BlockSpec]) -> ModelSpec:
    def of(stack: StackSpec) -> StackSpec:
        return stack.but(blocks=tuple(map(layer, stack.blocks)))

    return spec.but(stack=of(spec.stack), encoder=spec.encoder and of(spec.encoder))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_costs_are_those_of_layers_apart(name: str) -> None:
    spec, known = preset(name).spec, dict[BlockSpec, BlockSpec]()
    tiled = with_layers(spec, lambda block: known.setdefault(block, block))
    apart = with_layers(spec, copy.deepcopy)
    assert list(tensors(tiled, Place())) == list(tensors(apart, Place()))
    assert dict(tiled.cost(Place(), LOAD)) == dict(apart.cost(Place(), LOAD))
    for stack in tiled.stacks.values():
        each = [part.cost(place, LOAD) for _, part, place in inside(stack, Place(d_source=64))]
        terms = {term for one in each for term in one}
        assert dict(stack.cost(Place(d_source=64), LOAD)) == {term: sum(x.get(term, 0) for x in each) for term in terms}
