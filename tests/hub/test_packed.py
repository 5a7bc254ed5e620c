"""Weights in few bits from files to text: what is read, what is held while it is read, what is refused."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import AnyformerError, CheckpointError, KernelError, UsageError
from anyformer.layers import int4, int8
from anyformer.layers.packed import PackedWeight, PackingScheme
from anyformer.layers.packing import PACKINGS, Packing
from anyformer.text import Tokenizer
from tests.cli.running import answer, refused, run
from tests.generation.test_text import TEXTS
from tests.laws.models import randomised

each_packing = pytest.mark.parametrize("packing", PACKINGS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose sizes the operators take, trained by nobody."""
    tokenizer = Tokenizer.train(TEXTS, 320)
    # As many rows as 64 divides, more than there are tokens.
    spec = af.resize(af.load_spec("llama3.2-1b"), n_params=200_000, vocab_size=320, context=128)
    path = tmp_path_factory.mktemp("packed") / "model"
    af.save(randomised(spec), path, tokenizer=tokenizer)
    return path


@each_packing
def test_bytes_are_those_that_cost_names(directory: Path, packing: Packing) -> None:
    """8 bits: a byte a number and two a row; 4, where 64 divides a map's rows: half a byte, and four for each 32 of a row.

    NF4, where 64 divides a row: half a byte, and four for each 64.
    """
    model, whole = (af.load(directory, dtype=dtype)[0] for dtype in (packing, None))
    held, shapes = sum(each.nbytes for each in model.parameters()), [each.shape for each in whole.parameters()]
    assert {(320, 64), (16, 64), (64, 256), (256, 64)} <= set(map(tuple, shapes))
    axis, group = {"int8": (0, 0), "int4": (0, 32), "nf4": (1, 64)}[packing]
    in_4 = [s for s in shapes if group and len(s) == 2 and s[axis] % 64 == 0 and s[0] != 320]
    in_8 = [s for s in shapes if len(s) == 2 and s not in in_4]
    assert len(in_4) == {"int8": 0, "int4": 5 * 3, "nf4": 7 * 3}[packing]
    expected = sum(a * b // 2 + 4 * a * b // group for a, b in in_4) + sum(a * b + 2 * a for a, b in in_8)
    expected += sum(4 * s[0] for s in shapes if len(s) == 1)
    assert held == expected == af.cost(model.spec, dtype=packing, seq_len=8).weights_nbytes


@each_packing
def test_one_tensor_at_a_time_is_there_in_float32(
    directory: Path, packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Tensor]] = []
    of = PackedWeight.of.__func__  # type: ignore[attr-defined]

    def watched(cls: type[PackedWeight], weight: Tensor, scheme: PackingScheme) -> PackedWeight:
        assert sum(one() is not None for one in seen) <= 1, "what was packed before is still held"
        seen.append(weakref.ref(weight))
        return of(cls, weight, scheme)

    monkeypatch.setattr(PackedWeight, "of", classmethod(watched))
    af.load(directory, dtype=packing)
    assert len(seen) > 10


@each_packing
def test_the_files_leave_memory(directory: Path, packing: Packing) -> None:
    """Norms, which stay as they are, lie in none of them."""
    maps, file = Path("/proc/self/maps"), str(directory / "model.safetensors")
    if not maps.exists():
        pytest.skip("this system does not say which files are in memory")
    whole = af.load(directory)
    assert file in maps.read_text()
    del whole
    few = af.load(directory, dtype=packing)
    assert file not in maps.read_text()
    del few


