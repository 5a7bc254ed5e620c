"""Parameters, FLOPs, cache and training state of an architecture, each with its convention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from anyformer.errors import SpecError, did_you_mean
from anyformer.spec import Architecture, Load, ModelSpec, Parameters, Site, cached_calls, parameters, specification

CONVENTIONS: Mapping[str, str] = {
    "exact-causal": "attention counts the pairs of query and key that the masks show",
    "full-attention": "attention counts every pair, as PaLM's and Megatron's formulas do",
}
BACKWARD = 2  # a backward pass costs twice the forward's products: one for the input's gradient, one for the weight's
NBYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAMW_NBYTES = 16  # a parameter in float32: weight, gradient and two moments


@dataclass(frozen=True)
class CacheKind:
    """The cached calls of one reach."""

    kind: str  # "full", "window of 512", "memory"
    calls: int
    nbytes_per_token: int
    tokens: int  # that it holds of the context
    nbytes: int  # for the batch


@dataclass(frozen=True)
class CostReport:
    """What `cost` found. FLOPs are of matrix products, 2 a multiply-add; bytes are of tensors alone."""

    seq_len: int
    batch: int
    convention: str
    dtype: str
    parameters: Parameters
    forward_flops: Mapping[str, int]  # of the whole batch, by term
    decode_flops: Mapping[str, int]  # of the last token of each row after all others are cached, by term
    cache: tuple[CacheKind, ...]

    @property
    def tokens(self) -> int:
        """In the batch; of an encoder–decoder, target tokens."""
        return self.seq_len * self.batch

    @property
    def forward_flops_total(self) -> int:
        """Of the whole batch."""
        return sum(self.forward_flops.values())

    @property
    def forward_flops_per_token(self) -> float:
        """The average over the sequence."""
        return self.forward_flops_total / self.tokens

    @property
    def decode_flops_per_token(self) -> float:
        """Of one new token at the end of this context, the others cached."""
        return sum(self.decode_flops.values()) / self.batch

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, without recomputation: three times the forward's."""
        return (1 + BACKWARD) * self.forward_flops_per_token

    @property
    def cache_nbytes(self) -> int:
        """For the batch at this context."""
        return sum(kind.nbytes for kind in self.cache)

    @property
    def weights_nbytes(self) -> int:
        """In the dtype."""
        return (self.parameters.total + self.parameters.frozen) * NBYTES[self.dtype]

    @property
    def training_nbytes(self) -> int:
        """Weights, gradients and AdamW's two moments in float32; activations are not counted."""
        return self.parameters.total * ADAMW_NBYTES

    def as_json(self) -> dict[str, Any]:
        """Return plain data; keys are stable within a `version`."""
        totals = (
            "forward_flops_total",
            "forward_flops_per_token",
            "decode_flops_per_token",
            "training_flops_per_token",
        )
        nbytes = ("cache_nbytes", "weights_nbytes", "training_nbytes")
        own = {"non_embedding": self.parameters.non_embedding, "active": self.parameters.active}
        return {
            "version": 1,
            **asdict(self),
            "parameters": {**asdict(self.parameters), **own},
            "forward_flops": dict(self.forward_flops),
            "decode_flops": dict(self.decode_flops),
            **{name: getattr(self, name) for name in (*totals, *nbytes)},
        }


def cost(
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    batch: int = 1,
    convention: str = "exact-causal",
    dtype: str = "bfloat16",
) -> CostReport:
    """Return what one forward pass over `batch` sequences of `seq_len` tokens costs; an encoder reads as many.

    `seq_len` defaults to the published context. Raises SpecError for sizes or a convention that make no sense.
    """
    spec = specification(architecture)
    for name, known in (("convention", CONVENTIONS), ("dtype", NBYTES)):
        value = {"convention": convention, "dtype": dtype}[name]
        if value not in known:
            raise SpecError(f"{name} = {value!r} is unknown{did_you_mean(value, known)}; there are {', '.join(known)}")
    seq_len = seq_len if seq_len is not None else (spec.context or 2048)
    if seq_len < 1 or batch < 1:
        raise SpecError(f"seq_len = {seq_len} and batch = {batch} must be at least 1")
    memory = seq_len if spec.encoder else 0
    load = Load(batch=batch, query=seq_len, memory=memory, causal_exact=convention == "exact-causal")
    return CostReport(
        seq_len=seq_len,
        batch=batch,
        convention=convention,
        dtype=dtype,
        parameters=parameters(spec),
        forward_flops=spec.cost(Site(), load).terms,
        decode_flops=_decode(spec, replace(load, query=1, past=seq_len - 1)),
        cache=tuple(_cache(spec, seq_len, memory, batch, NBYTES[dtype])),
    )


def _decode(spec: ModelSpec, load: Load) -> dict[str, int]:
    """Return the FLOPs of a pass without the encoder, which runs once before the first token."""
    total, placed = spec.cost(Site(), load), spec.parts(Site())["encoder"]
    if not isinstance(placed, tuple):
        return dict(total)
    encoder, place = placed
    once = encoder.cost(place, Load(load.batch, load.memory, causal_exact=load.causal_exact))
    return {term: flops - once.get(term, 0) for term, flops in total.items() if flops > once.get(term, 0)}


def _cache(spec: ModelSpec, context: int, memory: int, batch: int, element_nbytes: int) -> list[CacheKind]:
    kinds: dict[str, CacheKind] = {}
    for mixer, shapes in cached_calls(spec):
        reach = mixer.reach()
        name = "memory" if mixer.keeps_memory() else "full" if reach is None else f"window of {reach}"
        tokens = memory if mixer.keeps_memory() else context if reach is None else min(reach, context)
        per_token = element_nbytes * sum(math.prod(shape) for shape in shapes.values())
        known = kinds.get(name, CacheKind(name, 0, 0, tokens, 0))
        nbytes = known.nbytes + per_token * tokens * batch
        kinds[name] = CacheKind(name, known.calls + 1, known.nbytes_per_token + per_token, tokens, nbytes)
    return list(kinds.values())
