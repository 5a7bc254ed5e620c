"""Does it fit, how, and how long: the fastest of all meshes, micro-batches and recomputations that fit a device's memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from anyformer.costs.conventions import CONVENTIONS
from anyformer.costs.hardware.devices import THIS, Device, Efficiency
from anyformer.costs.hardware.devices import device as named_device
from anyformer.costs.hardware.mesh import ParallelLayout, divisors, meshes, parse, refusal
from anyformer.costs.hardware.placement import RECOMPUTE, Placement, Placer, Recompute
from anyformer.costs.hardware.roofline import JOULES_PER_KWH
from anyformer.costs.report import lengths_of
from anyformer.costs.scaling_law import BESIROGLU, HOFFMANN, ScalingLaw
from anyformer.costs.state import LAYOUTS
from anyformer.errors import UsageError, unknown
from anyformer.notebook import ShowsItself
from anyformer.screen import printed
from anyformer.spec import Architecture, ModelSpec, Parameters, Range, Workload, parameters, specification

BATCH_TOKENS, SMALL_BATCH_TOKENS = 2**22, 2**16  # where none is given: on several devices (LLaMA 2's), on one
SEQ_LEN = 8192
MOST_MICRO_BATCH = 16
LEAST_TOKENS = 128  # of sequences that a nearest plan is looked for with
MOST_DEVICES = 2**16  # that a nearest plan is looked for with
DEVICES = Range(1, 2**20)  # that a plan is asked for with
TOKENS_A_PARAMETER = 20  # Hoffmann et al. 2022, arXiv:2203.15556, table 3
VERSION = 1

Leanest = tuple[int, ParallelLayout, Recompute, Mapping[str, int]]  # bytes of a device, and of which way they are


@dataclass(frozen=True)
class Hardware:
    """So many of a device."""

    devices: int
    device: Device

    def __str__(self) -> str:
        return f"{self.devices} × {self.device.name}"


@dataclass(frozen=True)
class Plan(ShowsItself):
    """What was asked and what was found. `best` is None where nothing fits; then `reason` says why, `nearest` what would."""

    hardware: Hardware
    seq_len: int
    batch_tokens: int
    precision: str
    efficiency: Efficiency
    parameters: Parameters
    training_flops_per_token: float  # forward and back, masked pairs not counted
    best: Placement | None
    tried: int
    reason: str | None = None
    nearest: str | None = None
    tokens: int | None = None  # the goal
    hours: float | None = None  # the other goal
    price_per_hour: float | None = None  # of a device
    source_len: int | None = None  # of an encoder
    law: ScalingLaw | None = None  # of one's own runs

    @property
    def tokens_per_second(self) -> float:
        """Of all devices; 0 where nothing fits."""
        return self.batch_tokens / self.best.step_seconds if self.best else 0.0

    @property
    def share_of_peak(self) -> float:
        """Of the devices' peak, by the FLOPs of the model alone: what is computed again does not count (MFU)."""
        assert self.best is not None
        device = self.hardware.device
        peak = device.peak("float32" if self.precision == "float32" else device.half) * self.hardware.devices
        return self.tokens_per_second * self.training_flops_per_token / peak

    @property
    def hours_needed(self) -> float | None:
        """To the goal of tokens."""
        return self.tokens / self.tokens_per_second / 3600 if self.tokens and self.best else None

    @property
    def tokens_reached(self) -> float | None:
        """In the hours that were given."""
        return self.hours * 3600 * self.tokens_per_second if self.hours and self.best else None

    @property
    def optimal_tokens(self) -> dict[str, float]:
        """Tokens at which a model of this size, its active parameters, is the best use of the arithmetic."""
        n = self.parameters.active
        laws = {"hoffmann_fit": HOFFMANN, "besiroglu_fit": BESIROGLU} | ({"own_fit": self.law} if self.law else {})
        return {"20_per_parameter": float(TOKENS_A_PARAMETER * n)} | {
            name: law.optimal_tokens(n) for name, law in laws.items()
        }

    def __str__(self) -> str:
        from anyformer.costs.hardware.sections import plan_sections

        return printed(*(section.table() for section in plan_sections(self)))

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        best, hours, watts = self.best, self.hours_needed or self.hours, self.hardware.device.power_watts
        device_hours = hours and hours * self.hardware.devices
        kwh = device_hours and watts and device_hours * 3600 * watts / JOULES_PER_KWH

        def own(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            "version": VERSION,
            "hardware": {"devices": self.hardware.devices, "device": self.hardware.device.as_json()},
            **own("seq_len", "source_len", "batch_tokens", "precision"),
            "efficiency": asdict(self.efficiency),
            "usable_nbytes": self.hardware.device.usable_nbytes,
            "parameters": {"total": self.parameters.total, "active": self.parameters.active},
            "training_flops_per_token": self.training_flops_per_token,
            "fits": best is not None,
            **own("tried", "reason", "nearest"),
            "plan": best
            and {
                "mesh": vars(best.mesh),
                **{name: getattr(best, name) for name in ("micro_batch", "micro_batches", "recompute")},
                "memory": dict(best.memory),
                "memory_nbytes": best.nbytes,
                "seconds": dict(best.seconds),
                "step_seconds": best.step_seconds,
                **own("tokens_per_second", "share_of_peak"),
            },
            "tokens": self.tokens,
            "hours": hours,
            "tokens_reached": self.tokens_reached,
            "device_hours": device_hours,
            "kwh": kwh,
            "price": device_hours and self.price_per_hour and device_hours * self.price_per_hour,
            "optimal_tokens": self.optimal_tokens,
        }


