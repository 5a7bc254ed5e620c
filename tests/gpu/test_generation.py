"""Writing on the device in every way that there is, as on a CPU; compiled, as replayed by CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from anyformer.families import preset
from anyformer.generation import (
    Batch,
    BeamSearch,
    CompiledStep,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    generate_ids,
    search_ids,
)
from anyformer.layers.block import compile_layers
from anyformer.model import Transformer
from anyformer.resizing import shrink
from tests.generation.test_batch import run, wanted_rows
from tests.gpu.machine import DEVICE, on_gpu, there
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
        expected, found = (run(Batch(each, 60), wanted, 3) for each in (model, there(model)))
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