@each_packing
def test_text_of_it(directory: Path, packing: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is what the numbers held write, by the operators but for their rounding of vectors to bfloat16."""
    model, tokenizer = af.load(directory, dtype=packing)
    assert tokenizer is not None
    plain = af.load(directory)[0]
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            held = model.get_parameter(name)
            weight.copy_(held.plain() if isinstance(held, PackedWeight) else held)
        ids = torch.tensor([tokenizer.encode("if x > 0:")])
        found, expected = model(ids).logits, plain(ids).logits
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.03
    for module in (int4, int8):
        monkeypatch.setattr(module, "FEW", 0)
    prompts, lookup = ["Größe, naïve café", "if x > 0:"], "return x\nreturn"
    ways: tuple[dict[str, Any], ...] = ({"prompt": prompts}, {"prompt": lookup, "lookup": 3})
    for how in ways:
        ours, theirs = (af.generate(each, tokenizer, max_new_tokens=12, **how) for each in (model, plain))
        assert ours == theirs
    words = (
        "generate",
        "if x > 0:",
        "--model",
        directory,
        "--max-new-tokens",
        6,
        "--device",
        "cpu",
        "--dtype",
        packing,
    )
    text = af.generate(plain, tokenizer, "if x > 0:", max_new_tokens=6)
    assert answer(*words)["text"] == text


@each_packing
@pytest.mark.parametrize("preset", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"])
def test_text_of_a_mixture(preset: str, packing: Packing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, through experts in few bits: the text of the numbers that they hold."""
    tokenizer = Tokenizer.train(TEXTS, 320)
    spec = af.resize(af.load_spec(preset), n_params=250_000, vocab_size=320, context=64)
    af.save(randomised(spec), tmp_path / "model", tokenizer=tokenizer)
    (model, _), (plain, _) = (af.load(tmp_path / "model", dtype=dtype) for dtype in (packing, None))
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            held = model.get_parameter(name)
            weight.copy_(held.plain() if isinstance(held, PackedWeight) else held)
    for module in (int4, int8):
        monkeypatch.setattr(module, "FEW", 0)
    ours, theirs = (af.generate(each, tokenizer, "if x > 0:", max_new_tokens=8) for each in (model, plain))
    assert ours == theirs


@each_packing
def test_the_loss_of_it(directory: Path, packing: Packing, tmp_path: Path) -> None:
    data = tmp_path / "text.txt"
    data.write_text("\n".join(TEXTS[:8]), encoding="utf-8")
    given = ("evaluate", str(directory), "--data", str(data), "--seq-len", "64", "--device", "cpu")
    packed, plain = answer(*given, "--dtype", packing), answer(*given)
    assert 0 < abs(packed["loss"] - plain["loss"]) < {"int8": 0.02, "int4": 0.2, "nf4": 0.2}[packing] * plain["loss"]


def test_a_cache_in_8_bits_from_the_command_line(directory: Path) -> None:
    """The text that the model writes with such a cache, which is not that of an exact one here; what cost says of it."""
    words = ("generate", "if x > 0:", "--model", directory, "--max-new-tokens", 24, "--device", "cpu")
    model, tokenizer = af.load(directory)
    assert tokenizer is not None
    exact = af.generate(model, tokenizer, "if x > 0:", max_new_tokens=24)
    model.cache_dtype = torch.int8
    text = af.generate(model, tokenizer, "if x > 0:", max_new_tokens=24)
    assert answer(*words, "--cache-dtype", "int8")["text"] == text != exact == answer(*words)["text"]
    told = answer("cost", "llama3-8b", "--seq-len", "64", "--dtype", "int4", "--cache-dtype", "int8")
    assert told["cache_nbytes"] == 32 * 2 * 8 * (128 + 8) * 64
    assert (told["dtype"], told["cache_dtype"]) == ("int4", "int8")
    refused(run(*words, "--cache-dtype", "int4"), "int4", "int8")


def test_what_cannot_be(directory: Path, tmp_path: Path) -> None:
    model, _ = af.load(directory, dtype="int8")
    with pytest.raises(CheckpointError, match=r"weights in few bits .* load the model without dtype"):
        af.save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(UsageError, match=r"dtype = 'int5' must be .*\(did you mean 'int8'\?\)"):
        af.load(directory, dtype="int5")  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="weights in 4 bits are for a CPU, not for meta; take --device cpu"):
        af.load(directory, dtype="int4", device="meta")
    with pytest.raises(AnyformerError, match="stay what they are"):
        model.requires_grad_(True)
    refused(run("generate", "x", "--model", directory, "--dtype", "int5"), "int5", "int8")
