"""Which layers stay, of a model of layers of several kinds or whose maps are not told apart, that is cut by what matters."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import anyformer as af
from anyformer.hub import transplant
from anyformer.inspection import keeping
from anyformer.inspection.importance import importance
from anyformer.model import Transformer
from tests.inspection.looked_at import TEXT, small, tokenizer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 4, encoding="utf-8")
    return path


def saved(directory: Path, name: str, **changes: object) -> Path:
    af.save(small(name, **changes), directory / "whole", tokenizer=tokenizer())
    return directory / "whole"


@pytest.mark.parametrize(
    ("name", "given", "asked"),
    [
        ("deepseek-v3", 5, "+n_layers=4"),  # a network, then experts
        ("qwen3-next-80b-a3b", 8, "+n_layers=3"),  # states, then attention
        ("gemma3-1b", 12, "+n_layers=6+d_ff=16"),  # windows, then none
    ],
)
def test_layers_that_stay_are_in_turn_of_the_kinds_asked_for(
    name: str, given: int, asked: str, text: Path, tmp_path: Path
) -> None:
    path = saved(tmp_path, name, n_layers=given)
    made = af.transplant(f"{path}{asked}", path, text, tokens=64)
    assert not made.new
    (layers,) = (said for said in made.how if said.startswith("layers "))
    donor = af.load(path)[0].spec.stack.blocks
    chosen = [int(each) for each in layers.split()[1].split(",")]
    kinds = [str(donor[i].sublayers[0].branches[0].mixer) for i in chosen]
    assert kinds == [str(block.sublayers[0].branches[0].mixer) for block in made.model.spec.stack.blocks]


def test_the_given_model_is_not_held_twice(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, met = saved(tmp_path, "llama3-8b"), []

    def judged(model: Transformer, *rest: Any) -> Any:
        met.append(ref(model))
        return importance(model, *rest)

    def carried_over(*given: Any, **options: Any) -> Any:
        gc.collect()
        assert met[0]() is None
        return transplant(*given, **options)

    monkeypatch.setattr(keeping, "importance", judged)
    monkeypatch.setattr(keeping, "carried_over", carried_over)
    assert af.transplant(f"{path}+d_ff=16", path, text, tokens=64).model.spec.n_layers == 2


def test_layers_of_a_model_without_output_maps(text: Path, tmp_path: Path) -> None:
    """An LSTM's neurons are not told apart, but features of the stream are: its layers are chosen by the loss all the same."""
    path = saved(tmp_path, "lstm-medium")
    assert af.inspect(path, text, tokens=64).importance.keys() == {"stack"}
    made = af.transplant(f"{path}+n_layers=1", path, text, tokens=64)
    assert not made.new
    assert made.how[0].endswith("of 2, those that matter most")
