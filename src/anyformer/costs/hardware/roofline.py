"""How long training, prefill and decoding take on a device, by part, and what bounds each. Williams et al. 2009.

doi:10.1145/1498765.1498785. Every operator takes the longer of its arithmetic and its bytes, at the shares of the peaks
that are stated; launches run beside the work of an accelerator and add to that of a processor. A model that is larger than
the device's memory is timed as if it fitted; the report says so. Parallel devices are `plan`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from anyformer.cache import cache_kinds
from anyformer.costs.hardware.devices import Device, Efficiency
from anyformer.costs.hardware.devices import device as named_device
from anyformer.costs.hardware.rates import Timed, on_curve, reads_a_cache
from anyformer.costs.report import NBYTES, lengths_of
from anyformer.errors import UsageError, did_you_mean
from anyformer.notebook import ShowsItself
from anyformer.observation.operators import Operator
from anyformer.observation.passes import DeviceKind, forward_pass, training_pass
from anyformer.screen import printed
from anyformer.spec import Architecture, parameters, specification

UPDATE_NBYTES = 32  # a parameter of AdamW in float32: gradient's norm 4, weight, gradient, moments read 16, written 12
JOULES_PER_KWH = 3.6e6
VERSION = 1


@dataclass(frozen=True)
class PartTime:
    """One part of a pass. The seconds of arithmetic, memory and overhead are what each alone would take."""

    part: str
    flops: int
    nbytes: float
    seconds: float
    compute_seconds: float
    memory_seconds: float
    overhead_seconds: float

    @property
    def bound(self) -> str:
        """What takes longest: "compute", "memory" or "overhead"."""
        each = {"compute": self.compute_seconds, "memory": self.memory_seconds, "overhead": self.overhead_seconds}
        return max(each, key=lambda name: each[name])

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class PhaseTime:
    """One training step, one prefill, or one decoded token of each row."""

    phase: str
    tokens: int
    parts: tuple[PartTime, ...]
    peak_flops_per_second: float
    watts: float | None
    price_per_hour: float | None

    def _sum(self, name: str) -> float:
        return sum(getattr(part, name) for part in self.parts)

    @property
    def seconds(self) -> float:
        """Of the whole."""
        return self._sum("seconds")

    @property
    def flops(self) -> int:
        """Of the whole, masked pairs not counted."""
        return int(self._sum("flops"))

    @property
    def nbytes(self) -> float:
        """Read and written."""
        return self._sum("nbytes")

    @property
    def bound(self) -> str:
        """What bounds the parts that take most of the time."""
        by: dict[str, float] = {}
        for part in self.parts:
            by[part.bound] = by.get(part.bound, 0.0) + part.seconds
        return max(by, key=lambda name: by[name])

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        seconds = self.seconds
        return {
            "phase": self.phase,
            "tokens": self.tokens,
            "seconds": seconds,
            "tokens_per_second": self.tokens / seconds,
            "flops": self.flops,
            "nbytes": self.nbytes,
            "intensity": self.flops / self.nbytes,
            "bound": self.bound,
            "share_of_peak": self.flops / seconds / self.peak_flops_per_second,
            "joules": None if self.watts is None else self.watts * seconds,
            "price": None if self.price_per_hour is None else self.price_per_hour * seconds / 3600,
            "parts": [{**asdict(part), "bound": part.bound, "intensity": part.intensity} for part in self.parts],
        }


@dataclass(frozen=True)
class Roofline(ShowsItself):
    """What `roofline` found."""

    device: Device
    dtype: str
    seq_len: int
    batch: int
    efficiency: Efficiency
    weights_nbytes: int
    cache_nbytes: int
    phases: Mapping[str, PhaseTime]  # training, prefill, decoding; an encoder alone has no decoding

    @property
    def fits(self) -> bool:
        """Whether weights and cache, for decoding, fit the device's memory."""
        return self.weights_nbytes + self.cache_nbytes <= self.device.memory_nbytes

    def __str__(self) -> str:
        from anyformer.costs.hardware.sections import roofline_sections

        return printed(*(section.table() for section in roofline_sections(self)))

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        return {
            "version": VERSION,
            "device": self.device.as_json(),
            "dtype": self.dtype,
            "seq_len": self.seq_len,
            "batch": self.batch,
            "efficiency": asdict(self.efficiency),
            "ridge": self.device.ridge(self.dtype),
            "weights_nbytes": self.weights_nbytes,
            "cache_nbytes": self.cache_nbytes,
            "fits": self.fits,
            "phases": {name: phase.as_json() for name, phase in self.phases.items()},
        }


