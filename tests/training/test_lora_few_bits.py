"""An adapter on weights in few bits: a run on the numbers that are held, to the rounding, in a fraction of the bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.disk.run_layout import BASE
from anyformer.errors import CheckpointError, SpecError, UsageError
from anyformer.hub import load, save
from anyformer.layers import int8
from anyformer.layers.packed import PackedWeight
from anyformer.layers.packing import packed_nbytes, packed_weights
from anyformer.recipe import DropoutSpec, LoRA, Recipe, lora_of
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.training.run import Job, Run, RunOptions, checks, train
from tests.cli.running import answer
from tests.laws.models import randomised
from tests.sample import in_turn
from tests.training.crashing import crashed, hexadecimal
from tests.training.test_lora import HOW, RECIPE, small
from tests.training.texts import text_data

FEW = ("albert-base", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma3-1b", "mamba2-130m")
KINDS = ["llama2-7b", *map(in_turn, FEW)]
each_base = pytest.mark.parametrize("base", ["int8", "nf4"])


def wide(name: str) -> ModelSpec:
    """As wide as NF4's groups of 64 want it."""
    spec = resize(small(name), d_model=64)
    return spec.but(heads=spec.heads[:1]) if name == "albert-base" else spec


def on(base: str, **options: Any) -> Recipe:
    return RECIPE.but(lora=LoRA(r=3, alpha=6.0, targets=("all",), base=base), **options)  # type: ignore[arg-type]


def written(spec: ModelSpec, path: Path, base: str | None = None) -> Path:
    """A directory of random weights; `base`: of the numbers that hold them."""
    model = randomised(spec)
    if base is not None:
        with torch.no_grad():
            for name, scheme in packed_weights(spec, base).items():  # type: ignore[arg-type]
                weight = model.get_parameter(name)
                weight.copy_(PackedWeight.of(weight, scheme).plain())
    save(model, path, form="anyformer")
    return path


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few vectors are multiplied as many are."""
    monkeypatch.setattr(int8, "FEW", 0)


@each_base
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unrounded")
def test_steps_are_those_on_the_numbers_that_are_held(kind: str, base: str, tmp_path: Path) -> None:
    """Losses, gradients' norms, adapters and validation: of a run in float32 whose given weights were rounded before.

    Two steps: random weights carry what rounds otherwise far, and choose other experts.
    """
    spec = wide(kind)
    if kind == "albert-base":
        spec = af.vary(spec, mask="causal")
    options: dict[str, Any] = {"data": text_data(), "options": HOW}
    recipe = on(base, tokens=2 * 64)
    few = train(spec, recipe, init=written(spec, tmp_path / "given"), out=tmp_path / "few", **options)
    exact, held = recipe.but(lora=on("float32").lora), written(spec, tmp_path / "held", base)
    plain = train(spec, exact, init=held, out=tmp_path / "plain", **options)
    for ours, theirs in zip(few.steps, plain.steps, strict=True):
        assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-4)
    assert few.evaluation is not None
    assert plain.evaluation is not None
    assert few.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=1e-4)
    back, plainly = (load(tmp_path / name)[0].state_dict() for name in ("few", "plain"))
    for name, weight in back.items():
        assert (weight - plainly[name]).norm() <= 1e-3 * plainly[name].norm(), name


@each_base
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unrounded")
def test_products_in_bfloat16_are_those_of_the_numbers_held(kind: str, base: str, tmp_path: Path) -> None:
    """A pass under autocast, and its gradients, as near as random weights and bfloat16 let them be."""
    spec, data = wide(kind), text_data()
    if kind == "albert-base":
        spec = af.vary(spec, mask="causal")
    found = list[tuple[float, float]]()
    for name, held in ((base, None), ("float32", base)):
        given = written(spec, tmp_path / name, held)
        run = Run(Job(spec, on(name, precision="bf16"), data, init=given), HOW)
        result = run.trainer.gradients(1, next(run.feed))
        grads = torch.cat([p.grad.flatten() for p in run.trainer.parameters if p.grad is not None])
        found.append((result.loss, float(grads.norm())))
    (loss, norm), (expected, expected_norm) = found
    assert loss == pytest.approx(expected, rel=0.03)
    assert norm == pytest.approx(expected_norm, rel=0.3)


@each_base
def test_what_was_trained_is_what_is_loaded(base: str, tmp_path: Path) -> None:
    """The run's directory is read as the numbers that it computed with, and evaluated as it was."""
    spec = wide("llama2-7b")
    given = written(spec, tmp_path / "given")
    result = train(spec, on(base), text_data(), init=given, out=tmp_path / "run", options=HOW)
    ids = torch.arange(40).reshape(2, 20) % spec.vocab_size
    assert result.steps[-1].loss < result.steps[0].loss - 0.02
    with torch.no_grad():
        torch.testing.assert_close(
            load(tmp_path / "run")[0](ids).logits, result.model(ids).logits, rtol=1e-4, atol=1e-4
        )
    own, first = load(tmp_path / "run" / BASE)[0], load(given, dtype=base)[0]  # type: ignore[arg-type]
    held = {n: p.plain() if isinstance(p, PackedWeight) else p for n, p in first.named_parameters()}
    assert all(torch.equal(weight, held[name]) for name, weight in own.named_parameters())
    with pytest.raises(CheckpointError, match="few bits"):
        save(first, tmp_path / "first")
    save(result.model, tmp_path / "saved")
    saved, both = (load(tmp_path / name)[0].state_dict() for name in ("saved", "run"))
    assert saved.keys() == both.keys()
    assert all(torch.equal(saved[name], both[name]) for name in both)


