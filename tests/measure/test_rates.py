"""This machine as a device: measured by its clock and by one that is known, kept, read again; and what of it a roofline makes."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import anyformer as af
from anyformer.costs.hardware.devices import Device
from anyformer.costs.hardware.rates import Rates
from anyformer.costs.hardware.roofline import roofline
from anyformer.errors import UsageError
from anyformer.measure import here, rates, runs
from anyformer.measure.calibrate import Machine
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


class Clock(TorchDispatchMode):
    """A clock that no machine moves: each operator takes its FLOPs, its bytes and a launch, at rates that are known."""

    PER_FLOP, PER_BYTE, PER_CALL = 2.0**-30, 2.0**-33, 2.0**-12

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.nbytes = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)]
            self.nbytes += sum(each.nbytes for each in tensors)
            self.calls += 1
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out

    @classmethod
    def seconds(cls, work: Callable[[], object], device: torch.device, budget_seconds: float) -> float:
        """What a call takes, as `fastest` says of a real clock."""
        with cls() as clock:
            work()
        return clock.flops * cls.PER_FLOP + clock.nbytes * cls.PER_BYTE + clock.calls * cls.PER_CALL


def test_rates_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "fastest", Clock.seconds)
    monkeypatch.setattr(rates, "CPU_GRID", ((1, 16, 256), (128, 512), (128, 512)))
    monkeypatch.setattr(rates, "CPU_NUMBERS", (2**14, 2**17))
    monkeypatch.setattr(rates, "CPU_TOKENS", (32, 128))
    monkeypatch.setattr(rates, "READ_NBYTES", (2**22, 2**24))
    monkeypatch.setattr(rates, "ONE_QUERY_TOKENS", (64, 256))
    found = rates.measured_rates(CPU, (torch.float32,))
    m, n, k = 256, 512, 512
    moved = 4 * (m * k + k * n + m * n) * Clock.PER_BYTE
    expected = Clock.PER_FLOP + (moved + Clock.PER_CALL) / (2 * m * n * k)
    assert found.products["float32"].at(m, n, k) == pytest.approx(expected)
    nbytes, least = 3 * 4 * 2**17, 3 * 4 * rates.WIDTH  # two numbers read and one written
    assert dict(found.others["add"])[nbytes] * nbytes == pytest.approx((nbytes - least) * Clock.PER_BYTE)
    largest, rate = found.copying[-1]
    # The operator reads both tensors and gives the one that it wrote.
    assert 2 * largest / rate == pytest.approx(3 * largest * Clock.PER_BYTE + Clock.PER_CALL)
    # A launch of each operator that is counted, and of those between them that are not: copies, small tensors, zeros.
    assert all(Clock.PER_CALL < each < 3 * Clock.PER_CALL for each in found.overhead_seconds.values())
    assert all(value > 0 for curve in found.others.values() for _, value in curve)


def test_it_is_kept_and_read_again(machine: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch) -> None:
    found, folder, seconds = machine
    assert seconds > 0
    monkeypatch.setenv("ANYFORMER_CACHE", str(folder))
    monkeypatch.setattr(rates, "measured_rates", None)  # would be called to measure
    again = here.calibrate("cpu", ("float32",))
    assert (again.device, again.rates, again.seconds) == (found, found.rates, 0.0)
    assert here.found_device("this") == found


@pytest.mark.parametrize("anew", [False, True])
def test_another_dtype_does_not_forget_those_that_are_known(
    machine: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, anew: bool
) -> None:
    found, folder, _ = machine
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))
    asked: list[str] = []

    def measured(_: torch.device, kinds: tuple[torch.dtype, ...], say: object) -> Rates:
        asked.extend(str(kind).removeprefix("torch.") for kind in kinds)
        assert found.rates is not None
        return dataclasses.replace(found.rates, products=dict.fromkeys(asked, found.rates.products["float32"]))

    monkeypatch.setattr(rates, "measured_rates", measured)
    peaks: list[bool] = []
    monkeypatch.setattr(here, "measure_peaks", lambda device, _, anew: peaks.append(anew) or Machine.here(device))
    here.calibrate("cpu", ("bfloat16",), anew=anew)
    assert asked == ["bfloat16", "float32"]
    assert peaks == [anew]
    kept = here.kept(CPU)
    assert kept is not None
    assert kept.rates is not None
    assert kept.rates.knows("float32")


@pytest.mark.parametrize("changed", ["version", "machine", "text"])
def test_an_old_or_broken_record_is_not_read(
    machine: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    shutil.copytree(machine[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))
    assert here.kept(CPU) == machine[0]
    if changed == "version":
        monkeypatch.setattr(here, "VERSION", 0)
    elif changed == "machine":
        monkeypatch.setattr(torch, "__version__", "1.0")
    else:
        (kept,) = (tmp_path / "rates").iterdir()
        kept.write_text(kept.read_text().replace('"memory_nbytes": ', '"memory_nbytes": -'))
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


def test_a_row_that_grows_holds_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder beside an encoder too; and where learned positions end, as many as leave room for what is written."""
    held: list[int] = []

    class Seen(runs.Decoding):
        def __init__(self, model: Any, ids: torch.Tensor, **given: Any) -> None:
            start = given["decoder_input_ids"]
            held.append((ids if start is None else start).shape[1])
            super().__init__(model, ids, **given)

    monkeypatch.setattr(runs, "Decoding", Seen)
    positions = af.resize(af.shrink(af.preset("gpt2")), context=40)
    for spec, past in ((af.shrink(af.preset("t5-small")), 20), (positions, 40)):
        decoding_step(spec, 1, past, CPU)()
    assert held == [20, 40 - runs.STEPS]