def roofline(
    architecture: Architecture,
    *,
    device: Device | str = "H100",
    seq_len: int | None = None,
    source_len: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    efficiency: Efficiency | None = None,
    price_per_hour: float | None = None,
) -> Roofline:
    """The times of one device that runs `batch` sequences of `seq_len` tokens.

    A training step trains on all of them, prefill reads them, decoding adds one token to each after `seq_len` - 1 cached
    ones. dtype defaults to bfloat16 where the device has it. Raises UsageError for a device or dtype that is not known,
    SpecError for sizes that make no sense.
    """
    spec, where = specification(architecture), named_device(device)
    if dtype is None:
        dtype = next((name for name in ("bfloat16", "float16", "float32") if _has(where, name)), where.half)
    if dtype not in NBYTES:
        raise UsageError(
            f"dtype = {dtype!r} has no times{did_you_mean(dtype, NBYTES)}: those on a device are of {', '.join(NBYTES)}; "
            "give one of these, or leave the device out"
        )
    peak = where.peak(dtype)
    if where.rates is not None and not where.rates.knows(dtype):
        raise UsageError(f"this machine was not calibrated in {dtype}; run `anyformer calibrate --dtype {dtype}`")
    if price_per_hour is not None and not price_per_hour > 0:
        raise UsageError(f"--price-per-hour {price_per_hour:g} must be above 0")
    seq_len, memory = lengths_of(spec, seq_len, source_len, batch)
    shares, count = efficiency or where.efficiency, parameters(spec)
    weights_nbytes = int(count.nbytes(NBYTES[dtype]))
    kind, number = device_kind(where), getattr(torch, dtype)
    half = dtype != "float32"
    trained = training_pass(spec, batch=batch, seq_len=seq_len, source_len=memory, half=half, device=kind)
    read = forward_pass(spec, batch=batch, query=seq_len, source_len=memory, dtype=number, device=kind)
    phases = {"training": (trained.operators, batch * seq_len), "prefill": (read, batch * seq_len)}
    cache = cache_kinds(spec, batch=batch, seq_len=seq_len, source_len=memory, dtype=number)
    if cache:
        one = forward_pass(spec, batch=batch, query=1, past=seq_len - 1, source_len=memory, dtype=number, device=kind)
        phases["decoding"] = (one, batch)
    cache_nbytes = sum(of_kind.nbytes for of_kind in cache)
    found: dict[str, PhaseTime] = {}
    for name, (each, tokens) in phases.items():
        timed: Timed = "training" if name == "training" else "forward"
        resident = weights_nbytes if name == "decoding" else 0
        parts = list(_parts(each, where, dtype, timed, shares, resident))
        if where.rates is not None:
            besides = where.rates.pass_seconds[timed]
            parts.append(PartTime("framework", 0, 0.0, besides, 0.0, 0.0, besides))
        if name == "training":
            update = update_seconds(count.total, where, shares)
            parts.append(PartTime("optimiser", 0, count.total * UPDATE_NBYTES, update, 0.0, update, 0.0))
        found[name] = PhaseTime(name, tokens, tuple(parts), peak, where.power_watts, price_per_hour)
    return Roofline(where, dtype, seq_len, batch, shares, weights_nbytes, cache_nbytes, found)


def device_kind(where: Device) -> DeviceKind:
    """Whether a device runs what GPUs run: all do but a processor that was calibrated."""
    return "cpu" if where.rates is not None and not where.rates.asynchronous else "cuda"


def operator_seconds(
    o: Operator, where: Device, dtype: str, timed: Timed, shares: Efficiency, resident_nbytes: float = 0.0
) -> tuple[float, float, float, float]:
    """(seconds, those of arithmetic, of memory and of overhead alone) of one run of an operator.

    `resident_nbytes` are the bytes that a pass reads in turn, which a processor's caches may or may not hold.
    """
    rates = where.rates
    if rates is None:
        share = shares.attention if o.kind == "attention" else shares.products
        compute = o.flops / (where.peak(dtype) * share)
        memory = (o.weights + o.nbytes) / (where.nbytes_per_second * shares.memory)
        return max(compute, memory, where.overhead_seconds), compute, memory, where.overhead_seconds
    compute = rates.work_seconds(o, dtype)
    stored = o.weights if o.kind == "contraction" else o.nbytes if reads_a_cache(o) else 0
    memory = stored / on_curve(rates.reading, max(resident_nbytes, stored)) if stored and timed == "forward" else 0.0
    overhead = rates.overhead_seconds[timed]
    if rates.asynchronous:
        return max(compute, memory, overhead), compute, memory, overhead
    # Processors reorder a matrix before they multiply several rows with it, so that reading it is no part of the product.
    alone = o.kind == "contraction" and o.shape is not None and o.shape[0] == 1
    return (max(compute, memory) if alone else compute + memory) + overhead, compute, memory, overhead


def _parts(
    found: Iterable[Operator], where: Device, dtype: str, timed: Timed, shares: Efficiency, resident: float
) -> Iterable[PartTime]:
    sums: dict[str, list[float]] = {}
    for operator in found:
        row = sums.setdefault(operator.part, [0.0] * 6)
        seconds = operator_seconds(operator, where, dtype, timed, shares, resident)
        for i, value in enumerate((operator.flops, operator.weights + operator.nbytes, *seconds)):
            row[i] += operator.times * value
    return (PartTime(part, int(row[0]), *row[1:]) for part, row in sums.items())


def update_seconds(n_params: float, where: Device, shares: Efficiency) -> float:
    """Seconds of AdamW's update of so many parameters."""
    if where.rates is not None:
        return n_params * where.rates.update_seconds
    return n_params * UPDATE_NBYTES / (where.nbytes_per_second * shares.memory)


def _has(where: Device, dtype: str) -> bool:
    known = dtype in where.peak_flops_per_second
    return known and (where.rates is None or where.rates.knows(dtype))
