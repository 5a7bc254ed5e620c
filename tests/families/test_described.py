"""A preset, or a model, wherever a specification is taken; and one line for what is neither."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families import ALIASES, PRESETS, preset
from anyformer.spec import is_path, label, specification

TAKING: dict[str, Callable[[Any], Any]] = {
    "build": lambda what: [p.shape for p in af.build(what, device="meta").parameters()],
    "cost": lambda what: af.cost(what, seq_len=8),
    "parameters": af.parameters,
    "resize": lambda what: af.resize(what, vocab_size=300),
    "shrink": af.shrink,
    "dumps": af.dumps,
    "specification": specification,
}


@pytest.mark.parametrize("take", TAKING.values(), ids=list(TAKING))
def test_all_stand_for_their_specification(take: Callable[[Any], Any]) -> None:
    preset = af.preset("llama3.2-1b")
    expected = take(preset.spec)
    assert take(preset) == expected
    assert take(af.build(preset, device="meta")) == expected
    assert take(preset.name) == expected


@pytest.mark.parametrize("take", TAKING.values(), ids=list(TAKING))
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("llama2-7", "there is no preset 'llama2-7' (did you mean 'llama2-7b'?)"),
        (7, "7 is no specification and has none; give a name, a ModelSpec, a Preset or a model"),
        (None, "None is no specification"),
        (torch.nn.Linear(2, 2), "Linear(in_features=2"),
        ({"anyformer": "1" * 200}, "{'anyformer': '1111"),
    ],
    ids=["a name", "a number", "None", "another module", "a long one"],
)
def test_anything_else_is_refused_in_one_line(take: Callable[[Any], Any], given: object, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        take(given)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_a_part_is_counted_but_not_built_as_a_model() -> None:
    block = af.shrink(af.preset("gpt2")).stack
    assert af.parameters(block).total > 0
    with pytest.raises(SpecError, match="is no specification"):
        af.build(block)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "path", "called"),
    [
        ("llama3.1-8b", False, "llama3.1-8b"),
        ("gpt2", False, "gpt2"),
        ("small", False, "small"),
        ("runs/first", True, "first"),
        ("./llama3.1-8b", True, "llama3.1-8b"),
        ("mine.yaml", True, "mine"),
        ("a/mine.v2.JSON", True, "mine.v2"),
        ("model.gguf", True, "model"),
        ("model.safetensors", True, "model"),
        ("c:\\models", True, "c:\\models"),
    ],
)
def test_a_path_and_what_it_is_called(name: str, path: bool, called: str) -> None:
    assert is_path(name) is path
    assert label(name) == called


def test_short_names_are_of_presets_and_hide_none() -> None:
    assert set(ALIASES.values()) <= set(PRESETS)
    assert not set(ALIASES) & set(PRESETS)
    assert preset("gemma3").name == "gemma3-4b"
