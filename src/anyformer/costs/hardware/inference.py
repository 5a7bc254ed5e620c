"""Does a model fit some hardware to be served, and how fast is it: bits of weights and cache, tensors over devices.

A replica is tp devices, each with its share of every matrix (Shoeybi et al. 2019, arXiv:1909.08053) and of key/value heads; a
latent, which has none to share out, is on each. It reads prompts one by one, and adds a token to all its sequences at once.
Every operator takes the longest of its arithmetic, its bytes and its launch, weights read once for all sequences; every
sublayer adds its results up over the devices. Weights in fewer bits are made 16 again where they are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from anyformer.cache import cache_kinds
from anyformer.costs.hardware.devices import Device
from anyformer.costs.hardware.mesh import Facts, ParallelLayout, divisors, facts_of, refusal
from anyformer.costs.hardware.plan import SEQ_LEN, Hardware
from anyformer.costs.hardware.rates import reads_a_cache
from anyformer.costs.report import lengths_of
from anyformer.errors import UsageError
from anyformer.layers.moe import MoESpec
from anyformer.notebook import ShowsItself
from anyformer.observation.operators import Operator
from anyformer.observation.passes import forward_pass
from anyformer.screen import printed
from anyformer.spec import Architecture, ModelSpec, parameters, specification

# Bits of a weight with what its group adds, as GGUF stores them: Q8_0 and Q4_0 have a scale of 16 bits for 32 numbers, Q6_K 210
# bytes for 256.
WEIGHT_BITS = {16: 16.0, 8: 8.5, 6: 6.5625, 4: 4.5}
CACHE_BITS = {16: torch.bfloat16, 8: torch.int8}  # as a cache is kept: with its scales 8 bits are 8.5
HALF = 2  # bytes of what is computed and sent
CHUNK = 2048  # tokens of a prompt that are read at once, at most
RESULTS = 3  # of the largest results of a chunk are there at once
LATENCY_SECONDS = 1e-5  # of a sum over devices, however small: an assumption, near what NCCL takes inside a node
VERSION = 1


@dataclass(frozen=True)
class Deployment:
    """One way to serve; bytes are of a device, sequences and seconds of one replica."""

    weight_bits: int
    cache_bits: int
    tp: int
    replicas: int
    weights_nbytes: int
    cache_nbytes: int  # of one sequence of full length
    buffers_nbytes: int
    sequences: int  # that fit at once; 0: it does not fit
    first_token_seconds: float  # of one prompt of full length
    alone_seconds: float  # of a token of one sequence alone
    token_seconds: float  # of a token of each of all sequences
    bound: str  # what takes most of that: "weights", "cache", "states", "results", "arithmetic", "launches", "links"
    experts_touched: float | None  # of a layer, by a token of each sequence
    expert_nbytes: float | None  # that a token sends to experts and back, were they spread over the devices

    @property
    def tokens_per_second(self) -> float:
        """Of all replicas, each with as many sequences as fit."""
        return self.replicas * self.sequences / self.token_seconds if self.sequences else 0.0


@dataclass(frozen=True)
class InferencePlan(ShowsItself):
    """Every way by bits and tp; those that do not fit have no sequences."""

    hardware: Hardware
    seq_len: int
    ways: tuple[Deployment, ...]
    n_parameters: int

    @property
    def best(self) -> tuple[Deployment, ...]:
        """Of each width of weights and cache the way of most tokens a second, if one fits."""
        found: dict[tuple[int, int], Deployment] = {}
        for way in self.ways:
            key = way.weight_bits, way.cache_bits
            if way.sequences and (key not in found or way.tokens_per_second > found[key].tokens_per_second):
                found[key] = way
        return tuple(found.values())

    def least_tp(self, weight_bits: int, cache_bits: int) -> int | None:
        """The fewest devices that hold a model and one sequence; None: no number of these does."""
        bits = weight_bits, cache_bits
        fit = (way.tp for way in self.ways if (way.weight_bits, way.cache_bits) == bits and way.sequences)
        return min(fit, default=None)

    def __str__(self) -> str:
        from anyformer.costs.hardware.sections import serving_section

        return printed(serving_section(self).table())

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        return {
            "version": VERSION,
            "hardware": {"devices": self.hardware.devices, "device": self.hardware.device.as_json()},
            "seq_len": self.seq_len,
            "n_parameters": self.n_parameters,
            "efficiency": asdict(self.hardware.device.efficiency),
            "usable_nbytes": self.hardware.device.usable_nbytes,
            "fits": bool(self.best),
            "ways": [{**asdict(way), "tokens_per_second": way.tokens_per_second} for way in self.ways],
        }


def plan_inference(architecture: Architecture, on: Hardware, *, seq_len: int | None = None) -> InferencePlan:
    """How a model can be served on some hardware, sequences of `seq_len` tokens each.

    Raises UsageError for a model that does not write text, or a device whose rates were measured and not printed.
    """
    spec = specification(architecture)
    seq_len = seq_len if seq_len is not None else min(spec.context or 2048, SEQ_LEN)
    if seq_len < 2:
        raise UsageError(f"--seq-len {seq_len} has no token to read before the one to write; give 2 or more")
    lengths_of(spec, seq_len, None)
    if on.device.rates is not None:
        raise UsageError(
            "--inference is planned by printed peaks; name a device, or a file, and `cost --device this` for here"
        )
    if spec.encoder is not None or not cache_kinds(spec, batch=1, seq_len=seq_len, source_len=0, dtype=torch.bfloat16):
        raise UsageError("--inference is for decoders, which write text token by token")
    found = _Served(spec, on.device, seq_len)
    ways = [
        found.way(weight_bits, cache_bits, tp, on.devices // tp)
        for weight_bits in WEIGHT_BITS
        for cache_bits in CACHE_BITS
        for tp in divisors(on.devices)
        if refusal(ParallelLayout(tp=tp), found.facts, 1, seq_len) is None
    ]
    return InferencePlan(on, seq_len, tuple(ways), parameters(spec).total)


class _Served:
    """What the ways of one model have in common: the operators of a prompt and of a token, seen once."""

    def __init__(self, spec: ModelSpec, where: Device, seq_len: int) -> None:
        self.spec, self.where, self.seq_len, self.shares = spec, where, seq_len, where.efficiency
        self.facts: Facts = facts_of(spec)
        self.prompt = forward_pass(spec, batch=1, query=seq_len, dtype=torch.bfloat16)
        # Of two sequences and of three: what each further one adds. Alone, one may take other operators than several.
        self.tokens = [forward_pass(spec, batch=n, query=1, past=seq_len - 1, dtype=torch.bfloat16) for n in (1, 2, 3)]
        kinds = {
            bits: cache_kinds(spec, batch=1, seq_len=seq_len, source_len=0, dtype=dtype)
            for bits, dtype in CACHE_BITS.items()
        }
        # float32, whatever the cache
        self.state_nbytes = sum(kind.nbytes for kind in kinds[16] if kind.kind == "state")
        self.cache_nbytes = {
            bits: sum(kind.nbytes for kind in each) - self.state_nbytes for bits, each in kinds.items()
        }
        self.sublayers = sum(len(block.sublayers) for block in spec.stack.blocks)
        mixers = (mixer for block in spec.stack.blocks for mixer in block.mixers)
        self.mixtures = [mixer for mixer in mixers if isinstance(mixer, MoESpec)]

    def way(self, weight_bits: int, cache_bits: int, tp: int, replicas: int) -> Deployment:
        kept = parameters(self.spec)
        weights = math.ceil(kept.nbytes(WEIGHT_BITS[weight_bits] / 8) / tp)
        heads = min(tp, min(self.facts.kv_heads, default=1))
        cache = math.ceil(self.cache_nbytes[cache_bits] / heads + self.state_nbytes / tp)
        largest = max(o.numel for o in self.prompt if o.part != "heads") / self.seq_len
        buffers = math.ceil(RESULTS * HALF * largest * min(CHUNK, self.seq_len) / tp)
        room = self.where.usable_nbytes - weights - buffers
        n = max(0, int(room // cache)) if cache else int(room > 0)
        bits = WEIGHT_BITS[weight_bits] / 16, self.cache_nbytes[cache_bits] / max(1, self.cache_nbytes[16])
        first = sum(self._seconds(self.prompt, tp, tp, bits, self.seq_len).values())
        alone = sum(self._seconds(self._token(1), tp, heads, bits, 1).values())
        each = self._seconds(self._token(max(1, n)), tp, heads, bits, max(1, n))
        touched = [self._touched(moe, max(1, n)) for moe in self.mixtures]
        sent = sum(2 * moe.router.n_used * (1 - 1 / tp) * self.spec.stack.d_model * HALF for moe in self.mixtures)
        return Deployment(
            weight_bits, cache_bits, tp, replicas, weights, cache, buffers, n,
            first, alone, sum(each.values()), max(each, key=lambda name: each[name]),
            sum(touched) / len(touched) if touched else None, sent if touched else None,
        )  # fmt: skip

    def _token(self, n: int) -> Iterator[Operator]:
        """The operators of a token of each of n sequences."""
        alone, two, three = self.tokens
        touched = sum(self._touched(moe, n) for moe in self.mixtures) / max(1, len(self.mixtures))
        for o, more in zip(alone, alone, strict=True) if n == 1 else zip(two, three, strict=True):
            grown = {
                name: getattr(o, name) + (n - 2) * (getattr(more, name) - getattr(o, name))
                for name in ("flops", "weights", "nbytes")
            }
            if o.name == "grouped_products" and self.mixtures:
                grown["weights"] = math.ceil(o.weights / o.copies * touched)
            yield o._replace(**grown)

    def _seconds(
        self, found: Iterable[Operator], tp: int, heads: int, bits: tuple[float, float], tokens: int
    ) -> dict[str, float]:
        """The seconds of a pass by what takes them: of each operator its longest part, and the sums over devices."""
        names = "weights", "cache", "states", "results", "arithmetic", "launches", "links"
        spent: dict[str, float] = dict.fromkeys(names, 0.0)
        reading = self.where.nbytes_per_second * self.shares.memory
        for o in found:
            share = self.shares.attention if o.kind == "attention" else self.shares.products
            cached = o.kind == "attention" and reads_a_cache(o)
            other = "cache" if cached else "states" if o.part == "recurrence" else "results"
            moved = o.nbytes * (bits[1] if cached else 1.0) / (heads if cached else tp)
            memory = {"weights": o.weights * bits[0] / tp / reading, other: moved / reading}
            arithmetic = o.flops / tp / (self.where.peak(self.where.half) * share)
            taken = max(
                memory, {"arithmetic": arithmetic}, {"launches": self.where.overhead_seconds},
                key=lambda each: sum(each.values()),
            )  # fmt: skip
            for name, seconds in taken.items():
                spent[name] += o.times * seconds
        if tp > 1:
            volume = 2 * (tp - 1) / tp * tokens * self.spec.stack.d_model * HALF
            rate = self.where.nbytes_per_second_among(tp) * self.shares.links
            spent["links"] = self.sublayers * max(volume / rate, LATENCY_SECONDS)
        return spent

    @staticmethod
    def _touched(moe: MoESpec, tokens: int) -> float:
        """Experts of a layer that so many tokens choose, each any of them: E (1 - (1 - k / E)^tokens)."""
        n, k = moe.router.n_experts, moe.router.n_used
        return n * (1 - (1 - k / n) ** tokens)
