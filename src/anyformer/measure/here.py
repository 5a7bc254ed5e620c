"""This machine as a device: measured once, kept in the cache directory, and read again in milliseconds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from anyformer.costs.hardware.devices import THIS, Device, Efficiency
from anyformer.costs.hardware.devices import device as known_device
from anyformer.costs.hardware.plan import Hardware, Plan, hardware
from anyformer.costs.hardware.plan import plan as plan_on
from anyformer.costs.hardware.rates import VERSION, Rates
from anyformer.costs.hardware.roofline import Roofline
from anyformer.costs.hardware.roofline import roofline as roofline_on
from anyformer.errors import UsageError, did_you_mean
from anyformer.measure.calibrate import Machine, dtype_name, keep
from anyformer.measure.calibrate import calibrate as measure_peaks
from anyformer.notebook import ShowsItself
from anyformer.recipe import Precision
from anyformer.spec import Architecture, specification
from anyformer.training.step.device import best_device, choose_device, compute_dtype, keep_heap

if TYPE_CHECKING:
    from anyformer.measure.profile import Profile

Say = Callable[[str], None]
VERSION_OF_KEYS = 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RECORD = "rates"  # beginning of the file's name


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
        """Plain data; keys are stable within a `version`."""
        told = {"version": VERSION_OF_KEYS, **self.device.as_json(), "seconds": self.seconds}
        return {**told, "rates": self.rates.as_json()}


def calibrate(
    device: str | None = None, dtypes: Sequence[str] = (), *, anew: bool = False, say: Say = lambda _: None
) -> Calibration:
    """This machine measured once, in up to a minute, and kept, so that "this" names it as a device.

    `dtypes` of products, by default those that the device multiplies itself; `anew` measures again what is known. Raises
    UsageError for an unknown dtype or device.
    """
    for each in dtypes:
        if each not in DTYPES:
            raise UsageError(f"--dtype {each!r} is unknown{did_you_mean(each, DTYPES)}; there are {', '.join(DTYPES)}")
    kinds = tuple(DTYPES[each] for each in dtypes) or None
    return Calibration(*calibrated(choose_device(device), kinds, anew=anew, say=say))


def calibrated(
    device: torch.device | None = None,
    dtypes: tuple[torch.dtype, ...] | None = None,
    *,
    anew: bool = False,
    say: Say = lambda _: None,
) -> tuple[Device, float]:
    """This machine with its measured rates, and the seconds that measuring took: 0.0 where it was known."""
    device = device or best_device()
    dtypes = dtypes or native_dtypes(device)
    known = None if anew else kept(device)
    if known is not None and all(known.rates and known.rates.knows(dtype_name(dtype)) for dtype in dtypes):
        return known, 0.0
    from anyformer.measure.rates import measured_rates  # which imports training; what was measured is known without

    start = time.perf_counter()
    keep_heap()  # training does; without it every large tensor is new pages, and those would be measured
    say("peaks")
    machine = measure_peaks(device, dtypes)
    rates = measured_rates(device, dtypes, say)
    found = _device(machine, rates, device)
    keep(machine.record(RECORD), _encoded(machine, found, rates))
    return found, time.perf_counter() - start


def kept(device: torch.device | None = None) -> Device | None:
    """This machine as it was measured before; None where it was not, or by another version or PyTorch."""
    device = device or best_device()
    machine = Machine.here(device)
    try:
        data = json.loads(machine.record(RECORD).read_text(encoding="utf-8"))
        if data["version"] != VERSION or tuple(data["machine"]) != machine.identity:
            return None
        fields: dict[str, Any] = dict(data["device"])
        fields["efficiency"] = Efficiency(**fields["efficiency"])
        return Device(**fields, rates=Rates.of_json(data["rates"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def found_device(name: str | Device) -> Device:
    """Return a device by name or file; "this" is this machine, calibrated before. Raises UsageError."""
    return (kept() if name == THIS else None) or known_device(name)


def roofline(
    architecture: Architecture,
    *,
    device: str | Device = "H100",
    seq_len: int | None = None,
    source_len: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
) -> Roofline:
    """`costs.roofline` of a device; "this" is this machine, calibrated before. Raises as it does."""
    return roofline_on(
        architecture,
        device=found_device(device),
        seq_len=seq_len,
        source_len=source_len,
        batch=batch,
        dtype=dtype,
        efficiency=efficiency,
        price_per_hour=price_per_hour,
    )


def plan(
    architecture: Architecture,
    on: str | Hardware,
    *,
    seq_len: int | None = None,
    source_len: int | None = None,
    batch_tokens: int | None = None,
    tokens: int | None = None,
    hours: float | None = None,
    mesh: str | None = None,
    precision: str | None = None,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
) -> Plan:
    """`costs.plan.plan` on hardware such as "8xH100" or "this": this machine, calibrated before. Raises as it does."""
    return plan_on(
        architecture,
        on if isinstance(on, Hardware) else hardware(on, found_device),
        seq_len=seq_len,
        source_len=source_len,
        batch_tokens=batch_tokens,
        tokens=tokens,
        hours=hours,
        mesh=mesh,
        precision=precision,
        efficiency=efficiency,
        price_per_hour=price_per_hour,
    )


def profile(
    architecture: Architecture,
    *,
    n_params: float | None = None,
    vocab_size: int | None = None,
    batch: int = 4,
    seq_len: int = 256,
    precision: Precision = "float32",
    device: str | None = None,
) -> Profile:
    """`measure.profile.profile` of an architecture at another size; times are predicted where this machine is calibrated."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # PyTorch's profiler talks to stderr otherwise
    from anyformer.measure.profile import profile as profile_of
    from anyformer.training.prepare import resized

    spec = resized(specification(architecture), n_params, vocab_size)
    where = choose_device(device)
    here = kept(where)
    known = here is not None and here.rates is not None and here.rates.knows(dtype_name(compute_dtype(precision)))
    return profile_of(
        spec, batch=batch, seq_len=seq_len, precision=precision, device=where, here=here if known else None
    )


def native_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The dtypes that a device multiplies itself; a processor that only emulates bfloat16 leaves it out."""
    if device.type != "cpu":
        return (torch.float32, torch.bfloat16)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return (torch.float32,)
    return (torch.float32, torch.bfloat16)


def _device(machine: Machine, rates: Rates, device: torch.device) -> Device:
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else psutil.virtual_memory().total
    return Device(
        name=THIS,
        peak_flops_per_second=machine.peak_flops_per_second,
        memory_nbytes=memory,
        nbytes_per_second=rates.reading[-1][1],
        source=f"measured: {machine.processor}, {machine.threads} threads, PyTorch {machine.torch_version}",
        overhead_seconds=rates.overhead_seconds["forward"],
        efficiency=Efficiency(1.0, 1.0, 1.0, 1.0),
        rates=rates,
    )


def _encoded(machine: Machine, device: Device, rates: Rates) -> dict[str, Any]:
    return {"version": VERSION, "machine": machine.identity, "device": device.as_json(), "rates": rates.as_json()}
