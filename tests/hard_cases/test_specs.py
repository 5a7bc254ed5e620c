"""The hard cases as data: they are written and read, hashed, shrunk, counted, and built or refused."""

from __future__ import annotations

import re

import pytest
import torch

from anyformer.errors import SpecError
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place, Workload, dumps, loads, tensors
from tests.hard_cases.case import Case
from tests.hard_cases.cases import CASES

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def trainable(spec: ModelSpec, *, headless: bool = False) -> int:
    """Return how many numbers training moves."""
    every = tensors(spec, Place())
    return sum(w.numel for name, w in every if w.trainable and not (headless and name.startswith("heads.")))


@each
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_written_and_read_it_is_the_same_value(case: Case, form: str) -> None:
    spec = case.spec()
    text = dumps(spec, "json" if form == "json" else "yaml")
    assert loads(text) == spec
    assert hash(loads(text)) == hash(spec)
    assert len(text) < 12_000, "a stack of layers must be written by its pattern"
    other = spec.but(stack=spec.stack.but(blocks=spec.stack.blocks[:-1]))
    assert loads(dumps(other)) != spec


@each
def test_it_has_the_published_number_of_parameters(case: Case) -> None:
    count = trainable(case.spec(), headless=case.headless)
    digits, unit = re.fullmatch(r"([\d.,]+)([MB]?)", case.published).groups()  # type: ignore[union-attr]
    places = len(digits.partition(".")[2])
    scale = {"": 1, "M": 10**6, "B": 10**9}[unit]
    print(f"{case.name}: {count:,} ({trainable(case.spec()):,} with all heads), published {case.published}")  # noqa: T201
    assert f"{count / scale:,.{places}f}" == digits


@pytest.mark.parametrize("case", [case for case in CASES if case.theirs], ids=lambda case: case.name)
def test_it_has_as_many_parameters_as_an_independent_implementation(case: Case) -> None:
    assert case.theirs is not None
    with torch.device("meta"):
        theirs = sum(parameter.numel() for parameter in case.theirs().parameters())
    assert trainable(case.spec()) == theirs - case.surplus


@each
def test_shrunk_it_keeps_its_structure(case: Case) -> None:
    spec, small = case.spec(), shrink(case.spec())
    assert trainable(small) < 10**6
    assert {part.kind for part in small.nested()} == {part.kind for part in spec.nested()}
    assert loads(dumps(small)) == small
    layers = [len(set(stack.blocks)) for stack in (spec.stack, small.stack)]
    assert layers[0] == layers[1], "every kind of layer stays"


@each
def test_it_builds_or_says_which_part_has_no_module(case: Case) -> None:
    small = shrink(case.spec())
    if case.missing is not None:
        with pytest.raises(SpecError, match=rf"^{case.missing}: this part has no module yet"):
            build(small)
        return
    model = build(small)
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {n: w.shape for n, w in tensors(small, Place())}
    ids = torch.randint(0, small.vocab_size, (2, 9))
    outputs = model(ids, decoder_input_ids=ids if small.encoder else None).outputs
    torch.stack([logits.square().sum() for logits in outputs.values()]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@each
def test_its_attention_has_a_cost_at_published_size(case: Case) -> None:
    spec = case.spec()
    cost = spec.cost(Place(), Workload(query=512, memory=512 if spec.encoder else 0))
    assert cost["scores"] > 0
    assert cost["logits"] > 0