def hardware(text: str, find: Callable[[str], Device] = named_device) -> Hardware:
    """What "8xH100", "H200" or "this" says; `find` is asked for the device of a name. Raises UsageError."""
    match = re.fullmatch(r"\s*(-?\d+)\s*[x×*]\s*(.+)", text, re.IGNORECASE)
    said, name = (match[1], match[2].strip()) if match else ("1", text.strip())
    if why := DEVICES.refusal(float(said)):  # Python makes no int of thousands of digits
        raise UsageError(f"--hardware {text!r}: {said} devices {why}, as in 8xH100")
    n = int(said)
    if name == THIS and n > 1:
        raise UsageError(f"--hardware {text!r}: only one of this machine is known; give its YAML for several")
    return Hardware(n, find(name))


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
    law: ScalingLaw | None = None,
) -> Plan:
    """The fastest way to train on some hardware, or why there is none and what would do.

    `source_len` is what an encoder reads for each sequence, by default as many tokens as it has; `law` is one of one's own
    runs, which says a further optimum of tokens.
    Raises UsageError for what cannot be asked: sizes that do not fit together, a mesh that cannot be.
    """
    spec, on = specification(architecture), on if isinstance(on, Hardware) else hardware(on)
    precision = _precision(on) if precision is None else precision
    if precision not in LAYOUTS:
        raise UsageError(unknown("precision", precision, LAYOUTS))
    if law is not None:
        law.optimal_tokens(1.0)  # refused before anything is worked out
    seq_len, batch_tokens = _sizes(spec, on, seq_len, batch_tokens)
    lengths_of(spec, seq_len, source_len, batch_tokens // seq_len)
    for name, value in (("tokens", tokens), ("hours", hours), ("price-per-hour", price_per_hour)):
        if value is not None and not value > 0:
            raise UsageError(f"--{name} {value:g} must be above 0")
    shares, rows = efficiency or on.device.efficiency, batch_tokens // seq_len
    placer = Placer(spec, on.device, seq_len, rows, precision, shares, source_len)
    asked = parse(mesh, on.devices, placer.facts) if mesh is not None else None
    for one in asked or ():
        if why := refusal(one, placer.facts, rows, seq_len):
            raise UsageError(f"--mesh {mesh!r}: {why}")
    best, leanest, tried = _search(placer, on, asked)
    step = CONVENTIONS["exact-causal"].training(spec, Workload(1, seq_len, memory=placer.source_len))
    flops = sum(step.values()) / seq_len
    found = Plan(
        on, seq_len, batch_tokens, precision, shares, parameters(spec), flops, best, tried,
        tokens=tokens, hours=hours, price_per_hour=price_per_hour, source_len=placer.source_len or None,
        law=law,
    )  # fmt: skip
    if best is not None:
        return found
    if leanest is None:
        reason = f"no mesh of {on.devices} devices fits {rows} sequences a step and this model's sizes"
        return replace(found, reason=reason)
    return replace(found, reason=_reason(leanest, on), nearest=_nearest(spec, found, placer, source_len))


def _search(
    placer: Placer, on: Hardware, asked: list[ParallelLayout] | None
) -> tuple[Placement | None, Leanest | None, int]:
    """(the fastest way that fits, the one of fewest bytes as (bytes, mesh, recompute, memory), how many were tried)."""
    best: Placement | None = None
    leanest: Leanest | None = None
    tried = 0
    these: Iterator[ParallelLayout] = meshes(on.devices, placer.facts, on.device, placer.rows, placer.seq_len)
    for mesh in asked if asked is not None else these:
        for recompute in RECOMPUTE:
            for micro_batch in (n for n in divisors(placer.rows // mesh.dp) if n <= MOST_MICRO_BATCH):
                tried += 1
                if best is not None and placer.least_seconds(mesh, micro_batch, recompute) > best.step_seconds:
                    continue
                memory = placer.memory(mesh, micro_batch, recompute)
                nbytes = sum(memory.values())
                if leanest is None or nbytes < leanest[0]:
                    leanest = nbytes, mesh, recompute, memory
                if nbytes > on.device.usable_nbytes:
                    break  # more at once takes more
                way = placer.place(mesh, micro_batch, recompute, memory)
                if best is None or (way.step_seconds, way.nbytes) < (best.step_seconds, best.nbytes):
                    best = way
    return best, leanest, tried


def _reason(leanest: Leanest, on: Hardware) -> str:
    nbytes, mesh, recompute, memory = leanest
    most = max(memory, key=lambda name: memory[name])
    return (
        f"the leanest way ({mesh}, recomputation {recompute}) needs {nbytes / 1e9:,.1f} GB a device, of which {most} "
        f"{memory[most] / 1e9:,.1f} GB; {on.device.name} has {on.device.usable_nbytes / 1e9:,.1f} GB to use"
    )


def _nearest(spec: ModelSpec, found: Plan, placer: Placer, source_len: int | None) -> str | None:
    on, said = found.hardware, []
    n = on.devices * 2
    while n <= MOST_DEVICES and on.device.name != THIS:
        if best := _search(placer, Hardware(n, on.device), None)[0]:
            said.append(f"{n} × {on.device.name} ({best.mesh}, recomputation {best.recompute})")
            break
        n *= 2
    state = placer.memory(ParallelLayout(zero=0), 1, "full")["optimiser"]
    if state <= on.device.usable_nbytes * on.devices and (shorter := _shorter(spec, found, source_len)):
        seq_len, way = shorter
        said.append(f"sequences of {seq_len:,} tokens ({way.mesh}, recomputation {way.recompute})")
    return "; or ".join(said) or None


def _shorter(spec: ModelSpec, found: Plan, source_len: int | None) -> tuple[int, Placement] | None:
    """The longest sequences that fit of those half as long, a quarter …, and the way; halved again they fit the more."""
    on, best = found.hardware, None
    longest, shortest = 1, max(1, found.seq_len // LEAST_TOKENS).bit_length()  # how often they are halved
    while longest < shortest:
        halvings = (longest + shortest) // 2
        seq_len = found.seq_len >> halvings
        rows = found.batch_tokens // seq_len
        placer = Placer(spec, on.device, seq_len, rows, found.precision, found.efficiency, source_len)
        if way := _search(placer, on, None)[0]:
            best, shortest = (seq_len, way), halvings
        else:
            longest = halvings + 1
    return best


def _sizes(spec: ModelSpec, on: Hardware, seq_len: int | None, batch_tokens: int | None) -> tuple[int, int]:
    seq_len = seq_len if seq_len is not None else min(spec.context or 2048, SEQ_LEN)
    default = max(BATCH_TOKENS if on.devices > 1 else SMALL_BATCH_TOKENS, seq_len)
    batch_tokens = batch_tokens if batch_tokens is not None else default // max(1, seq_len) * seq_len
    if seq_len < 1 or batch_tokens < 1:
        raise UsageError(f"--seq-len {seq_len} and --batch-tokens {batch_tokens} must be at least 1")
    if batch_tokens % seq_len:
        near = max(1, round(batch_tokens / seq_len)) * seq_len
        raise UsageError(f"--batch-tokens {batch_tokens} is no multiple of --seq-len {seq_len}; {near} is")
    return seq_len, batch_tokens


def _precision(on: Hardware) -> str:
    rates = on.device.rates
    if on.device.half not in on.device.peak_flops_per_second or (rates is not None and not rates.knows("bfloat16")):
        return "float32"
    return "bf16" if on.devices == 1 else "mixed-main-grads"
