"""Calibration: peaks are what a clock says, and are measured once for a machine."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anyformer.disk.cache import remember
from anyformer.measure import calibrate, gemm_peak, memory_bandwidth
from anyformer.measure.calibrate import Machine

module = sys.modules["anyformer.measure.calibrate"]  # the name in the room is the function


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path))
    return tmp_path


def test_the_peak_is_what_a_clock_says() -> None:
    a = torch.randn(1024, 1024)
    torch.mm(a, a)
    start, n = time.perf_counter(), 6
    for _ in range(n):
        torch.mm(a, a)
    plain = n * 2 * 1024**3 / (time.perf_counter() - start)
    peak = gemm_peak()
    # The best of many is at least the mean of a few, but for noise; ten times as much is no product of this machine.
    assert 0.7 * plain < peak < 10 * plain


@pytest.mark.parametrize(("flops_per_second", "tried"), [(100e9, [512, 1024, 2048]), (1e9, [512])])
def test_products_that_would_take_long_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, flops_per_second: float, tried: list[int]
) -> None:
    """bfloat16 where a processor has no arithmetic for it runs at a hundredth: 2048 would take 17 s a call."""
    sides: list[int] = []
    multiply = torch.mm
    monkeypatch.setattr(module.torch, "mm", lambda a, b, out: sides.append(len(a)) or multiply(a[:1], b, out=out[:1]))

    def clock(work: Callable[[], object], *_: object) -> float:
        work()
        return 2 * sides[-1] ** 3 / flops_per_second

    monkeypatch.setattr(module, "fastest", clock)
    assert gemm_peak() == pytest.approx(flops_per_second)
    assert sides == tried


def test_bandwidth_is_what_a_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.ones(64 << 20)
    numbers.sum()
    start = time.perf_counter()
    numbers.sum()
    plain = numbers.nbytes / (time.perf_counter() - start)
    assert 0.7 * plain < memory_bandwidth() < 10 * plain


class Counted:
    """Stands in for the clock: what is under test is what is measured when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        monkeypatch.setattr(module, "gemm_peak", self._peak)
        monkeypatch.setattr(module, "memory_bandwidth", self._read)

    def _peak(self, dtype: torch.dtype, device: torch.device) -> float:
        self.measured.append(str(dtype))
        return 1e9 * dtype.itemsize

    def _read(self, device: torch.device) -> float:
        self.measured.append("memory")
        return 2e9


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Counted(monkeypatch)
    first = calibrate(dtypes=(torch.float32,))
    assert clock.measured == ["torch.float32", "memory"]
    assert first.peak_flops_per_second == {"float32": 4e9}
    assert (first.read_nbytes_per_second, first.threads) == (2e9, torch.get_num_threads())
    assert calibrate(dtypes=(torch.float32,)) == first
    assert clock.measured == ["torch.float32", "memory"]
    second = calibrate()  # only what is new
    assert clock.measured == ["torch.float32", "memory", "torch.bfloat16"]
    assert second.peak_flops_per_second == {"float32": 4e9, "bfloat16": 2e9}


def test_what_is_known_is_measured_again_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was busy the first time would have its low peaks for ever."""
    clock = Counted(monkeypatch)
    known = calibrate()
    busy = {"peak_flops_per_second": {"float32": 1.0, "bfloat16": 2.0}, "read_nbytes_per_second": 3.0}
    remember(module.PEAKS, known.identity, busy)
    clock.measured.clear()
    again = calibrate(dtypes=(torch.float32,), anew=True)
    assert clock.measured == ["torch.float32", "memory"]
    assert again.peak_flops_per_second == {"float32": 4e9, "bfloat16": 2.0}
    assert again.read_nbytes_per_second == known.read_nbytes_per_second


BREAKS: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "json": lambda text: "{}",
    "control": lambda text: "\x00",
    "figure": lambda text: text.replace("4000000000.0", "-1.0"),
    "type": lambda text: text.replace("4000000000.0", '"x"'),
    "lost": lambda text: text[:-1],
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_record_is_measured_anew(monkeypatch: pytest.MonkeyPatch, cache: Path, broken: str) -> None:
    clock = Counted(monkeypatch)
    calibrate()
    (file,) = cache.rglob("*.json")
    file.write_text(BREAKS[broken](file.read_text()))
    clock.measured.clear()
    calibrate()
    assert clock.measured == ["torch.float32", "torch.bfloat16", "memory"]


def test_another_machine_is_another_record(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    clock = Counted(monkeypatch)
    calibrate()
    clock.measured.clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        calibrate()
    assert clock.measured, "the record of another version should not be trusted"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    assert calibrate().threads == 17
    assert len(list(cache.rglob("*.json"))) == 3


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    Counted(monkeypatch)
    (cache / "file").touch()
    monkeypatch.setenv("ANYFORMER_CACHE", str(cache / "file" / "below"))
    assert isinstance(calibrate(), Machine)
