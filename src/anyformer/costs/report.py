"""What an architecture costs: parameters, FLOPs, activations, training state and cache, each with its convention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from anyformer.costs.activations import Activations, Precision, activations
from anyformer.costs.conventions import convention_of
from anyformer.costs.formulas import active_parameters
from anyformer.costs.state import StateBytes, state_nbytes
from anyformer.errors import SpecError, did_you_mean
from anyformer.layers import FactorisedPositionsSpec, LearnedPositionsSpec
from anyformer.notebook import ShowsItself
from anyformer.spec import (
    Architecture,
    ModelSpec,
    Parameters,
    Place,
    Recompute,
    TermSpec,
    Workload,
    cached_calls,
    parameters,
    specification,
)

NBYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class CacheKind:
    """The cached calls of one reach."""

    kind: str  # "full", "window of 512", "memory"
    calls: int
    nbytes_per_token: int
    tokens: int  # that it holds of the context
    nbytes: int  # for the batch


@dataclass(frozen=True)
class CostReport(ShowsItself):
    """What `cost` found. FLOPs are as the convention counts them; bytes are of tensors alone."""

    seq_len: int
    batch: int
    convention: str
    unit: str  # "FLOPs", or "MACs": multiply-adds counted once
    dtype: str  # of weights and cache in inference
    precision: str  # of training
    recompute: str
    parameters: Parameters
    active: Mapping[str, int]  # parameters that one token uses, by convention
    forward_flops: Mapping[str, int]  # of the whole batch, by part
    training_flops: Mapping[str, int]  # of one step over the batch, by part, with what the policy makes again
    decode_flops: Mapping[str, int]  # of the last token of each row after all others are cached, by part
    activations: Activations
    state: StateBytes
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
    def training_flops_total(self) -> int:
        """Of one step over the batch."""
        return sum(self.training_flops.values())

    @property
    def forward_flops_per_token(self) -> float:
        """The average over the sequence."""
        return self.forward_flops_total / self.tokens

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, and what the policy makes again."""
        return self.training_flops_total / self.tokens

    @property
    def decode_flops_per_token(self) -> float:
        """Of one new token at the end of this context, the others cached."""
        return sum(self.decode_flops.values()) / self.batch

    @property
    def cache_nbytes(self) -> int:
        """For the batch at this context."""
        return sum(kind.nbytes for kind in self.cache)

    @property
    def weights_nbytes(self) -> int:
        """In the dtype."""
        return (self.parameters.total + self.parameters.frozen) * NBYTES[self.dtype]

    @property
    def activation_nbytes(self) -> int:
        """At the peak of a training step over the whole batch at once."""
        return self.activations.nbytes

    @property
    def training_nbytes(self) -> int:
        """Weights, gradients and AdamW's moments; activations are counted by themselves."""
        return self.state.total

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        count = self.parameters
        totals = ("forward_flops_total", "forward_flops_per_token", "training_flops_total", "training_flops_per_token")
        nbytes = ("cache_nbytes", "weights_nbytes", "activation_nbytes", "training_nbytes")
        return {
            "version": 2,
            **{name: getattr(self, name) for name in ("seq_len", "batch", "convention", "unit", "dtype", "precision")},
            "recompute": self.recompute,
            "parameters": {**asdict(count), "non_embedding": count.non_embedding, "active": dict(self.active)},
            "forward_flops": dict(self.forward_flops),
            "training_flops": dict(self.training_flops),
            "decode_flops": dict(self.decode_flops),
            "decode_flops_per_token": self.decode_flops_per_token,
            "activations": {"saved": dict(self.activations.saved), "passing": dict(self.activations.passing)},
            "state": asdict(self.state),
            "cache": [asdict(kind) for kind in self.cache],
            **{name: getattr(self, name) for name in (*totals, *nbytes)},
        }


def cost(
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    batch: int = 1,
    convention: str = "exact-causal",
    dtype: str = "bfloat16",
    precision: Precision = "bf16",
    recompute: Recompute = "none",
) -> CostReport:
    """What a pass over `batch` sequences of `seq_len` tokens costs; an encoder reads as many.

    `seq_len` defaults to the published context. `dtype` is of weights and cache in inference; `precision` and `recompute`
    are how a training step runs. Raises SpecError for sizes, names or a convention that make no sense.
    """
    spec, counts = specification(architecture), convention_of(convention)
    if dtype not in NBYTES:
        raise SpecError(f"dtype = {dtype!r} is unknown{did_you_mean(dtype, NBYTES)}; there are {', '.join(NBYTES)}")
    seq_len = seq_len if seq_len is not None else (spec.context or 2048)
    if seq_len < 1 or batch < 1:
        raise SpecError(f"seq_len = {seq_len} and batch = {batch} must be at least 1")
    for terms in _terms(spec):
        _refuse_beyond_positions(terms, seq_len)
    count, memory = parameters(spec), seq_len if spec.encoder else 0
    workload = Workload(batch=batch, query=seq_len, memory=memory, causal_exact=convention != "full-attention")
    return CostReport(
        seq_len=seq_len,
        batch=batch,
        convention=convention,
        unit=counts.unit,
        dtype=dtype,
        precision=precision,
        recompute=recompute,
        parameters=count,
        active=active_parameters(spec),
        forward_flops=counts.forward(spec, workload),
        training_flops=counts.training(spec, workload, recompute),
        decode_flops=_decode(spec, replace(workload, query=1, past=seq_len - 1)),
        activations=activations(spec, batch=batch, seq_len=seq_len, precision=precision, recompute=recompute),
        state=state_nbytes(count.total, precision=precision),
        cache=tuple(_cache(spec, seq_len, memory, batch, NBYTES[dtype])),
    )


def _terms(spec: ModelSpec) -> Iterator[tuple[TermSpec, ...]]:
    yield from (stack.embedding.terms for stack in spec.stacks.values())
    yield from (head.layers.terms for head in spec.heads if head.layers is not None)


def _refuse_beyond_positions(terms: tuple[TermSpec, ...], seq_len: int) -> None:
    for term in terms:
        most = seq_len
        if isinstance(term, LearnedPositionsSpec):
            most = term.n_positions
        elif isinstance(term, FactorisedPositionsSpec):
            most = math.prod(term.shape)
        if seq_len > most:
            raise SpecError(
                f"seq_len = {seq_len:,} goes beyond the {most:,} positions that this model has learned; "
                f"take at most {most:,}, or resize its context"
            )


def _decode(spec: ModelSpec, workload: Workload) -> dict[str, int]:
    """The FLOPs of a pass without the encoder, which runs once before the first token."""
    total, placed = spec.cost(Place(), workload), spec.parts(Place())["encoder"]
    if not isinstance(placed, tuple):
        return dict(total)
    encoder, place = placed
    once = encoder.cost(place, Workload(workload.batch, workload.memory, causal_exact=workload.causal_exact))
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
