"""The shape checks that conftest.py switches on do check, and only shapes."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jaxtyping import TypeCheckError, install_import_hook

from tests.shapes import modules_with_shapes

STATED = """
from jaxtyping import Float
from torch import Tensor

def weighted(x: Float[Tensor, "batch token"], w: Float[Tensor, "batch"], scale: float) -> Float[Tensor, "token"]:
    return scale * (w @ x)

def wrong(x: Float[Tensor, "batch token"]) -> Float[Tensor, "batch"]:
    return x.sum(0)

def unstated(x: int) -> int:
    return x
"""
FOR_THE_TYPE_CHECKER = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jaxtyping import Float\n"


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stated_shapes.py").write_text(STATED, encoding="utf-8")
    with install_import_hook(("stated_shapes",), "tests.shapes.checked"):
        yield importlib.import_module("stated_shapes")
    del sys.modules["stated_shapes"]


def test_a_wrong_shape_is_seen_going_in_and_coming_out(stated: ModuleType) -> None:
    assert stated.weighted(torch.ones(2, 3), torch.ones(2), 1.0).tolist() == [2, 2, 2]
    with pytest.raises(TypeCheckError, match="weighted"):
        stated.weighted(torch.ones(2, 3), torch.ones(4), 1.0)
    with pytest.raises(TypeCheckError, match="wrong"):
        stated.wrong(torch.ones(2, 3))


def test_other_types_are_left_to_the_type_checker(stated: ModuleType) -> None:
    assert stated.weighted(torch.ones(2, 3), torch.ones(2), 2).tolist() == [4, 4, 4]
    assert stated.unstated("no int") == "no int"


def test_a_test_can_have_the_functions_as_users_run_them(stated: ModuleType, shapes_unchecked: None) -> None:
    assert stated.wrong(torch.ones(2, 3)).shape == (3,)
    compiled = torch.compile(stated.weighted, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(2, 3), torch.ones(2), 1.0).tolist() == [2, 2, 2]


def test_only_modules_that_state_shapes_are_instrumented(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "plain.py").write_text("import torch", encoding="utf-8")
    (package / "checker.py").write_text(FOR_THE_TYPE_CHECKER, encoding="utf-8")
    (package / "stated.py").write_text(STATED, encoding="utf-8")
    (package / "room" / "__init__.py").write_text(STATED, encoding="utf-8")
    assert list(modules_with_shapes(package)) == ["house.room", "house.stated"]
