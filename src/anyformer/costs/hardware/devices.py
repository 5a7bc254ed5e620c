"""Accelerators as data: peaks, memory, links and power as their makers print them, each with its source.

Products are dense: figures that are printed "with sparsity" are halved. A rate of a link is one way, out of one device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.disk import plain
from anyformer.errors import UsageError, among, did_you_mean
from anyformer.spec import Range, is_path
from anyformer.spec.part import is_needed
from anyformer.spec.ranges import HUGE

if TYPE_CHECKING:
    from anyformer.costs.hardware.rates import Rates

THIS = "this"
USABLE = 0.92  # of a device's memory; the rest is for the framework, its communication, and gaps
FITTED = ("A100-40GB", "A100-80GB", "H100")  # whose shares of peaks are fitted on published runs (docs/plan.md)
_ALIASES = {"a100": "A100-80GB", "h100sxm": "H100", "4090": "RTX4090"}


@dataclass(frozen=True)
class Efficiency:
    """The share of a printed peak that well-written kernels reach; of a calibrated device all are 1.

    The defaults lie between what published runs reach on A100 and on H100, for which `devices.yaml` has shares of their own.
    """

    products: float = 0.65
    attention: float = 0.4
    memory: float = 0.85
    links: float = 0.75
    hidden: float = 0.2  # of the traffic of gradients and weights, as much as runs beside arithmetic

    def __str__(self) -> str:
        return f"{self.products:.0%} of the peak in products, {self.attention:.0%} in attention, {self.memory:.0%} of bandwidth"


@dataclass(frozen=True)
class Device:
    """One accelerator, or processor, and its place among others. All rates are of one device."""

    name: str
    peak_flops_per_second: Mapping[str, float]  # by dtype, dense; a multiply-add is two FLOPs
    memory_nbytes: int
    nbytes_per_second: float  # of its memory
    source: str
    link_nbytes_per_second: float | None = None  # to the others of its node, one way
    devices_per_node: int = 1
    network_nbytes_per_second: float | None = None  # to other nodes, one way
    power_watts: float | None = None
    overhead_seconds: float = 0.0  # from one operator to the next, beside its work
    efficiency: Efficiency = Efficiency()
    rates: Rates | None = field(default=None, compare=False, repr=False)  # measured, of this machine

    @property
    def usable_nbytes(self) -> int:
        """Of its memory, what a model has room in."""
        return int(USABLE * self.memory_nbytes)

    @property
    def half(self) -> str:
        """The dtype of 16 bits that it multiplies: bfloat16, where it says so."""
        return "bfloat16" if "bfloat16" in self.peak_flops_per_second else "float16"

    def peak(self, dtype: str) -> float:
        """FLOPs a second in a dtype. Raises UsageError for one that the device does not say."""
        if dtype not in self.peak_flops_per_second:
            known = ", ".join(self.peak_flops_per_second)
            raise UsageError(f"{self.name} states no peak for {dtype}; it does for {known}")
        return self.peak_flops_per_second[dtype]

    def ridge(self, dtype: str) -> float:
        """The FLOPs a byte above which products bound, and below which memory does."""
        return self.peak(dtype) / self.nbytes_per_second

    def nbytes_per_second_among(self, n: int) -> float:
        """What a device of n neighbours sends, one way: to other nodes as to those of its own, where no network is said."""
        rate = self.link_nbytes_per_second if n <= self.devices_per_node else self.network_nbytes_per_second
        return rate or self.link_nbytes_per_second or math.inf

    def as_json(self) -> dict[str, Any]:
        """Plain data; without the measured rates, these are the keys of a device's file."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "rates"}
        peaks = dict(self.peak_flops_per_second)
        return named | {"peak_flops_per_second": peaks, "efficiency": dataclasses.asdict(self.efficiency)}


@lru_cache(maxsize=1)
def devices() -> Mapping[str, Device]:
    """The devices known by name."""
    text = resources.files("anyformer").joinpath("costs", "hardware", "devices.yaml").read_text(encoding="utf-8")
    return {found.name: found for found in (_decoded(data, "devices.yaml") for data in plain.loads(text))}


def device(name: str | Path | Device) -> Device:
    """A device by name, case and dashes ignored, or from a YAML file; one that is given stays. Raises UsageError."""
    if isinstance(name, Device):
        return name
    if is_path(name):
        return read(Path(name))
    text = str(name)
    names = {_plain(known): known for known in devices()} | {_plain(alias): known for alias, known in _ALIASES.items()}
    if _plain(text) in names:
        return devices()[names[_plain(text)]]
    if text == THIS:
        raise UsageError("this machine is not calibrated yet; run `anyformer calibrate` first (about a minute)")
    raise UsageError(f"no device {text!r}{among(text, devices())}, {THIS!r} (calibrated), and files.yaml")


def read(path: Path) -> Device:
    """The device that a YAML or JSON file holds, with the fields of `Device`. Raises UsageError."""
    return _decoded(plain.read(path, "device", UsageError), str(path))


def _decoded(data: Any, path: str) -> Device:
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no device: it must be a mapping with name, peak_flops_per_second, …")
    fields = {f.name: f for f in dataclasses.fields(Device) if f.name != "rates"}
    _known(data, fields, path)
    for key, each in fields.items():
        if key not in data and is_needed(each):
            raise UsageError(f"{path}: {key} is missing; a device has {', '.join(fields)}")
    return Device(**{key: _value(path, fields[key], value) for key, value in data.items()})


def _value(path: str, of: dataclasses.Field[Any], value: Any) -> Any:
    """What a device's file says of one field. Raises UsageError."""
    key = of.name
    match key:
        case "name" | "source":
            if not isinstance(value, str) or not value.isprintable():
                raise UsageError(f"{path}: {key} = {value!r} must be a text that prints")
            return value
        case "peak_flops_per_second":
            if not isinstance(value, dict) or not value:
                raise UsageError(f"{path}: {key} = {value!r} must be a mapping of dtype to FLOPs a second")
            return {str(dtype): _number(path, f"{key}.{dtype}", peak) for dtype, peak in value.items()}
        case "efficiency":
            shares = value or {}
            _known(shares, {f.name: f for f in dataclasses.fields(Efficiency)}, f"{path}: {key}")
            return Efficiency(**{name: _number(path, f"{key}.{name}", share, 1.0) for name, share in shares.items()})
        case "memory_nbytes" | "devices_per_node":
            return int(_number(path, key, value, least=1))
        case "overhead_seconds":
            return _number(path, key, value, least=0)
    return None if value is None and of.default is None else _number(path, key, value)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _known(data: Any, fields: Mapping[str, Any], where: str) -> None:
    if not isinstance(data, dict):
        raise UsageError(f"{where} = {data!r} must be a mapping of {', '.join(fields)}")
    for key in data:
        if key not in fields:
            near = did_you_mean(key, fields)
            raise UsageError(f"{where}: {key!r} is no field{near}; it has {', '.join(fields)}")


def _number(path: str, key: str, value: Any, most: float = HUGE, least: float | None = None) -> float:
    try:
        number = float(value if isinstance(value, int | float | str) else "")  # YAML reads 989e12 as text
    except (ValueError, OverflowError):
        raise UsageError(f"{path}: {key} = {value!r} is no number") from None
    found = Range(0, most, above=True) if least is None else Range(least, most)
    if said := "must be a number" if isinstance(value, bool) else found.refusal(number):
        raise UsageError(f"{path}: {key} = {value!r} {said}")
    return number
