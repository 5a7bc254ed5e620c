"""Fields that distinguish a family, each changed once: a model that is changed so must be seen to be another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Spec
from tests.laws.parity import moves
from tests.laws.tolerance import VISIBLE

Mutation = tuple[type[Spec], dict[str, Any]]  # every such part of the model, and what of it is changed


def each_mutation(mutations: Mapping[str, Sequence[Mutation]]) -> pytest.MarkDecorator:
    """Give a test the arguments name, part and fields, for each mutation of each preset."""
    cases = [
        pytest.param(name, part, fields, id=f"{name} {part.kind} {fields}")
        for name, several in mutations.items()
        for part, fields in several
    ]
    return pytest.mark.parametrize(("name", "part", "fields"), cases)


def check_mutation(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    """Fail where the shrunk preset computes the same with these fields changed."""
    spec = shrink(preset(name).spec)
    check_seen(spec, changed(spec, part, **fields))


def check_seen(spec: ModelSpec, mutated: ModelSpec) -> None:
    """Fail where a model and a mutated one are equal, or compute the same but for rounding."""
    assert mutated != spec
    assert moves(spec, mutated) > VISIBLE
