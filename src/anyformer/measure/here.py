"""This machine as a device: measured once, kept in the cache directory, and read again in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import psutil
import torch

from anyformer.amounts import counted, gigabytes, prefixed, seconds
from anyformer.costs.hardware.devices import THIS, Device, Efficiency
from anyformer.costs.hardware.devices import device as known_device
from anyformer.costs.hardware.plan import Hardware, Plan, hardware
from anyformer.costs.hardware.plan import plan as plan_on
from anyformer.costs.hardware.rates import VERSION, Rates
from anyformer.costs.hardware.roofline import Roofline
from anyformer.costs.hardware.roofline import roofline as roofline_on
from anyformer.disk.cache import recall, remember
from anyformer.errors import UsageError, among
from anyformer.measure.calibrate import Machine, Say, dtype_name
from anyformer.measure.calibrate import calibrate as measure_peaks
from anyformer.notebook import ShowsItself
from anyformer.screen import figures, printed
from anyformer.spec import Architecture
from anyformer.training.step.device import best_device, choose_device, keep_heap

if TYPE_CHECKING:
    from rich.table import Table

VERSION_OF_KEYS = 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RECORD = "rates"  # the room of the cache


@dataclass(frozen=True)
class Calibration(ShowsItself):
    """This machine as it was measured, and the seconds that took: 0.0 where it was known."""

    device: Device
    seconds: float

    @property
    def rates(self) -> Rates:
        """Seconds of products, maps, memory and overheads, by size."""
        assert self.device.rates is not None
        return self.device.rates

    def as_json(self) -> dict[str, Any]:
        told = {"version": VERSION_OF_KEYS, **self.device.as_json(), "seconds": self.seconds}
        return {**told, "rates": self.rates.as_json()}

    def __str__(self) -> str:
        return printed(self.table())

    def table(self) -> Table:
        """What `anyformer calibrate` prints."""
        found, rates = self.device, self.rates
        table = figures(found.source)
        for each, peak in found.peak_flops_per_second.items():
            table.add_row(f"products, {each}", f"{prefixed(peak, 'FLOP/s')}", "the best of large squares")
        for each, grid in rates.products.items():
            few, many = (1 / grid.at(m, 1024, 1024) for m in (1, 1024))
            table.add_row(
                f"1024 × 1024, {each}",
                f"{prefixed(few, 'FLOP/s')}",
                f"with one row; {prefixed(many, 'FLOP/s')} with 1,024",
            )
        reading = f"{gigabytes(found.nbytes_per_second)}/s"
        table.add_row("reading memory", reading, "weights in turn, one row, as decoding does")
        table.add_row("copying memory", f"{gigabytes(rates.copying[-1][1])}/s", "read and written")
        for passes, each in rates.overhead_seconds.items():
            table.add_row(f"overhead, {passes}", seconds(each), "an operator, beside its work")
        table.add_row("memory", gigabytes(found.memory_nbytes), "")
        took = self.seconds
        table.add_row("", "", f"measured in {took:.0f} s" if took else "measured before; --anew measures again")
        return table


def calibrate(
    device: str | None = None, dtypes: Sequence[str] = (), *, anew: bool = False, say: Say = lambda _: None
) -> Calibration:
    """This machine measured once, in up to a minute, and kept, so that "this" names it as a device.

    `dtypes` of products, by default those that the device multiplies itself; `anew` measures again what is known. Raises
    UsageError for an unknown dtype or device.
    """
    for each in dtypes:
        if each not in DTYPES:
            raise UsageError(f"--dtype {each!r} is unknown{among(each, DTYPES)}")
    where = choose_device(device)
    kinds = tuple(DTYPES[each] for each in dtypes) or native_dtypes(where)
    known = kept(where)
    measured = known.rates.products if known is not None and known.rates is not None else {}
    if known is not None and not anew and all(dtype_name(kind) in measured for kind in kinds):
        return Calibration(known, 0.0)
    held = (kind for name, kind in DTYPES.items() if name in measured)
    kinds = tuple(dict.fromkeys((*kinds, *held)))  # a record is written whole, and what was known stays known
    from anyformer.measure.rates import measured_rates  # which imports training; what was measured is known without

    start = time.perf_counter()
    keep_heap()  # training does; without it every large tensor is new pages, and those would be measured
    say("peaks")
    machine = measure_peaks(where, kinds, anew=anew)
    rates = measured_rates(where, kinds, say)
    found = _device(machine, rates, where)
    remember(RECORD, [VERSION, *machine.identity], {"device": found.as_json(), "rates": rates.as_json()})
    return Calibration(found, time.perf_counter() - start)


def kept(device: torch.device | None = None) -> Device | None:
    """This machine as it was measured before; None where it was not, or by another version or PyTorch."""
    device = device or best_device()
    data = recall(RECORD, [VERSION, *Machine.here(device).identity])
    if data is None:
        return None
    fields: dict[str, Any] = dict(data["device"])
    fields["efficiency"] = Efficiency(**fields["efficiency"])
    return Device(**fields, rates=Rates.of_json(data["rates"]))


def found_device(name: str | Device) -> Device:
    """The device of a name or file; "this" is this machine, calibrated before. Raises UsageError."""
    return (kept() if name == THIS else None) or known_device(name)


# Those of `costs`, where "this" names a device too.
@wraps(roofline_on)
def roofline(architecture: Architecture, *, device: str | Device = "H100", **options: Any) -> Roofline:
    return roofline_on(architecture, device=found_device(device), **options)


@wraps(plan_on)
def plan(architecture: Architecture, on: str | Hardware, **options: Any) -> Plan:
    return plan_on(architecture, on if isinstance(on, Hardware) else hardware(on, found_device), **options)


def native_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The dtypes that a device multiplies itself; a processor that only emulates bfloat16 leaves it out."""
    emulates = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32,) if emulates else (torch.float32, torch.bfloat16)


def _device(machine: Machine, rates: Rates, device: torch.device) -> Device:
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else psutil.virtual_memory().total
    return Device(
        name=THIS,
        peak_flops_per_second=machine.peak_flops_per_second,
        memory_nbytes=memory,
        nbytes_per_second=rates.reading[-1][1],
        source=f"measured: {machine.processor}, {counted(machine.threads, 'thread')}, PyTorch {machine.torch_version}",
        overhead_seconds=rates.overhead_seconds["forward"],
        efficiency=Efficiency(1.0, 1.0, 1.0, 1.0, 1.0),
        rates=rates,
    )
