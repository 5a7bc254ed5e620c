"""A roofline in words: tables of rows, one a phase."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.costs.hardware.devices import FITTED, devices
from anyformer.costs.hardware.roofline import JOULES_PER_KWH, PhaseTime, Roofline
from anyformer.costs.sections import FigureLine, Section, si

STEPS = {
    "training": "one training step",
    "prefill": "reading the prompt",
    "decoding": "one token more for each sequence",
}


def roofline_sections(found: Roofline) -> Iterator[Section]:
    """The tables of a roofline: what it is on, then each phase by part."""
    device, e = found.device, found.efficiency
    peak = f"{si(device.peak(found.dtype))}FLOP/s in {found.dtype}, {si(device.nbytes_per_second)}B/s"
    says = f"{peak}, ridge {device.ridge(found.dtype):,.0f} FLOPs/byte; {device.source}"
    lines = [FigureLine("device", device.name, says)]
    if device.rates is None:
        fitted = device.name in FITTED and e == devices()[device.name].efficiency
        lines.append(FigureLine("efficiency", "fitted" if fitted else "assumed", str(e)))
    if not found.fits:
        held = (found.weights_nbytes + found.cache_nbytes) / 1e9
        room = f"{device.memory_nbytes / 1e9:,.0f} GB of one device: times are as if it had room; `anyformer plan` spreads it"
        lines.append(FigureLine("fits", "no", f"weights and cache are {held:,.0f} GB, more than the {room}"))
    yield Section(f"roofline on {device.name}", tuple(lines))
    for phase in found.phases.values():
        yield Section(f"{phase.phase}: {STEPS[phase.phase]}", tuple(_phase(phase)))


def _phase(phase: PhaseTime) -> Iterator[FigureLine]:
    facts = phase.as_json()
    speed = f"{si(facts['tokens_per_second'])}tokens/s, {facts['share_of_peak']:.1%} of the peak"
    says = f"{speed}, {facts['intensity']:,.1f} FLOPs/byte, bound by {phase.bound}"
    yield FigureLine("time", duration(phase.seconds), says)
    for part in phase.parts:
        share = f"{part.seconds / phase.seconds:6.1%}, bound by {part.bound}"
        yield FigureLine(f"  {part.part}", duration(part.seconds), f"{share}, {part.intensity:,.1f} FLOPs/byte")
    million = 1e6 / phase.tokens
    if facts["joules"] is not None:
        kwh = facts["joules"] * million / JOULES_PER_KWH
        yield FigureLine("energy", f"{kwh:,.3g} kWh", "for a million tokens, by the device's printed power alone")
    if facts["price"] is not None:
        yield FigureLine("price", f"{facts['price'] * million:,.3g}", "for a million tokens")


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 1:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
