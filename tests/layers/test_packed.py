"""Weights in few bits: what is held, against rounding written out number by number; products, against plain ones in float64."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import KernelError
from anyformer.families import preset
from anyformer.generation import lay_out_for_decoding
from anyformer.hub import load, save
from anyformer.layers import grouped, int4, int8
from anyformer.layers.held import HeldWeight
from anyformer.layers.linear import Linear, Together
from anyformer.layers.packed import PackedWeight, PackingScheme
from anyformer.resizing import resize
from tests.laws.models import randomised

BF16 = 2.0**-9  # rounding to bfloat16 changes a number by this share of itself, at most
SCHEMES: dict[str, PackingScheme] = {"int8": int8.Int8(), "int4": int4.Int4()}
each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def weight_of(*shape: int, seed: int = 0) -> Tensor:
    """Return rows of sizes of their own, one of zeros, one of a constant, one of positive numbers."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=generator) * (0.1 + torch.rand(*shape[:-1], 1, generator=generator))
    found[..., 3, :], found[..., 5, :], found[..., 7, :] = 0, 0.3, found[..., 7, :].abs() + 1
    return found


def bfloat16(value: float) -> float:
    """Return the nearest number whose lower 16 bits of float32 are 0; of two the even one."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", rounded))[0]


def test_8_bits_are_127_steps_to_the_largest_of_a_row_either_way() -> None:
    weight = weight_of(9, 40)
    found = PackedWeight.of(weight, SCHEMES["int8"]).plain()
    for row, held in zip(weight.tolist(), found.tolist(), strict=True):
        step = bfloat16(max(map(abs, row)) / 127) or 1.0
        for number, is_held in zip(row, held, strict=True):
            n = round(is_held / step)
            assert is_held == pytest.approx(n * step, rel=1e-6)
            assert abs(n) <= 127
            assert abs(number - is_held) <= 0.5001 * step


def test_4_bits_are_the_better_of_two_grids_of_each_32() -> None:
    """Neither the 16 steps from the least to the largest, nor those of an eighth of the largest magnitude, lie nearer."""
    weight = weight_of(64, 96)
    found = PackedWeight.of(weight, SCHEMES["int4"]).plain()
    for row, held in zip(weight.tolist(), found.tolist(), strict=True):
        for at in range(0, 96, 32):
            group, is_held = row[at : at + 32], held[at : at + 32]
            least, largest = min(group), max(group, key=abs)
            spread = (max(group) - least) / 15 or 1.0
            grids = [[least + n * spread for n in range(16)], [-largest / 8 * n for n in range(-8, 8)]]
            errors = [sum(min((g - w) ** 2 for g in grid) for w in group) for grid in grids]
            error = sum((a - b) ** 2 for a, b in zip(group, is_held, strict=True))
            # Scale and middle are rounded: each of 32 numbers is off by up to 8 scales' and a middle's share.
            slack = BF16 * (8 * spread + max(map(abs, group)))
            assert error**0.5 <= min(errors) ** 0.5 + 32**0.5 * slack
            assert len({round(w, 5) for w in is_held}) <= 16


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_4_bits_keep_the_numbers_of_a_gguf_file(kind: Any) -> None:
    blocks = gguf.quants.quantize(weight_of(64, 96, seed=1).numpy(), kind)
    given = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    size = 18 if kind == Kind.Q4_0 else 20
    nibbles = blocks.reshape(64, 3, size)[..., -16:]
    theirs = np.concatenate((nibbles & 15, nibbles >> 4), -1).reshape(64, 96)
    packed = PackedWeight.of(given, SCHEMES["int4"])
    largest = given.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    apart = (packed.plain() - given).unflatten(1, (-1, 32)).abs()
    assert (apart <= 2.5 * BF16 * largest).all(), "a step is 32 times as much"
    # The same steps, from the one end or the other; but for groups of few different numbers, which several grids hold.
    n, theirs = (each.unflatten(1, (-1, 32)).int() for each in (int4.numbers_of(packed.held), torch.from_numpy(theirs)))
    same = (n == theirs).all(-1) | (n == 15 - theirs).all(-1)
    assert same.float().mean() > 0.9


@each_scheme
@pytest.mark.parametrize("n", [0, 1, 5, 16, 17, 32, 33, 70])
@pytest.mark.parametrize("shape", [(64, 32), (192, 96), (128, 544)])
def test_products_are_plain_ones(scheme: PackingScheme, n: int, shape: tuple[int, int]) -> None:
    """Of the numbers held; few vectors are rounded to bfloat16 first, as are 4-bit numbers unpacked, and what comes out."""
    packed = PackedWeight.of(weight_of(*shape), scheme)
    x, bias = torch.randn(1, n, shape[1], generator=torch.Generator().manual_seed(n)), torch.randn(shape[0])
    found = F.linear(x, packed, bias)
    assert (found.dtype, found.shape) == (torch.float32, (1, n, shape[0]))
    weight = packed.plain().double()
    plain, reach = x[0].double() @ weight.T, x[0].double().abs() @ weight.abs().T
    few = n <= (int8.FEW if scheme.bits == 8 else int4.FEW)
    rounded = {8: 1, 4: 2}[scheme.bits] * reach + plain.abs()
    bound = (BF16 * rounded if few else 0) + 1e-5 * (reach + 1)
    assert ((found[0].double() - bias.double() - plain).abs() <= bound).all()


@pytest.mark.parametrize("shape", [(7, 100), (5, 3), (33, 8), (1, 31)])
def test_8_bits_at_any_width(shape: tuple[int, int]) -> None:
    """At widths that the operator would read beyond, one vector is multiplied as many are."""
    packed = PackedWeight.of(torch.randn(shape), SCHEMES["int8"])
    for n in (1, 2, 20):
        x = torch.randn(n, shape[1])
        torch.testing.assert_close(F.linear(x, packed), x @ packed.plain().T, rtol=1e-4, atol=1e-5)


@each_scheme
def test_rows_experts_and_all_else_are_of_the_numbers_held(scheme: PackingScheme) -> None:
    packed = PackedWeight.of(weight_of(64, 96), scheme)
    plain = packed.plain()
    ids = torch.tensor([[5, 0], [63, 5]])
    assert torch.equal(F.embedding(ids, packed), plain[ids])
    assert torch.equal(packed.t() @ torch.eye(64), plain.t())
    assert torch.equal(copy.deepcopy(packed).t(), plain.t())
    stacked = PackedWeight.of(weight_of(4, 64, 32), scheme)
    assert stacked.nbytes == scheme.nbytes((4, 64, 32)) == sum(each.nbytes for each in stacked.held)
    assert torch.equal(stacked[2] + 0.0, stacked.plain()[2])
    rows, behind, bias = torch.randn(40, 32), torch.tensor([0, 37, 37, 39]), torch.randn(4, 64)
    found = grouped.products(rows, stacked, behind, bias)
    expected = torch.zeros(40, 64)
    for group, here in ((1, slice(0, 37)), (3, slice(37, 39))):
        expected[here] = rows[here] @ stacked.plain()[group].T + bias[group]
    reach = rows.abs() @ stacked.plain().abs().amax(0).T
    assert ((found - expected).abs() <= 2 * BF16 * reach + 1e-4).all()
    assert torch.equal(found[39], torch.zeros(64))


@each_scheme
def test_parts_are_taken_of_it_where_text_is_written(scheme: PackingScheme) -> None:
    """In inference mode, which holds views to be of their tensor's kind; an expert stays in few bits."""
    stacked = PackedWeight.of(weight_of(4, 64, 32), scheme)
    plain = stacked.plain()
    with torch.inference_mode():
        assert isinstance(stacked[2], PackedWeight)
        assert torch.equal(stacked[2] + 0.0, plain[2])
        assert torch.equal(stacked.detach()[1:3], plain[1:3])
        assert torch.equal(stacked.transpose(1, 2), plain.transpose(1, 2))


