"""A matrix in blocks is the matrix that it was: its products, its numbers, and what is written to it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from anyformer.errors import KernelError, UsageError
from anyformer.families import preset
from anyformer.generation import (
    CompiledStep,
    ContinuousBatch,
    DraftModel,
    PromptLookup,
    Sampling,
    SpeculativeDecoding,
    Wanted,
    generate_ids,
    lay_out_for_decoding,
    layout,
)
from anyformer.generation.batch import BatchRow
from anyformer.hub import load, save
from anyformer.layers.held import HeldWeight
from anyformer.layers.reordered import Reordered, can_reorder, in_blocks
from anyformer.model import Transformer
from anyformer.resizing import shrink
from tests.laws.models import ids_for, randomised

pytestmark = pytest.mark.skipif(not can_reorder(torch.zeros(2, 2)), reason="PyTorch without oneDNN's operators")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 300])
@pytest.mark.parametrize("shape", [(7, 5), (64, 48), (130, 257)])
def test_products(n: int, shape: tuple[int, int]) -> None:
    torch.manual_seed(n)
    weight, bias, x = torch.randn(shape), torch.randn(shape[0]), torch.randn(2, n, shape[1])
    blocks = in_blocks(weight)
    for b in (None, bias):
        torch.testing.assert_close(F.linear(x, blocks, b), F.linear(x, weight, b), atol=1e-4, rtol=1e-4)
    part = Reordered(blocks.blocks, slice(2, 6))
    torch.testing.assert_close(F.linear(x, part, bias[2:6]), F.linear(x, weight[2:6], bias[2:6]), atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(F.linear(x, blocks, bias), F.linear(x, weight, bias)), "in bfloat16 as ever"
    given = x.clone().requires_grad_()
    F.linear(given, blocks).square().sum().backward()
    wanted = (2 * F.linear(x, weight)) @ weight
    torch.testing.assert_close(given.grad, wanted, atol=1e-2, rtol=1e-4)


def test_numbers() -> None:
    weight = torch.randn(20, 12)
    blocks = in_blocks(weight)
    assert isinstance(blocks, HeldWeight)
    assert torch.equal(blocks + 0, weight)
    assert torch.equal(blocks[3], weight[3])
    assert blocks.nbytes == weight.nbytes
    for again in (copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks)), blocks.clone()):
        assert isinstance(again, Reordered)
        assert torch.equal(again + 0, weight)
    first, second = (Reordered(blocks.blocks, slice(*each)) for each in ((0, 8), (8, 20)))
    first.mul_(2)
    second.copy_(torch.ones(12, 12))
    assert torch.equal(blocks + 0, torch.cat([2 * weight[:8], torch.ones(12, 12)])), (
        "what is written to a part is written"
    )
    assert torch.equal(blocks.to(torch.float64), (blocks + 0).double())
    with torch.no_grad():
        pair = copy.deepcopy((first, second))
        assert pair[0].blocks is pair[1].blocks, "parts of one stay parts of one"
        pair[1].zero_()
        assert first.blocks.plain()[8:].eq(1).all()
    with pytest.raises(KernelError, match="load the model anew to train it"):
        blocks.requires_grad_()
    map_ = torch.nn.Linear(12, 20, bias=False).requires_grad_(False)
    map_.weight = torch.nn.Parameter(blocks, requires_grad=False)
    map_.weight.data = other = in_blocks(torch.randn(20, 12))
    assert torch.equal(map_.weight + 0, other + 0), "as an adapter that is merged with care is written"
    map_.weight.data = weight
    assert torch.equal(map_.weight + 0, weight)
    for change in (map_.double, map_.bfloat16, map_.share_memory):
        with pytest.raises(KernelError, match="are float32, of one process"):
            change()


def laid_out(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Transformer, Transformer]:
    monkeypatch.setattr(layout, "LEAST", 1)
    plain, model = (randomised(shrink(preset(name).spec)) for _ in range(2))
    assert lay_out_for_decoding(model, several=True) is model
    assert any(isinstance(each, Reordered) for each in model.parameters())
    return plain, model


@pytest.mark.parametrize("name", ["llama2-7b", "deepseek-v2-lite", "gemma3-1b", "falcon-7b", "mixtral-8x7b", "t5-base"])
def test_a_model_stays_what_it_is(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain, model = laid_out(name, monkeypatch)
    kept = model.state_dict()
    assert all(torch.equal(weight, kept[name]) for name, weight in plain.state_dict().items())
    ids = ids_for(model.spec, 3, 9)
    start: dict[str, Any] = {"decoder_input_ids": ids[:, :1]} if model.encoder is not None else {}
    for sampling in (Sampling(), Sampling(temperature=2.0)):
        texts = [generate_ids(each, ids, max_new_tokens=9, sampling=sampling, **start) for each in (plain, model)]
        assert torch.equal(*texts)
    save(model, tmp_path / "saved")
    read = load(tmp_path / "saved")[0].state_dict()
    assert all(torch.equal(weight, read[name]) for name, weight in plain.state_dict().items())
    model.load_state_dict({name: 2 * weight for name, weight in plain.state_dict().items()})
    assert all(torch.equal(weight, 2 * plain.state_dict()[name]) for name, weight in model.state_dict().items())


def test_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = laid_out("llama2-7b", monkeypatch)
    ids = ids_for(model.spec, 1, 9)
    wanted = generate_ids(plain, ids, max_new_tokens=12)[0].tolist()
    for guessing in (PromptLookup(4), DraftModel(model, 3)):
        steps = SpeculativeDecoding(model, ids, None, guessing, max_new_tokens=12)
        assert [step[0] for step in steps] == wanted


def test_requests_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = laid_out("gemma3-1b", monkeypatch)
    prompts = [row[: 4 + i].tolist() for i, row in enumerate(ids_for(model.spec, 4, 9))]
    batch, waiting = ContinuousBatch(model, 20), [*prompts]
    texts: dict[BatchRow, list[int]] = {}
    while waiting or any(not row.ended for row in batch.rows):
        if waiting:
            row, first = batch.add(Wanted(tuple(waiting.pop(0)), 8))
            assert first is not None
            texts[row] = [first.token_id]
        for row, chosen in batch.step().items():
            texts[row].append(chosen.token_id)
    for text, prompt in zip(texts.values(), prompts, strict=True):
        assert text == generate_ids(plain, torch.tensor([prompt]), max_new_tokens=8)[0].tolist()


def test_parts_are_taken_of_it_where_text_is_written() -> None:
    """In inference mode, which holds views to be of their tensor's kind."""
    matrix = torch.randn(32, 16)
    blocks = in_blocks(matrix)
    with torch.inference_mode():
        assert torch.equal(blocks[3:5], matrix[3:5])
        assert torch.equal(blocks.t(), matrix.t())
        assert isinstance(blocks.detach(), Reordered)


def test_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="laid out for steps that are not compiled"):
        CompiledStep(laid_out("llama2-7b", monkeypatch)[1])


def test_small_matrices_stay() -> None:
    """Below a million numbers the operator costs more than blocks save."""
    model = lay_out_for_decoding(randomised(shrink(preset("llama2-7b").spec)), several=True)
    assert not any(isinstance(each, Reordered) for each in model.parameters())
