"""This machine as a device: measured by a clock, kept, read again; and what of it a roofline makes."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.costs.hardware.devices import Device
from anyformer.costs.hardware.rates import Rates
from anyformer.costs.hardware.roofline import roofline
from anyformer.errors import UsageError
from anyformer.measure import here, rates
from anyformer.measure.calibrate import fastest
from anyformer.measure.runs import decoding_step, training_step

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Device, Path, float]:
    """This machine by tables of few and small sizes, kept in a folder of its own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYFORMER_CACHE", str(folder))
        patch.setattr(rates, "SECONDS", 0.005)
        patch.setattr(
            sys.modules["anyformer.measure.calibrate"], "SECONDS", 0.02
        )  # the room has a function of the name
        patch.setattr(rates, "CPU_GRID", ((1, 16, 256), (128, 512), (128, 512)))
        patch.setattr(rates, "CPU_NUMBERS", (2**14, 2**17))
        patch.setattr(rates, "CPU_TOKENS", (32, 128))
        patch.setattr(rates, "READ_NBYTES", (2**22, 2**24))
        patch.setattr(rates, "ONE_QUERY_TOKENS", (64, 256))
        patch.setattr(rates, "DEPTHS", (2, 4))
        found = here.calibrate("cpu", ("float32",))
    return found.device, folder, found.seconds


def test_rates_are_those_of_a_clock(machine: tuple[Device, Path, float]) -> None:
    found = machine[0].rates
    assert found is not None
    x, w = torch.randn(256, 512), torch.randn(512, 512)
    seconds = fastest(lambda: torch.nn.functional.linear(x, w), CPU, 0.05)
    assert 2 * 256 * 512 * 512 * found.products["float32"].at(256, 512, 512) == pytest.approx(seconds, rel=0.6)
    a, b = torch.randn(2**17), torch.randn(2**17)
    plain = fastest(lambda: a + b, CPU, 0.05)
    nbytes = 3 * 4 * 2**17  # two numbers read and one written
    assert dict(found.others["add"])[nbytes] * nbytes == pytest.approx(plain, rel=0.8)
    assert found.overhead_seconds["training"] > found.overhead_seconds["forward"] > 1e-7
    assert all(value > 0 for curve in found.others.values() for _, value in curve)


def test_it_is_kept_and_read_again(machine: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch) -> None:
    found, folder, seconds = machine
    assert seconds > 0
    monkeypatch.setenv("ANYFORMER_CACHE", str(folder))
    monkeypatch.setattr(rates, "measured_rates", None)  # would be called to measure
    again = here.calibrate("cpu", ("float32",))
    assert (again.device, again.rates, again.seconds) == (found, found.rates, 0.0)
    assert here.found_device("this") == found


@pytest.mark.parametrize("broken", ["version", "machine", "rates", "text"])
def test_an_old_or_broken_record_is_not_read(
    machine: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    (kept,) = machine[1].glob("rates-*.json")
    data = json.loads(kept.read_text())
    changed = {
        "version": data | {"version": 0},
        "machine": data | {"machine": ["another", "cpu", 1, "1.0"]},
        "rates": data | {"rates": data["rates"] | {"reading": []}},
    }
    (tmp_path / kept.name).write_text("{" if broken == "text" else json.dumps(changed[broken]))
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))
    assert here.kept(CPU) is None
    with pytest.raises(UsageError, match="run `anyformer calibrate` first"):
        here.found_device("this")


def test_rates_survive_json(machine: tuple[Device, Path, float]) -> None:
    found = machine[0].rates
    assert found is not None
    assert Rates.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_the_roofline_of_this_machine_adds_up(machine: tuple[Device, Path, float]) -> None:
    device = machine[0]
    spec = af.resize(af.preset("llama2-7b"), n_params=1_000_000, vocab_size=512, context=256)
    found = roofline(spec, device=device, seq_len=64, batch=2)
    assert found.dtype == "float32"
    for phase in found.phases.values():
        for part in phase.parts:
            alone = (part.compute_seconds, part.memory_seconds, part.overhead_seconds)
            assert max(alone) <= part.seconds * 1.000001
            assert part.seconds <= sum(alone) * 1.000001
    assert device.rates is not None
    twice = {name: 2 * seconds for name, seconds in device.rates.overhead_seconds.items()}
    slower = dataclasses.replace(device, rates=dataclasses.replace(device.rates, overhead_seconds=twice))
    assert roofline(spec, device=slower, seq_len=64).phases["decoding"].seconds > found.phases["decoding"].seconds
    with pytest.raises(UsageError, match="bfloat16"):
        roofline(spec, device=device, seq_len=64, dtype="bfloat16")


def test_a_step_can_be_made_again_and_again() -> None:
    spec = af.shrink(af.preset("llama2-7b"))
    step, token = training_step(spec, 2, 16, CPU), decoding_step(spec, 2, 8, CPU)
    losses = [step().loss for _ in range(12)]  # type: ignore[attr-defined]
    assert losses[-1] < losses[0]  # the same rows, learnt by heart
    for _ in range(40):  # more than fit before it starts anew
        token()