@each_scheme
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_what_is_multiplied_gets_the_gradient_of_the_numbers_held(
    scheme: PackingScheme, dtype: torch.dtype | None
) -> None:
    """Through single matrices and through experts' stacks, of few vectors too, which are rounded on their way forth alone."""
    matrix, stacked = (PackedWeight.of(weight_of(*shape), scheme) for shape in ((64, 96), (4, 64, 96)))
    behind = torch.tensor([1, 90, 90, 93])
    weigh = torch.randn(93, 64)

    def gradients(one: Tensor, several: Tensor) -> list[Tensor]:
        x, bias = torch.randn(93, 96, generator=torch.Generator().manual_seed(1)).requires_grad_(), torch.ones(64)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            found = [F.linear(x, one, bias), F.linear(x[:3], one).sum(0).expand(93, -1)]
            if dtype is None:
                found.append(grouped.products(x, several, behind, torch.ones(4, 64)))
        assert found[0].dtype == (dtype or torch.float32)
        return [*torch.autograd.grad([(each * weigh).sum() for each in found], x), found[0].detach()]

    for ours, theirs in zip(gradients(matrix, stacked), gradients(matrix.plain(), stacked.plain()), strict=True):
        apart = 1e-6 if dtype is None else 4 * BF16
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=apart, atol=apart * float(theirs.abs().max()))


