"""Whole runs on the device: what they learn is what a CPU learns, and a run that was stopped goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anyformer.recipe import RLOO
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.run import train
from tests.cli.running import run, succeeded, write_text
from tests.gpu.machine import DEVICE, on_gpu
from tests.training.crashing import resumed
from tests.training.test_lora_few_bits import on, unrounded, wide, written
from tests.training.test_rewarded import recipe as rewarded
from tests.training.test_rewarded import trained, way
from tests.training.test_run import HOW, RECIPE, SPEC
from tests.training.texts import text_data

pytestmark = on_gpu
__all__ = ["unrounded"]  # a fixture of theirs
SIZES = ["--params", "1M", "--vocab", "300", "--tokens", "4096", "--seq-len", "32", "--batch-tokens", "256"]


def losses(name: str, out: Path, text: Path, device: str, *options: object) -> list[float]:
    given = ("train", name, "--data", text, "--out", out, "--device", device, *SIZES, *options)
    succeeded(run(*given))
    return [each.loss for each in read_metrics(out).steps]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


@pytest.mark.parametrize(
    "name", ["llama2-7b", "gpt2", "bert-base", "mixtral-8x7b", "mamba2-2.7b", "deepseek-v3", "qwen3-next-80b-a3b"]
)
def test_a_run_learns_as_on_a_cpu(name: str, tmp_path: Path, text: Path) -> None:
    there = losses(name, tmp_path / "there", text, DEVICE.type)
    here = losses(name, tmp_path / "here", text, "cpu")
    assert len(there) == 16
    assert there == pytest.approx(here, rel=1e-3)


@pytest.mark.parametrize(
    "how", [("--precision", "bf16"), ("--precision", "bf16", "--compile"), ("--recompute", "full")]
)
def test_ways_to_compute(how: tuple[str, ...], tmp_path: Path, text: Path) -> None:
    there = losses("llama2-7b", tmp_path / "there", text, DEVICE.type, *how)
    here = losses("llama2-7b", tmp_path / "here", text, "cpu")
    assert there == pytest.approx(here, rel=1e-2)


def test_a_run_that_crashed_goes_on(tmp_path: Path) -> None:
    """With dropout, whose generator is the device's."""
    how = replace(HOW, device=DEVICE)
    whole = train(SPEC, RECIPE, text_data(), options=how)
    again = resumed(7, SPEC, RECIPE, text_data(), out=tmp_path / "run", options=how)
    expected, found = ([m.loss for m in result.steps] for result in (whole, again))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_answers_are_drawn_and_learnt_from_as_on_a_cpu(precision: Any, tmp_path: Path) -> None:
    """Draws are the processor's, so that only a number near the border of two tokens is another one."""
    here = trained(rewarded(way(RLOO)), tmp_path)
    there = trained(rewarded(way(RLOO), precision=precision), tmp_path, options=replace(HOW, device=DEVICE))
    assert there.steps[0].loss == pytest.approx(here.steps[0].loss, abs=0.1)
    expected, found = ([(step.parts or {})["entropy"] for step in result.steps] for result in (here, there))
    assert found == pytest.approx(expected, rel=1e-1)


@pytest.mark.parametrize("base", ["int8", "nf4"])
@pytest.mark.parametrize("kind", ["llama2-7b", "mixtral-8x7b"])
@pytest.mark.parametrize("how", [(), ("bf16",), ("compiled",)])
@pytest.mark.usefixtures("unrounded")
def test_an_adapter_on_weights_in_few_bits(kind: str, base: str, how: tuple[str, ...], tmp_path: Path) -> None:
    """What they round to is the same on every device."""
    spec = wide(kind)
    given, recipe = written(spec, tmp_path / "given"), on(base, tokens=128)
    here = train(spec, recipe, text_data(), init=given, options=HOW)
    options = replace(HOW, device=DEVICE, compiled="compiled" in how)
    precision = "bf16" if "bf16" in how else recipe.precision
    there = train(spec, recipe.but(precision=precision), text_data(), init=given, options=options)
    apart = 3e-2 if "bf16" in how else 1e-3
    assert [m.loss for m in there.steps] == pytest.approx([m.loss for m in here.steps], rel=apart)