def test_what_others_put_on_a_model_is_saved_with_it_or_refused(tmp_path: Path) -> None:
    """A LoRA of PEFT's as what both make together; what is no sum with a product of two matrices by its name."""
    peft, ids = pytest.importorskip("peft"), torch.arange(20)[None]
    for name, more in (("lora", {}), ("dora", {"use_dora": True})):
        model = af.build(wide("llama2-7b"), seed=0)
        config = peft.LoraConfig(r=2, target_modules=["q", "v"], init_lora_weights=False, **more)
        peft.inject_adapter_in_model(config, model)
        if more:
            with pytest.raises(
                CheckpointError, match=r"lora_magnitude_vector.* is no tensor of the model's specification"
            ):
                save(model, tmp_path / name)
            assert not (tmp_path / name).exists()
            continue
        save(model, tmp_path / name)
        with torch.no_grad():
            torch.testing.assert_close(load(tmp_path / name)[0](ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


@each_base
@pytest.mark.parametrize("at", [1, 3])  # before the first checkpoint too
def test_a_run_that_stopped_goes_on_to_the_bit(base: str, at: int, tmp_path: Path) -> None:
    spec, recipe = wide("mixtral-8x7b"), on(base, dropout=DropoutSpec(residual=0.1))
    given = written(spec, tmp_path / "given")
    options: dict[str, Any] = {"init": given, "options": RunOptions(device=HOW.device, plan=False, save_every=2)}
    whole = train(spec, recipe, text_data(), **options)
    crashed(at, spec, recipe, text_data(), out=tmp_path / "run", **options)
    (given / "model.safetensors").unlink()
    again = train(spec, recipe, text_data(), out=tmp_path / "run", **options)
    assert hexadecimal(again) == hexadecimal(whole)
    assert again.evaluation == whole.evaluation


@each_base
def test_few_bits_are_held_from_the_first_moment_on(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the machine is what is held; nothing given gets a gradient."""
    spec = wide("mixtral-8x7b")
    given = written(spec, tmp_path / "given")
    asked = list[float]()
    monkeypatch.setattr(checks, "refuse_beyond_memory", lambda nbytes, *_: asked.append(nbytes))
    run = Run(Job(spec, on(base), text_data(), init=given), HOW)
    held = {name: p for name, p in run.model.named_parameters() if ".lora_" not in name}
    assert asked == [packed_nbytes(spec, base)] == [sum(p.nbytes for p in held.values())]  # type: ignore[arg-type]
    assert asked[0] < {"int8": 0.3, "nf4": 0.25}[base] * sum(4 * p.numel() for p in held.values())
    run.trainer.gradients(1, next(run.feed))
    assert all(p.grad is None for p in held.values())
    assert {p.grad is None for name, p in run.model.named_parameters() if ".lora_" in name} == {False}


@pytest.mark.slow
@each_base
@pytest.mark.parametrize("kind", ["llama2-7b", "mixtral-8x7b"])
def test_compiled_it_makes_the_same_steps(kind: str, base: str, tmp_path: Path) -> None:
    spec = wide(kind)
    given = written(spec, tmp_path / "given")
    how = (RunOptions(device=HOW.device, plan=False, compiled=compiled) for compiled in (False, True))
    eager, compiled = (train(spec, on(base, tokens=128), text_data(), init=given, options=each) for each in how)
    for ours, theirs in zip(compiled.steps, eager.steps, strict=True):
        assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-4)


@pytest.mark.parametrize("targets", ["all", "attention"])
def test_the_command(targets: str, tmp_path: Path) -> None:
    """In batches of which rows tell, before the first step, what all of them keep."""
    given = tmp_path / "given"
    data = tmp_path / "text.txt"
    data.write_text("The quick brown fox jumps over the lazy dog.\n" * 400, encoding="utf-8")
    tokenizer = af.Tokenizer.train([data.read_text(encoding="utf-8")], 280)
    spec = resize(af.load_spec("llama2"), n_params=100_000, vocab_size=280)
    save(randomised(spec), given, tokenizer=tokenizer)
    out = tmp_path / "run"
    lora = f"r=4,alpha=8,targets={targets},base=nf4"
    texts = ("--data", data, "--validation-data", data, "--seq-len", 64, "--batch-tokens", 1024, "--tokens", 2048)
    told = answer("train", given, "--init", given, *texts, "--lora", lora, "--out", out, "--device", "cpu")
    judged = answer("evaluate", out, "--data", data, "--seq-len", 64, "--device", "cpu")
    assert judged["loss"] == pytest.approx(told["validation"]["loss"], rel=1e-5)


@pytest.mark.parametrize("lora", [("--lora", "r=4,base=nf4"), ()])
def test_init_may_be_left_out_whatever_rows_it_has(lora: tuple[str, ...], tmp_path: Path) -> None:
    """A run that goes on keeps the rows of what it was given, be they more than its tokenizer's tokens."""
    given, data, out = tmp_path / "given", tmp_path / "text.txt", tmp_path / "run"
    data.write_text("The quick brown fox jumps over the lazy dog.\n" * 200, encoding="utf-8")
    tokenizer = af.Tokenizer.train([data.read_text(encoding="utf-8")], 280)
    save(randomised(resize(af.load_spec("llama2"), n_params=100_000, vocab_size=320)), given, tokenizer=tokenizer)
    how = ("--data", data, "--seq-len", 64, "--batch-tokens", 128, *lora, "--out", out, "--device", "cpu")
    answer("train", given, "--init", given, *how, "--tokens", 256)
    shutil.rmtree(given)
    assert answer("train", out, *how, "--tokens", 512, "--resume")["steps"] == 4


@pytest.mark.parametrize("text", ["base=int4", "base=4", "base=nf4,int8"])
def test_other_bases_are_refused(text: str) -> None:
    with pytest.raises((SpecError, UsageError), match=r"base.*(float32|number)"):
        lora_of(text)


def test_it_is_written_and_read() -> None:
    assert lora_of("r=8,base=nf4,targets=q,v") == LoRA(r=8, targets=("q", "v"), base="nf4")
    assert lora_of("r=8").packing is None
