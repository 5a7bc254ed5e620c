"""Products with one vector by an operator of our own: asked once for maps of one input; its kernel made for a GPU that is not
here, where Triton is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.families import preset
from anyformer.generation import CompiledStep, generate_ids
from anyformer.layers import linear
from anyformer.resizing import shrink
from tests.laws.models import ids_for, randomised
from tests.sample import in_turn

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with PyTorch for GPUs")


@torch.library.custom_op("anyformer_tests::vector_products", mutates_args=())
def stand_in(x: Tensor, matrices: list[Tensor]) -> Tensor:
    return torch.cat([each @ x for each in matrices])


@stand_in.register_fake
def _(x: Tensor, matrices: list[Tensor]) -> Tensor:
    return x.new_empty(sum(map(len, matrices)))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "of_layer"),
    [("llama3.2-1b", [3, 1, 2, 1]), in_turn("gpt2", [1] * 6), in_turn("gemma3-1b", [3, 1, 2, 1])],
)
def test_maps_of_one_input_are_one_product(name: str, of_layer: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """q, k and v, gate and up; with biases each by itself. Of two rows a library is asked."""
    monkeypatch.setitem(linear._VECTOR_PRODUCTS, "cpu", stand_in)
    asked: list[list[int]] = []

    def backend(graph: Any, examples: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if "anyformer_tests" in str(node.target)]
        asked.append([len(node.args[1]) for node in nodes])
        return graph.forward

    model = randomised(shrink(preset(name).spec))
    for rows in (1, 2):
        ids = ids_for(model.spec, rows, 5)
        found = generate_ids(model, ids, max_new_tokens=6, compiled=CompiledStep(model, backend))
        assert found.tolist() == generate_ids(model, ids, max_new_tokens=6).tolist()
    assert asked == [[*of_layer * len(model.stack.blocks), 1], []]


def test_a_vector_with_gaps_is_left_to_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator reads numbers that lie one behind the other."""
    given: list[Tensor] = []

    def noted(x: Tensor, matrices: list[Tensor]) -> Tensor:
        given.append(x)
        return stand_in(x, matrices)

    monkeypatch.setitem(linear._VECTOR_PRODUCTS, "cpu", noted)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    weight = torch.randn(5, 32)
    with torch.inference_mode():
        for x, asked in ((torch.randn(1, 1, 32), 1), (torch.randn(1, 1, 64)[..., ::2], 0)):
            given.clear()
            torch.testing.assert_close(linear.product(x, weight), x @ weight.T)
            assert len(given) == asked


def run(code: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@needs_triton
def test_the_kernel_adds_up_rows() -> None:
    """Written out by Triton's interpreter: one matrix to three, widths that no power of two divides, rows that are no pairs."""
    run(
        """
import torch, triton
from anyformer.layers.vectors import ROWS, _rows
for sizes, width in (((5,), 2048), ((7, 4, 3), 300), ((6, 6), 64), ((1, 2, 1), 1)):
    x, matrices = torch.randn(width), [torch.randn(n, width) for n in sizes]
    y, missing = torch.full((sum(sizes),), torch.nan), 3 - len(sizes)
    programs = sum(triton.cdiv(n, ROWS) for n in sizes)
    given = (*matrices, *[matrices[0]] * missing, y, *sizes, *[0] * missing)
    _rows[(programs,)](x, *given, width, ROWS, min(1024, triton.next_power_of_2(width)))
    torch.testing.assert_close(y.double(), torch.cat(matrices).double() @ x.double(), rtol=1e-4, atol=1e-4)
""",
        TRITON_INTERPRET="1",
    )


@needs_triton
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_kernel_is_made_for_a_gpu(dtype: str) -> None:
    """A matrix is read 16 bytes at a time."""
    said = run(
        f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from anyformer.layers.vectors import WARPS, _rows
from tests.sample import in_turn
kinds = dict(dict.fromkeys(_rows.arg_names[:5], "*{dtype}"), n0="i32", n1="i32", n2="constexpr")
kinds |= dict.fromkeys(("width", "rows", "columns"), "constexpr")
aligned = {{(i,): [["tt.divisibility", 16]] for i in range(5)}}
source = ASTSource(_rows, kinds, dict(n2=1, width=2048, rows=2, columns=1024), aligned)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={{"num_warps": WARPS}})
print(made.asm["ptx"].count("ld.global.v4"), made.asm["ptx"].count("ld.global"))
"""
    )
    wide, every = map(int, said.split())
    assert wide == every > 0
