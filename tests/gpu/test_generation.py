"""Writing on the device in every way that there is, as on a CPU; compiled, as replayed by CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from anyformer.families import preset
from anyformer.generation import (
    BeamSearch,
    CompiledStep,
    ContinuousBatch,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    captured,
    decode,
    generate_ids,
    search_ids,
)
from anyformer.generation.sampling import likeliest
from anyformer.layers.block import compile_layers
from anyformer.model import Transformer
from anyformer.resizing import shrink
from tests.generation.test_batch import run, wanted_rows
from tests.gpu.machine import DEVICE, REHEARSED, on_gpu, there
from tests.gpu.test_presets import both_passes
from tests.laws.models import ids_for, randomised
from tests.laws.parity import InDouble
from tests.laws.tolerance import FLOAT32, distance, gradient_distance

# PyTorch's compiler has its own to say, of TF32, of graphs that are empty.
pytestmark = [*on_gpu, pytest.mark.filterwarnings("ignore::UserWarning")]
COMPILED = [
    "gemma2-2b",
    "deepseek-v3",
    "jamba-v0.1",
    "t5-small",
    "gpt2",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
]
NEW = 10


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def model_of(name: str) -> Transformer:
    return randomised(shrink(preset(name).spec))


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_and_the_same_text(name: str) -> None:
    model = there(model_of(name))
    step = CompiledStep(model)
    for rows, n in ((1, 5), (1, 8), (2, 9)):
        given: dict[str, Any] = {"input_ids": ids_for(model.spec, rows, n, seed=n).to(DEVICE)}
        if model.encoder is not None:
            given["decoder_input_ids"] = ids_for(model.spec, rows, 1).to(DEVICE)
        expected = generate_ids(model, **given, max_new_tokens=NEW)
        for _ in range(2):  # a graph is captured, then replayed
            assert generate_ids(model, **given, max_new_tokens=NEW, compiled=step).tolist() == expected.tolist()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were recorded."""
    found, record = list[Any](), captured._recorded
    monkeypatch.setattr(captured, "_recorded", lambda step: (found.append(record(step)), found[-1])[1])
    return found


def as_written(monkeypatch: pytest.MonkeyPatch, model: Transformer, **given: Any) -> Any:
    """The ids of steps that no graph replays."""
    with monkeypatch.context() as patch:
        patch.setattr(decode, "captured", lambda *_: None)
        return generate_ids(model, **given, max_new_tokens=NEW).tolist()


