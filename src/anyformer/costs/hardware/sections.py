"""Rooflines and plans in words: tables of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.amounts import count, counted, gigabytes, prefixed, seconds, three_digits
from anyformer.costs.hardware.devices import FITTED, devices
from anyformer.costs.hardware.roofline import JOULES_PER_KWH, PhaseTime, Roofline
from anyformer.costs.sections import FigureLine, Section

if TYPE_CHECKING:
    from anyformer.costs.hardware.inference import InferencePlan
    from anyformer.costs.hardware.plan import Plan

STEPS = {
    "training": "one training step",
    "prefill": "reading the prompt",
    "decoding": "one token more for each sequence",
}


def roofline_sections(found: Roofline) -> Iterator[Section]:
    """The tables of a roofline: what it is on, then each phase by part."""
    device, e = found.device, found.efficiency
    peak = (
        f"{prefixed(device.peak(found.dtype), 'FLOP/s')} in {found.dtype}, {prefixed(device.nbytes_per_second, 'B/s')}"
    )
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
    speed = f"{count(facts['tokens_per_second'])} tokens/s, {facts['share_of_peak']:.1%} of the peak"
    says = f"{speed}, {facts['intensity']:,.1f} FLOPs/byte, bound by {phase.bound}"
    yield FigureLine("time", seconds(phase.seconds), says)
    for part in phase.parts:
        share = f"{part.seconds / phase.seconds:6.1%}, bound by {part.bound}"
        yield FigureLine(f"  {part.part}", seconds(part.seconds), f"{share}, {part.intensity:,.1f} FLOPs/byte")
    million = 1e6 / phase.tokens
    if facts["joules"] is not None:
        kwh = facts["joules"] * million / JOULES_PER_KWH
        yield FigureLine("energy", f"{kwh:,.3g} kWh", "for a million tokens, by the device's printed power alone")
    if facts["price"] is not None:
        yield FigureLine("price", f"{facts['price'] * million:,.3g}", "for a million tokens")


def plan_sections(plan: Plan, model: str = "training") -> Iterator[Section]:
    """The tables of a plan of training: what it is, what it gives, a device's memory and a step by part."""
    facts, best = plan.as_json(), plan.best
    rows, params = plan.batch_tokens // plan.seq_len, plan.parameters
    of = f"{counted(rows, 'sequence')} of {counted(plan.seq_len, 'token')}"
    said = [
        FigureLine("parameters", f"{params.total:,}", f"{params.active:,} active" if params.inactive else ""),
        FigureLine("batch", counted(plan.batch_tokens, "token"), of),
    ]
    title = f"{model} on {plan.hardware}"
    if best is None:
        said.append(FigureLine("fits", "no", plan.reason or ""))
        nearest = plan.nearest or "none found; take a smaller model (--params) or another device"
        yield Section(title, (*said, FigureLine("nearest", "", nearest)))
        return
    usable, optimal = gigabytes(plan.hardware.device.usable_nbytes), plan.optimal_tokens
    batches = f"{best.micro_batches:,} one after the other a step"
    said += [
        FigureLine("mesh", str(best.mesh), f"of {counted(plan.tried, 'way')} tried, the fastest that fits"),
        FigureLine("micro-batch", f"{best.micro_batch:,} × {plan.seq_len:,} tokens", batches),
        FigureLine("recomputation", best.recompute, f"state: {plan.precision}"),
        FigureLine("memory", gigabytes(best.nbytes), f"a device, of {usable} to use"),
        FigureLine("step", seconds(best.step_seconds), f"at {plan.efficiency}"),
        FigureLine("speed", f"{count(plan.tokens_per_second)} tokens/s", f"{plan.share_of_peak:.1%} of the peak (MFU)"),
    ]
    if plan.hours_needed is not None:
        said.append(FigureLine("time", seconds(plan.hours_needed * 3600), f"for {count(plan.tokens or 0)} tokens"))
    if plan.tokens_reached is not None:
        said.append(FigureLine("tokens", count(plan.tokens_reached), f"in {plan.hours:g} hours"))
    if facts["device_hours"]:
        said.append(FigureLine("device hours", three_digits(facts["device_hours"])))
    if facts["kwh"]:
        watts = f"at {plan.hardware.device.power_watts:g} W a device"
        says = f"{watts}; hosts, network and cooling not counted"
        said.append(FigureLine("energy", f"{three_digits(facts['kwh'])} kWh", says))
    if facts["price"]:
        said.append(FigureLine("price", three_digits(facts["price"]), f"at {plan.price_per_hour:g} an hour a device"))
    fits = {name: count(value) for name, value in optimal.items()}
    says = f"20 a parameter (Chinchilla); its fit says {fits['hoffmann_fit']}, the fit of 2024 {fits['besiroglu_fit']}"
    says += f", yours {fits['own_fit']}" if "own_fit" in fits else ""
    yield Section(title, (*said, FigureLine("optimal tokens", fits["20_per_parameter"], says)))
    memory = best.memory.items()
    lines = (FigureLine(name, gigabytes(nbytes), f"{nbytes / best.nbytes:6.1%}") for name, nbytes in memory)
    yield Section("memory of a device", tuple(lines))
    taken = {name: value for name, value in best.seconds.items() if value}
    lines = (FigureLine(name, seconds(each), f"{each / best.step_seconds:6.1%}") for name, each in taken.items())
    yield Section("a step", tuple(lines))


def serving_section(plan: InferencePlan, model: str = "the model") -> Section:
    """The table of a plan of inference: for each way to hold weights and cache the best one to serve."""
    where, said = plan.hardware.device, list[FigureLine]()
    title = f"{model} served by {plan.hardware}, sequences of {plan.seq_len:,} tokens"
    if not plan.best:
        leanest = min(plan.ways, key=lambda way: way.weights_nbytes + way.cache_nbytes)
        held = f"{gigabytes(leanest.weights_nbytes)} of weights in {leanest.weight_bits} bits"
        held += f", {gigabytes(leanest.cache_nbytes)} of cache a sequence"
        says = f"{held}, a device at tp={leanest.tp}; take more devices, or larger ones"
        return Section(title, (FigureLine("fits", "no", says),))
    for way in plan.best:
        bits = f"weights {way.weight_bits} bits, cache {way.cache_bits}"
        least = plan.least_tp(way.weight_bits, way.cache_bits)
        says = f"{counted(way.replicas, 'replica')}; fits from tp={least} on"
        said.append(FigureLine(bits, f"tp={way.tp}", says))
        says = (
            f"{gigabytes(way.weights_nbytes)} of weights, {gigabytes(way.cache_nbytes)} of cache a sequence, a device"
        )
        said.append(FigureLine("  sequences", f"{way.sequences * way.replicas:,}", says))
        says = f"then {three_digits(1 / way.alone_seconds)} tokens/s, one sequence alone"
        said.append(FigureLine("  first token", seconds(way.first_token_seconds), says))
        says = f"{seconds(way.token_seconds)} a token of each, most of it {way.bound}"
        said.append(FigureLine("  all together", f"{count(way.tokens_per_second)} tokens/s", says))
        if way.experts_touched is not None and way.expert_nbytes is not None:
            says = f"{gigabytes(way.expert_nbytes)} a token sent, were experts spread over the devices"
            touched = f"of a layer touched by a token of each; {says}"
            said.append(FigureLine("  experts", f"{way.experts_touched:,.1f}", touched))
    says = f"{where.efficiency}; {gigabytes(where.usable_nbytes)} to use"
    return Section(title, (*said, FigureLine("at", where.name, says)))