@each_scheme
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_what_stands_beside_it_learns_as_beside_the_numbers_held(
    scheme: PackingScheme, dtype: torch.dtype | None
) -> None:
    """Of a model whose maps are all in few bits, norms learn: gradients go through every map, those of feed-forwards too."""
    model = randomised(resize(preset("gpt2").spec, d_model=64, n_layers=2, vocab_size=64))
    plain = copy.deepcopy(model)
    for map_, theirs in zip(model.modules(), plain.modules(), strict=True):
        if isinstance(map_, Linear):
            packed = PackedWeight.of(map_.weight, scheme)
            map_.weight = nn.Parameter(packed, requires_grad=False)
            theirs.weight = nn.Parameter(packed.plain(), requires_grad=False)
    ids = torch.randint(64, (2, 40), generator=torch.Generator().manual_seed(0))

    def gradients(model: nn.Module) -> list[Tensor]:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(ids).logits.flatten(0, 1).float(), ids.flatten())
        return list(torch.autograd.grad(loss, [p for name, p in model.named_parameters() if "norm" in name]))

    for ours, expected in zip(gradients(model), gradients(plain), strict=True):
        apart = 1e-5 if dtype is None else 0.1  # in bfloat16 each map rounds, in another order
        torch.testing.assert_close(ours, expected, rtol=apart, atol=apart * float(expected.abs().max()))


@each_scheme
def test_what_would_change_it_is_refused(scheme: PackingScheme) -> None:
    packed = PackedWeight.of(weight_of(64, 32), scheme)
    with pytest.raises(
        KernelError,
        match=r"^weights in few bits stay what they are; train an adapter on them, or load the model without",
    ):
        packed.requires_grad_()
    with pytest.raises(KernelError, match="stay what they are"):
        packed.mul_(2)
    with pytest.raises(KernelError, match="stay what they are"):
        packed.data = torch.zeros(64, 32)
    with pytest.raises(KernelError, match=f"weights in {scheme.bits} bits cannot become torch.bfloat16"):
        packed.to(torch.bfloat16)


def test_what_only_a_cpu_multiplies_stays_there() -> None:
    scheme = SCHEMES["int4"]
    says = "weights in 4 bits are for a CPU, not for meta; take --device cpu, --dtype nf4 or bfloat16"
    with pytest.raises(KernelError, match=says):
        PackedWeight.of(weight_of(64, 32), scheme).to("meta")
    with pytest.raises(KernelError, match="not for meta"):
        PackedWeight.of(torch.empty(64, 32, device="meta"), scheme)


@each_scheme
def test_processes_may_share_it(scheme: PackingScheme) -> None:
    map_ = torch.nn.Linear(32, 64, bias=False).requires_grad_(False)
    map_.weight = torch.nn.Parameter(PackedWeight.of(weight_of(64, 32), scheme), requires_grad=False)
    before = map_.weight + 0
    map_.share_memory()
    assert isinstance(map_.weight, PackedWeight)
    assert all(each.is_shared() for each in map_.weight.held)
    assert torch.equal(map_.weight + 0, before)


@each_scheme
def test_packed_matrices_are_joined_and_parted(scheme: PackingScheme) -> None:
    """As views of what is held, so that nobody holds a copy."""
    each = [PackedWeight.of(weight_of(n, 96, seed=n), scheme) for n in (64, 128, 64)]
    joined = torch.cat(each)  # type: ignore[arg-type]
    assert isinstance(joined, PackedWeight)
    assert joined.nbytes == sum(one.nbytes for one in each)
    parts = joined.split([64, 128, 64])
    x = torch.randn(2, 96)
    for one, part in zip(each, parts, strict=True):
        assert isinstance(part, PackedWeight)
        assert part.lies_in(joined)
        assert not one.lies_in(joined)
        assert torch.equal(part + 0.0, one + 0.0)
        assert torch.equal(F.linear(x, part), F.linear(x, one))
    assert torch.equal(F.linear(x, joined), torch.cat([F.linear(x, one) for one in each], -1))
    narrow = PackedWeight.of(weight_of(64, 32), scheme)
    with pytest.raises(RuntimeError, match="size"):
        torch.cat([narrow, each[0]])  # type: ignore[list-item]
    assert not isinstance(torch.cat([each[0], torch.ones(1, 96)]), PackedWeight)  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", SCHEMES)
def test_maps_of_one_input_are_one_product(dtype: Any, tmp_path: Path) -> None:
    """In few bits as in float32; what is no longer a part of it is multiplied by itself."""
    save(randomised(resize(preset("llama2-7b").spec, d_model=64, n_layers=2, vocab_size=64)), tmp_path / "model")
    model = lay_out_for_decoding(load(tmp_path / "model", dtype=dtype)[0].eval())
    together: list[Any] = [each.together for each in model.modules() if getattr(each, "together", None) is not None]
    assert len(together) == 2 * model.spec.n_layers
    maps = [each for each in model.modules() if type(each) is Linear]
    one: Together = together[0]
    joined = [each for each in maps if isinstance(each.weight, HeldWeight) and each.weight.lies_in(one.weight)]
    x = torch.randn(1, 1, 64)
    with torch.no_grad():
        assert one.stands_for(*joined)
        for found, each in zip(one(x), joined, strict=True):
            assert torch.equal(found, each(x))
        joined[0].weight = nn.Parameter(joined[0].weight.clone(), requires_grad=False)
        assert not one.stands_for(*joined)
