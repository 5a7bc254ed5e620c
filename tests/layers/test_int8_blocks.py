"""Products of integers are those of the int8 numbers held, in float32's precision; the matrix stays what it was to all else."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import CheckpointError, KernelError
from anyformer.families import preset
from anyformer.generation import generate_ids, lay_out_for_decoding, layout
from anyformer.hub import load, save
from anyformer.layers.held import HeldWeight
from anyformer.layers.int8 import Int8
from anyformer.layers.int8_blocks import Int8Blocks, has_integer_products
from anyformer.layers.packed import PackedWeight
from anyformer.layers.reordered import Reordered, whole
from anyformer.model import Transformer
from anyformer.resizing import shrink
from tests.laws.models import ids_for, randomised

with_integers = pytest.mark.skipif(
    not has_integer_products(), reason="a processor without VNNI, or PyTorch without oneDNN"
)
EXACT = 2.0**-23  # of the largest of a vector's numbers: what each is off by, at most, of 2^22 steps to that one


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * (0.1 + 3 * torch.rand(*shape[:-1], 1, generator=generator))


def of(matrix: Tensor) -> tuple[PackedWeight, Reordered]:
    packed = PackedWeight.of(matrix, Int8())
    return packed, whole(Int8Blocks(*packed.held))


@with_integers
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 16, 300])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 48), (130, 257), (33, 1024)])
def test_products_are_those_of_the_numbers_held(n: int, shape: tuple[int, int]) -> None:
    packed, blocks = of(drawn(*shape) + 0.3)
    x, bias = drawn(2, n, shape[1], seed=n), torch.randn(shape[0])
    x[:, :1, :] *= 1e6
    x[:, -1:, :] *= 1e-6
    plain = packed.plain().double()
    expected = x.double() @ plain.T
    largest = x.double().abs().amax(-1, keepdim=True)
    bound = EXACT * (largest * plain.abs().sum(1) + expected.abs())
    for b in (None, bias):
        found = F.linear(x, blocks, b)
        assert (found.dtype, found.shape) == (torch.float32, (2, n, shape[0]))
        shift = 0 if b is None else b.double()
        assert ((found.double() - expected - shift).abs() <= bound + 1e-6 * (expected + shift).abs()).all()


@with_integers
def test_no_sum_of_integers_is_beyond_32_bits() -> None:
    """The largest that there are: wider rows than hold it are multiplied as ever."""
    for width, fits in ((66_311, True), (66_312, False)):
        held = PackedWeight.of(torch.ones(2, width), Int8()).held
        blocks = Int8().in_blocks(held)
        assert (blocks is not None) == fits
        if blocks is not None:
            x = torch.full((1, width), 1 - 2.0**-22)  # in bytes 127, 255 and 255 beside a number of 1
            x[0, 0] = 1
            expected = x.double() @ Int8().unpack(held).double().T
            torch.testing.assert_close(blocks.products(x, None), expected.float())


@with_integers
def test_vectors_lie_as_they_may() -> None:
    """As a convolution leaves those of one text: feature by feature."""
    packed, blocks = of(drawn(24, 32))
    for x in (drawn(1, 32, 5).mT, drawn(32, 5).t(), drawn(1, 5, 1).expand(1, 5, 32), drawn(1, 5, 64)[..., ::2]):
        torch.testing.assert_close(F.linear(x, blocks), x @ packed.plain().T, rtol=1e-5, atol=1e-5)


@with_integers
def test_what_a_vector_is_rounded_to() -> None:
    """Each number by itself, as products with an identity tell it."""
    packed, blocks = of(torch.eye(64))
    x = drawn(500, 64)
    found, expected = F.linear(x, blocks).double() / packed.plain()[0, 0].double(), x.double()
    off = (found - expected).abs() / expected.abs().amax(-1, keepdim=True)
    assert off.max() <= 2.0 * EXACT, "half a step, and the rounding of what comes out"
    assert off.mean() <= 0.6 * EXACT


@with_integers
def test_vectors_of_zeros_and_of_numbers_that_are_none() -> None:
    _, blocks = of(drawn(8, 40))
    x = torch.zeros(4, 40)
    x[1, 3], x[2, 5], x[3, :2] = torch.nan, torch.inf, torch.tensor([3e38, 1e-45])
    y = F.linear(x, blocks)
    assert y[0].eq(0).all()
    assert not y[1:3].isfinite().any()
    assert torch.isfinite(F.linear(x[3:] / 1e4, blocks)).all()


@with_integers
def test_the_matrix_stays_what_it_was() -> None:
    packed, blocks = of(drawn(20, 12))
    plain = packed.plain()
    assert isinstance(blocks, HeldWeight)
    assert torch.equal(blocks + 0, plain)
    assert torch.equal(F.embedding(torch.tensor([3, 19]), blocks), plain[[3, 19]])
    for again in (copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks)), blocks.clone()):
        assert isinstance(again, Reordered)
        assert torch.equal(again + 0, plain)
    first, second = blocks.split([8, 12])
    assert isinstance(first, Reordered)
    assert isinstance(second, Reordered)
    assert torch.equal(second + 0, plain[8:])
    assert torch.equal(second.clone() + 0, plain[8:])
    assert first.lies_in(blocks)
    copied: Any = first.clone()
    assert not copied.lies_in(blocks)
    x = torch.randn(3, 12)
    torch.testing.assert_close(F.linear(x, second), x @ plain[8:].T)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(F.linear(x, blocks), F.linear(x, plain))
    for refused in (lambda: blocks.requires_grad_(), lambda: blocks.mul_(2), lambda: second.zero_()):
        with pytest.raises(KernelError):
            refused()
    assert torch.equal(blocks + 0, plain)


def unpacked(model: Transformer) -> Transformer:
    """The same numbers in float32, row by row."""
    plain = randomised(model.spec)
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            held: Any = model.get_parameter(name)
            weight.copy_(held.plain() if isinstance(held, HeldWeight) else held)
    return plain.eval()


def packed_in(tmp_path: Path, name: str) -> Transformer:
    save(randomised(shrink(preset(name).spec)), tmp_path / name)
    return load(tmp_path / name, dtype="int8")[0].eval()


NAMES = ["llama2-7b", "deepseek-v2-lite", "gemma3-1b", "mixtral-8x7b", "t5-base", "gpt2"]


@with_integers
@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_8_bits_writes_what_its_numbers_write(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no product is left that rounds vectors: experts and tied tables are multiplied as they lie."""
    monkeypatch.setattr(layout, "LEAST", 1)
    model = packed_in(tmp_path, name)
    plain = unpacked(model)
    ids = ids_for(model.spec, 2, 9)
    start: dict[str, Any] = {"decoder_input_ids": ids[:, :1]} if model.encoder is not None else {}
    names = {name for name, each in model.named_parameters() if isinstance(each, PackedWeight)}
    assert lay_out_for_decoding(model) is model
    left = {name for name, each in model.named_parameters() if isinstance(each, PackedWeight)}
    assert left < names
    with torch.no_grad():
        found, expected = (each(ids, **start).logits for each in (model, plain))
    if not any(word in each for each in left for word in ("experts", "tokens")):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)
    with pytest.raises(CheckpointError, match="weights in few bits"):
        save(model, tmp_path / "again")


@with_integers
def test_one_text_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LEAST", 1)
    model = packed_in(tmp_path, "llama2-7b")
    plain = unpacked(model)
    ids = ids_for(model.spec, 1, 9)
    texts = [generate_ids(each, ids, max_new_tokens=40) for each in (lay_out_for_decoding(model), plain)]
    assert torch.equal(*texts)