@pytest.mark.parametrize(
    "name", [*COMPILED, "mamba2-2.7b", "bloom-560m", "minicpm3-4b", "gemma3n-e4b", "phi3-small-8k"]
)
def test_a_step_is_recorded(name: str, recorded: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And replayed it writes what is written without."""
    model = there(model_of(name))
    for rows, n in ((1, 5), (2, 9)):
        given: dict[str, Any] = {"input_ids": ids_for(model.spec, rows, n, seed=n).to(DEVICE)}
        if model.encoder is not None:
            given["decoder_input_ids"] = ids_for(model.spec, rows, 1).to(DEVICE)
        expected = as_written(monkeypatch, model, **given)
        before = len(recorded)
        for _ in range(2):
            assert generate_ids(model, **given, max_new_tokens=NEW).tolist() == expected
        assert len(recorded) == before + 2 or REHEARSED


def test_recorded_rows_end_one_by_one_and_are_drawn_alike(monkeypatch: pytest.MonkeyPatch, recorded: list[Any]) -> None:
    model = there(model_of("llama3.2-1b"))
    given: dict[str, Any] = {"input_ids": ids_for(model.spec, 3, 9).to(DEVICE), "sampling": Sampling(1.0), "seed": 3}
    whole = as_written(monkeypatch, model, **given)
    end = whole[0][2]
    expected = as_written(monkeypatch, model, **given, end_of_text=end)
    assert generate_ids(model, **given, max_new_tokens=NEW, end_of_text=end).tolist() == expected
    assert recorded or REHEARSED


@pytest.mark.skipif(REHEARSED, reason="Triton's kernels are a GPU's")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [(5,), (7, 4, 3), (1024, 256)])
@pytest.mark.parametrize("width", [64, 300, 2048, 5000])
def test_products_with_one_vector(dtype: torch.dtype, sizes: tuple[int, ...], width: int) -> None:
    from anyformer.layers.vectors import vector_products

    generator = torch.Generator().manual_seed(0)
    x, *matrices = (
        torch.randn(*shape, width, generator=generator).to(DEVICE, dtype) for shape in ((), *((n,) for n in sizes))
    )
    expected = torch.cat(matrices).double() @ x.double()
    found = vector_products(x, matrices)
    assert found.dtype == dtype
    assert distance(found.double(), expected) < (4e-3 if dtype == torch.bfloat16 else FLOAT32)


def test_the_likeliest_of_equals_is_the_first() -> None:
    logits = torch.randn(3, 512).round()
    logits[2, 77] = torch.nan
    expected = [int((row == row.max()).nonzero()[0]) for row in logits[:2]]
    found = likeliest(logits.to(DEVICE)).tolist()
    assert found[:2] == expected
    assert found[2] == 77


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_are_compiled(dtype: torch.dtype) -> None:
    model = there(model_of("llama3.2-1b")).to(dtype)
    ids = ids_for(model.spec, 1, 8).to(DEVICE)
    expected = generate_ids(model, ids, max_new_tokens=NEW)
    found = generate_ids(model, ids, max_new_tokens=NEW, compiled=CompiledStep(model))
    assert found.shape == expected.shape
    if dtype == torch.float32:
        assert found.tolist() == expected.tolist()


def test_a_cache_in_8_bits() -> None:
    written = []
    with InDouble():
        model = model_of("llama3.2-1b").double()
        for each in (model, there(model)):
            each.cache_dtype = torch.int8
            ids = ids_for(model.spec, 2, 12).to(next(each.parameters()).device)
            written.append(generate_ids(each, ids, max_new_tokens=NEW).tolist())
    assert written[0] == written[1]


@pytest.mark.parametrize("name", ["mistral-7b-v0.1", "deepseek-v3", "mamba2-2.7b"])
def test_rows_that_come_and_go(name: str) -> None:
    with InDouble():
        model = model_of(name).double()
        wanted = wanted_rows(model.spec, 6)
        expected, found = (run(ContinuousBatch(each, 60), wanted, 3) for each in (model, there(model)))
    assert found == expected


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0, top_p=0.9)])
def test_guesses_and_draws(sampling: Sampling) -> None:
    def written(model: Transformer) -> list[Any]:
        ids = ids_for(model.spec, 1, 12).to(next(model.parameters()).device)
        way: dict[str, Any] = {"sampling": sampling, "seed": 3, "max_new_tokens": NEW}
        guessed = [step[0] for step in SpeculativeDecoding(model, ids, None, PromptLookup(4), **way)]
        return [guessed, generate_ids(model, ids, **way).tolist()]

    with InDouble():
        model = model_of("llama3.2-1b").double()
        assert written(there(model)) == written(model)


def test_beams() -> None:
    with InDouble():
        model = model_of("gpt2").double()
        ids = ids_for(model.spec, 2, 7)
        expected = search_ids(model, ids, max_new_tokens=8, how=BeamSearch(3))
        found = search_ids(there(model), ids.to(DEVICE), max_new_tokens=8, how=BeamSearch(3))
    texts, others = ([[each.token_ids for each in row] for row in rows] for rows in (found, expected))
    assert texts == others


@pytest.mark.parametrize("name", ["llama3.2-1b", "gemma2-2b", "mixtral-8x7b", "deepseek-v3", "mamba2-2.7b", "t5-small"])
def test_layers_compiled_in_training(name: str) -> None:
    model = model_of(name)
    expected, wanted = both_passes(there(model))
    fast = there(model)
    compile_layers(fast)
    logits, gradients = both_passes(fast)
    assert distance(logits, expected) < 10 * FLOAT32
    assert gradient_distance(gradients, wanted) < 10 * FLOAT32
