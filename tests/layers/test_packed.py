"""Weights in few bits: against a plain product with what each number is, written out, within bounds of rounding."""

import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import anyformer as af
from anyformer.cli.main import application
from anyformer.errors import CheckpointError, KernelError
from anyformer.layers.linear import Linear
from anyformer.layers.packed import PACKINGS, PackedLinear, Packing, pack
from anyformer.text import Tokenizer
from tests.generation.test_decode import decoder
from tests.generation.test_text import TEXTS
from tests.laws.models import SHRUNK, ids_for, randomised

BF16 = 2.0**-8  # the share of itself by which a number may be changed by rounding it to bfloat16, both ways


def rounded_rows(weight: Tensor, group: int, levels: int, centred: bool) -> Tensor:
    """Return W with each `group` of a row at the nearest of `levels` even steps, one group at a time."""
    out = weight.double().clone()
    for i in range(out.shape[0]):
        for j in range(0, out.shape[1], group):
            part = out[i, j : j + group]
            if centred:
                step = float(part.abs().max()) / (levels // 2)
                part.copy_(torch.tensor([step * round(float(w) / step) if step else 0.0 for w in part]))
            else:
                low, step = float(part.min()), float(part.max() - part.min()) / (levels - 1)
                part.copy_(torch.tensor([low + step * round((float(w) - low) / step) if step else low for w in part]))
    return out


def steps(weight: Tensor, packing: Packing) -> Tensor:
    """Return how far apart the numbers are that each weight [d_out, d_in] may become."""
    if packing == "int8":
        return (weight.abs().amax(1, keepdim=True) / 127).expand_as(weight)
    groups = weight.split(32, 1)
    return torch.cat([((g.amax(1) - g.amin(1)) / 15)[:, None].expand_as(g) for g in groups], 1)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("n", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("shape", [(16, 32), (48, 64), (7, 96), (130, 176)])
def test_products_are_those_of_rounded_weights(packing: Packing, n: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(n)
    weight = torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator) + 0.1
    weight[3] = 0
    x, bias = torch.randn(2, n, shape[1], generator=generator)[:1], torch.randn(shape[0], generator=generator)
    with torch.no_grad():
        found = PackedLinear(weight, nn.Parameter(bias), packing)(x)
    assert found.shape == (1, n, shape[0])
    assert found.dtype == torch.float32
    held = rounded_rows(
        weight, shape[1] if packing == "int8" else 32, 255 if packing == "int8" else 16, packing == "int8"
    )
    assert ((held - weight).abs() <= steps(weight, packing) / 2 + 1e-7).all(), "the oracle rounds to the nearest"
    plain = x[0].double() @ held.T + bias
    # Scales and middles are of bfloat16: a number is off by that share of itself, and where it is near the middle of two
    # steps becomes the other; so are the vectors and the sum.
    reach = x[0].double().abs() @ (held.abs() + 8 * steps(weight, packing) * (packing == "int4")).T
    other = x[0].double().square() @ steps(weight, packing).double().square().T
    close = 4 * BF16 * reach / math.sqrt(shape[1]) + 0.5 * other.sqrt() + 2 * BF16 * plain.abs() + 1e-6
    error = (found[0].double() - plain).abs()
    assert (error <= 3 * close).all(), float((error / close).max())
    exact = x[0].double() @ weight.double().T + bias
    spread = (x[0].double().square() @ steps(weight, packing).double().square().T / 12).sqrt()
    assert ((found[0].double() - exact).abs() <= 6 * spread + 3 * close).all()


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["llama2", "gpt2", "gemma2", "t5"])
def test_a_model_hears_its_packed_maps_wherever_they_stand(packing: Packing, name: str) -> None:
    """Every map and every head, tied or not, is packed: the logits are those of a model whose own weights are so rounded."""
    spec = next(spec for each, spec in SHRUNK.items() if name in each)
    packed, plain = pack(randomised(spec), packing), randomised(spec)
    for module in plain.modules():
        if type(module) is Linear:
            group = module.in_features if packing == "int8" else 32
            held = rounded_rows(module.weight.detach(), group, 255 if packing == "int8" else 16, packing == "int8")
            module.weight.data = held.float()
    assert not any(type(module) is Linear for module in packed.modules())
    assert all(head.product is not None or isinstance(head.table, PackedLinear) for head in packed.heads)
    ids = ids_for(spec, 1, 6)
    given = (ids, {}) if spec.encoder is None else (ids, {"decoder_input_ids": ids})
    with torch.no_grad():
        found, rounded, whole = (m(given[0], **given[1]).logits for m in (packed, plain, randomised(spec)))
    size, by_packing = whole.std(), (whole - rounded).std()
    head_share = {"int8": 0.03, "int4": 0.25}[packing]  # of a table's own rounding, which `plain` does not have
    assert (found - rounded).std() < head_share * size
    assert (found - whole).std() < 4 * by_packing + head_share * size
    assert not torch.equal(found, whole)


def test_what_no_kernel_takes_is_refused() -> None:
    with pytest.raises(KernelError, match="are for a CPU, and these are on meta"):
        PackedLinear(torch.randn(32, 32, device="meta"), None, "int4")
    with pytest.raises(KernelError, match=r"^stack\.blocks\.0\.\S+\.q: weights in int8 are for a CPU"):
        pack(af.build(decoder(), seed=None, device="meta"), "int8")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train(TEXTS, 320)
    path = tmp_path_factory.mktemp("packed") / "model"
    af.save(randomised(sized(decoder(), tokenizer.vocab_size)), path, tokenizer=tokenizer)
    return path


@pytest.mark.parametrize("packing", PACKINGS)
def test_from_a_directory_to_text(directory: Path, packing: Packing, tmp_path: Path) -> None:
    model, tokenizer = af.load(directory, dtype=packing)
    whole = af.load(directory)[0]
    held = sum(each.nbytes for each in model.buffers())
    maps = sum(each.weight.numel() for each in whole.modules() if type(each) is Linear)
    maps += sum(head.table.weight.numel() for head in whole.heads)
    assert held / maps < {"int8": 1.1, "int4": 0.7}[packing]  # bytes a weight
    text = af.generate(model, tokenizer, "the fox", max_new_tokens=8)
    given = [
        "generate",
        "--model",
        str(directory),
        "the fox",
        "--max-new-tokens",
        "8",
        "--device=cpu",
        "--dtype",
        packing,
    ]
    result = CliRunner().invoke(application, given)
    assert (result.exit_code, result.stdout.startswith("the fox")) == (0, True), result.stderr
    assert af.generate(directory, tokenizer, "the fox", max_new_tokens=8, lookup=3, device="cpu") is not None
    with pytest.raises(CheckpointError, match=r"packed .* cannot be saved"):
        af.save(model, tmp_path / "saved")
    assert isinstance(text, str)
    data = tmp_path / "text.txt"
    data.write_text("\n".join(TEXTS * 3))
    losses = [float(af.evaluate(directory, data, dtype=kind, device="cpu").loss) for kind in (packing, None)]  # type: ignore[union-attr]
    assert 0 < abs(losses[0] - losses[1]) < {"int8": 0.05, "int4": 0.5}[packing] * losses[1]
