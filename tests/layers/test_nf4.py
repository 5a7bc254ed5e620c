"""NF4: its levels are the paper's, what is held is the nearest of them, number by number, and bitsandbytes' numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.nf4 import LEVELS, NF4
from anyformer.layers.packed import PackedWeight
from tests.layers.test_packed import weight_of

# Dettmers et al. 2023, arXiv:2305.14314, appendix E.
PUBLISHED = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
SCHEME = NF4()


def test_levels_are_the_papers() -> None:
    assert pytest.approx(PUBLISHED, abs=2e-7) == LEVELS


def test_each_number_is_the_nearest_level_of_the_largest_of_its_64() -> None:
    weight = weight_of(9, 192)
    packed = PackedWeight.of(weight, SCHEME)
    for row, held in zip(weight.tolist(), packed.plain().tolist(), strict=True):
        for at in range(0, 192, 64):
            scale = max(map(abs, row[at : at + 64]))
            for number, found in zip(row[at : at + 64], held[at : at + 64], strict=True):
                nearest = min((scale * level for level in PUBLISHED), key=lambda each: abs(each - number))
                assert found == pytest.approx(nearest, abs=1e-6 * scale)
    assert packed.nbytes == 9 * 192 // 2 + 4 * 9 * 3 == SCHEME.nbytes((9, 192))


def test_numbers_are_those_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    weight = weight_of(32, 256)
    numbers, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    packed = PackedWeight.of(weight, SCHEME)
    same = packed.numbers.flatten() == numbers.flatten()
    assert same.float().mean() > 0.999, "a number between two levels may go either way"
    theirs = functional.dequantize_4bit(numbers, state)
    reach = weight.unflatten(1, (-1, 64)).abs().amax(-1, keepdim=True).expand(-1, -1, 64).flatten(1)
    assert ((packed.plain() - theirs).abs()[same.view(32, -1).repeat_interleave(2, 1)] <= 1e-6 * reach.max()).all()
    assert ((packed.plain() - weight).abs() <= (theirs - weight).abs() + 1e-6 * reach).all()


@pytest.mark.parametrize("seed", range(4))
def test_packed_again_it_is_the_same(seed: int) -> None:
    """To the bit: a run that goes on packs what it wrote down in float32."""
    packed = PackedWeight.of(weight_of(64, 256, seed=seed), SCHEME)
    again = PackedWeight.of(packed.plain(), SCHEME)
    assert all(map(torch.equal, packed.held, again.held))


@pytest.mark.parametrize("n", [0, 1, 70])
def test_products_are_plain_ones(n: int) -> None:
    packed, bias = PackedWeight.of(weight_of(48, 128), SCHEME), torch.randn(48)
    x = torch.randn(2, n, 128, requires_grad=True)

    def both(weight: Tensor) -> list[Tensor]:
        with torch.no_grad():
            written = F.linear(x, weight, bias)
        trained = F.linear(x, weight, bias)
        return [written, trained, *torch.autograd.grad(trained.square().sum(), x)]

    for ours, theirs in zip(both(packed), both(packed.plain()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_rows_and_parts() -> None:
    packed = PackedWeight.of(weight_of(64, 128), SCHEME)
    ids = torch.tensor([[5, 0], [63, 5]])
    assert torch.equal(F.embedding(ids, packed), packed.plain()[ids])
    for part, whole in zip(packed.split([24, 40]), packed.plain().split([24, 40]), strict=True):
        assert isinstance(part, PackedWeight)
        assert torch.equal(part + 0, whole)


def test_it_goes_to_any_device() -> None:
    there = PackedWeight.of(weight_of(64, 128), SCHEME).to("meta")
    assert isinstance(there, PackedWeight)
    assert {each.device.type for each in (there, *there.held, F.linear(torch.ones(2, 128, device="meta"), there))} == {
        "meta"
    }
