"""Meshes: how many devices share data, matrices, layers, experts and the sequence; which can be, and why others cannot.

Data (dp) and ZeRO: Rajbhandari et al. 2019, arXiv:1910.02054. Tensors (tp): Shoeybi et al. 2019, arXiv:1909.08053. Pipelines
(pp), with stretches (vp) interleaved: Narayanan et al. 2021, arXiv:2104.04473. Experts (ep): Lepikhin et al. 2020,
arXiv:2006.16668. Context (cp): Liu et al. 2023, arXiv:2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from anyformer.axes import axes_of
from anyformer.costs.hardware.devices import Device
from anyformer.errors import UsageError
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.moe import MoESpec
from anyformer.spec import ModelSpec

AXES = {
    "dp": "data",
    "tp": "tensors",
    "pp": "layers, as a pipeline",
    "cp": "the sequence",
    "vp": "each device's layers of a pipeline, into so many stretches",
    "ep": "experts, within dp · cp",
    "zero": "ZeRO's stage: 1 shards the optimiser, 2 gradients too, 3 weights too",
}
MOST_TENSOR, MOST_CONTEXT, STRETCHES = 8, 16, (1, 2, 4)  # that the search tries; a mesh that is given may have more
SLICE = 1024  # tokens of a sequence that one device has at least, in what the search tries


@dataclass(frozen=True)
class ParallelLayout:
    """dp · tp · pp · cp devices; experts are spread over ep of the dp · cp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vp: int = 1
    ep: int = 1
    zero: int = 1

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> int:
        """Devices that hold the same weights but for ZeRO."""
        return self.dp * self.cp

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in vars(self).items() if name != "zero" and value > 1]
        return ",".join([*(said or ["dp=1"]), *([f"zero={self.zero}"] if self.shards > 1 else [])])


@dataclass(frozen=True)
class Facts:
    """What of an architecture decides which meshes can be."""

    n_layers: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]  # a latent has none to share out
    widths: tuple[int, ...]  # of feed-forwards and experts
    experts: tuple[int, ...]
    whole: str | None  # why it cannot be a pipeline


def parse(text: str, devices: int, facts: Facts) -> list[ParallelLayout]:
    """The meshes that "dp=4,tp=8" says: an axis left out is 1, dp what remains; vp and zero left out are open.

    Raises UsageError.
    """
    given = axes_of(text, AXES, range(4), "dp=4,tp=8")
    mesh = ParallelLayout(**given)
    if "dp" not in given:
        rest = mesh.devices
        if devices % rest:
            raise UsageError(f"--mesh {text!r}: {rest} devices a replica do not divide the {devices} of --hardware")
        mesh = replace(mesh, dp=devices // rest)
    if mesh.devices != devices:
        product = " · ".join(f"{name} {getattr(mesh, name)}" for name in ("dp", "tp", "pp", "cp"))
        raise UsageError(f"--mesh {text!r}: {product} is {mesh.devices} devices; --hardware has {devices}")
    stretches = (mesh.vp,) if "vp" in given else _stretches(mesh, facts)
    usual = (1, 3) if mesh.pp == 1 and mesh.shards > 1 else (1,)
    stages = (mesh.zero,) if "zero" in given else usual
    return [replace(mesh, vp=vp, zero=zero) for vp in stretches for zero in stages]


def refusal(mesh: ParallelLayout, facts: Facts, rows: int, seq_len: int) -> str | None:
    """Why a mesh cannot be, in a few words with the numbers; None: it can."""
    for n in facts.heads:
        if n % mesh.tp:
            return f"tp = {mesh.tp} does not divide the {n} heads"
    for n in facts.kv_heads:
        if n % mesh.tp and mesh.tp % n:
            return f"tp = {mesh.tp} neither divides nor is a multiple of the {n} key/value heads"
    for n in facts.widths:
        if n % mesh.tp:
            return f"tp = {mesh.tp} does not divide the feed-forward's width of {n:,}"
    if mesh.pp > facts.n_layers:
        return f"pp = {mesh.pp} is more than the {facts.n_layers} layers"
    if mesh.pp > 1 and facts.whole:
        return f"pp = {mesh.pp} cannot cut this model: {facts.whole}"
    if mesh.vp > 1 and (mesh.pp == 1 or mesh.pp * mesh.vp > facts.n_layers):
        return f"vp = {mesh.vp} stretches on each of pp = {mesh.pp} need pp > 1 and at most {facts.n_layers} layers"
    if mesh.ep > 1 and not facts.experts:
        return f"ep = {mesh.ep} has no experts to spread"
    for n in facts.experts:
        if n % mesh.ep:
            return f"ep = {mesh.ep} does not divide the {n} experts"
    if mesh.shards % mesh.ep:
        return f"ep = {mesh.ep} does not divide dp · cp = {mesh.shards}"
    if mesh.cp > 1 and seq_len % (2 * mesh.cp):
        return f"2 · cp = {2 * mesh.cp} does not divide the sequence of {seq_len:,} tokens"
    if rows % mesh.dp:
        return f"dp = {mesh.dp} does not divide the {rows:,} sequences of a batch"
    return None


def facts_of(spec: ModelSpec) -> Facts:
    """The facts of an architecture."""
    blocks = {id(block): block for stack in spec.stacks.values() for block in stack.blocks}
    values: list[Any] = [value for block in blocks.values() for value in block.nested()]
    projections = [value.projection for value in values if isinstance(value, AttentionSpec)]
    shared = any(getattr(value, "shared", None) for value in values)

    def numbers(found: Iterable[int | None]) -> tuple[int, ...]:
        return tuple(sorted({n for n in found if n}))

    return Facts(
        n_layers=spec.n_layers,
        heads=numbers(getattr(projection, "n_heads", 1) for projection in projections),
        kv_heads=numbers(getattr(projection, "kv_heads", None) for projection in projections),
        widths=numbers(getattr(value, "d_ff", None) for value in values),
        experts=numbers(value.router.n_experts for value in values if isinstance(value, MoESpec)),
        whole="it has an encoder and a decoder" if spec.encoder else "its layers share weights" if shared else None,
    )


def meshes(devices: int, facts: Facts, where: Device, rows: int, seq_len: int) -> Iterator[ParallelLayout]:
    """Every mesh of so many devices that can be, tensors within a node; ZeRO at stages 1 and 3."""
    node = min(where.devices_per_node, MOST_TENSOR)
    for tp in (n for n in divisors(devices) if n <= node):
        for pp in divisors(devices // tp):
            if pp > facts.n_layers or (pp > 1 and facts.whole):
                continue
            for cp in (n for n in divisors(devices // tp // pp) if n <= max(1, min(MOST_CONTEXT, seq_len // SLICE))):
                dp = devices // tp // pp // cp
                spread = (n for n in divisors(dp * cp) if all(e % n == 0 for e in facts.experts))
                for ep in spread if facts.experts else (1,):
                    mesh = ParallelLayout(dp, tp, pp, cp, 1, ep)
                    if refusal(mesh, facts, rows, seq_len) is not None:
                        continue
                    if dp * cp > 1 and pp == 1:
                        yield replace(mesh, zero=3)
                    yield from (replace(mesh, vp=vp) for vp in _stretches(mesh, facts))


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _stretches(mesh: ParallelLayout, facts: Facts) -> tuple[int, ...]:
    return tuple(vp for vp in STRETCHES if vp == 1 or (mesh.pp > 1 and mesh.pp * vp <= facts.n_layers))
