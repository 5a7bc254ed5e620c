"""What an architecture costs: parameters, FLOPs, activations, training state and cache, each with its convention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import torch

from anyformer.cache import CacheKind, cache_kinds
from anyformer.costs.activations import Activations, activations
from anyformer.costs.conventions import CONVENTIONS
from anyformer.costs.formulas import active_parameters
from anyformer.costs.state import StateBytes, state_nbytes
from anyformer.errors import NoModuleError, SpecError, unknown
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.embedding import learned_positions
from anyformer.layers.packing import PACKINGS, packed_nbytes
from anyformer.notebook import ShowsItself
from anyformer.recipe import Precision
from anyformer.screen import printed
from anyformer.spec import (
    AheadSpec,
    Architecture,
    Cost,
    ModelSpec,
    Parameters,
    Place,
    Recompute,
    Spec,
    Workload,
    inside,
    parameters,
    parameters_by_part,
    specification,
)

NBYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MOST_TOKENS = 10**9  # of one pass: what is observed of more takes too long
MOST_OBSERVED = 32  # layers that differ, of those a report runs on fake tensors; no preset has more than three


@dataclass(frozen=True)
class CostReport(ShowsItself):
    """What `cost` found. FLOPs are as the convention counts them; bytes are of tensors alone.

    All but `activations` follow from formulas; those are worked out when they are first asked for.
    """

    spec: ModelSpec = field(repr=False)
    seq_len: int
    source_len: int | None  # the encoder's; None: there is none
    batch: int
    convention: str
    unit: str  # "FLOPs", or "MACs": multiply-adds counted once
    dtype: str  # of weights in inference
    cache_dtype: str  # in inference
    precision: Precision  # of training
    recompute: Recompute
    parameters: Parameters
    by_part: Mapping[str, int]  # parameters, by what they are of
    active: Mapping[str, int]  # parameters that one token uses, by convention
    forward_flops: Mapping[str, int]  # of the whole batch, by part
    training_flops: Mapping[str, int]  # of one step over the batch, by part, with what the policy makes again
    # of the last token of each row after all others are cached, by part; none where tokens see later ones
    decode_flops: Mapping[str, int]
    state: StateBytes
    cache: tuple[CacheKind, ...]  # none where tokens see later ones

    @property
    def unobserved(self) -> str:
        """Why a report leaves activations out; "" where it does not."""
        n_kinds = sum(len(set(stack.blocks)) for stack in self.spec.stacks.values())
        said = f"not observed: {n_kinds:,} layers differ, each takes some 0.1 s; af.activations(spec, …) observes them"
        return said if n_kinds > MOST_OBSERVED else ""

    @cached_property
    def activations(self) -> Activations | None:
        """What one step over the batch holds until its backward pass; None where a part has no module that could run.

        None also where more than `MOST_OBSERVED` layers differ.
        """
        if self.unobserved:
            return None
        try:
            return activations(
                self.spec,
                batch=self.batch,
                seq_len=self.seq_len,
                source_len=self.source_len,
                precision=self.precision,
                recompute=self.recompute,
            )
        except NoModuleError:
            return None

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
        """In the dtype; of weights in few bits, what is held of them and of all else in float32."""
        if self.dtype in PACKINGS:
            return packed_nbytes(self.spec, self.dtype)
        return int(self.parameters.nbytes(NBYTES[self.dtype]))

    @property
    def activation_nbytes(self) -> int | None:
        """At the peak of a training step over the whole batch at once."""
        return self.activations and self.activations.nbytes

    @property
    def training_nbytes(self) -> int:
        """Weights, gradients and AdamW's moments; activations are counted by themselves."""
        return self.state.total

    def __str__(self) -> str:
        from anyformer.costs.sections import sections

        return printed(f"{self.batch} × {self.seq_len:,} tokens", *(section.table() for section in sections(self)))

    def as_json(self) -> dict[str, Any]:
        given = ("seq_len", "source_len", "batch", "convention", "unit")
        how = ("dtype", "cache_dtype", "precision", "recompute")
        totals = ("forward_flops_total", "forward_flops_per_token", "training_flops_total", "training_flops_per_token")
        nbytes = ("cache_nbytes", "weights_nbytes", "activation_nbytes", "training_nbytes")
        return {
            "version": 2,
            **{name: getattr(self, name) for name in (*given, *how)},
            "parameters": {
                **asdict(self.parameters),
                "non_embedding": self.parameters.non_embedding,
                "active": dict(self.active),
                "by_part": dict(self.by_part),
            },
            **{name: dict(getattr(self, name)) for name in ("forward_flops", "training_flops", "decode_flops")},
            "decode_flops_per_token": self.decode_flops_per_token,
            "activations": self.activations and asdict(self.activations),
            "state": asdict(self.state),
            "cache": [asdict(kind) for kind in self.cache],
            **{name: getattr(self, name) for name in (*totals, *nbytes)},
        }


def cost(
    architecture: Architecture,
    *,
    seq_len: int | None = None,
    source_len: int | None = None,
    batch: int = 1,
    convention: str = "exact-causal",
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
    precision: Precision = "bf16",
    recompute: Recompute = "none",
) -> CostReport:
    """What a pass over `batch` sequences of `seq_len` tokens costs; an encoder reads `source_len`, by default as many.

    `seq_len` defaults to the published context. `dtype` is of weights in inference, and of the cache, which is float32 beside
    int8 and int4; `cache_dtype` is of the cache alone, int8 too. `precision` and `recompute` are how a training step runs.
    Raises SpecError for sizes, names or a convention that make no sense.
    """
    spec = specification(architecture)
    names = {"convention": (convention, CONVENTIONS), "dtype": (dtype, (*NBYTES, *PACKINGS))}
    names |= {"precision": (precision, get_args(Precision)), "recompute": (recompute, get_args(Recompute))}
    cached = cache_dtype if cache_dtype is not None else dtype if dtype in NBYTES else "float32"
    names["cache_dtype"] = cached, (*NBYTES, "int8")
    for name, (value, known) in names.items():
        if value not in known:
            raise SpecError(unknown(name, value, known))
    counts = CONVENTIONS[convention]
    seq_len, read = lengths_of(spec, seq_len, source_len, batch)
    count, workload = parameters(spec), Workload(batch=batch, query=seq_len, memory=read)
    return CostReport(
        spec=spec,
        seq_len=seq_len,
        source_len=read if spec.encoder else None,
        batch=batch,
        convention=convention,
        unit=counts.unit,
        dtype=dtype,
        cache_dtype=cached,
        precision=precision,
        recompute=recompute,
        parameters=count,
        by_part=parameters_by_part(spec),
        active=active_parameters(spec),
        forward_flops=counts.forward(spec, workload),
        training_flops=counts.training(spec, workload, recompute),
        decode_flops=_decode(spec, replace(workload, causal_exact=convention != "full-attention")),
        state=state_nbytes(count.total, precision=precision),
        cache=cache_kinds(spec, batch=batch, seq_len=seq_len, source_len=read, dtype=getattr(torch, cached)),
    )


def lengths_of(spec: ModelSpec, seq_len: int | None, source_len: int | None, batch: int = 1) -> tuple[int, int]:
    """(tokens of a sequence, tokens that the encoder reads), the context's where nothing is said.

    Raises SpecError for more tokens than are counted, and where learned positions end before a sequence does.
    """
    seq_len = seq_len if seq_len is not None else (spec.context or 2048)
    if seq_len < 1 or batch < 1:
        raise SpecError(f"seq_len = {seq_len} and batch = {batch} must be at least 1")
    read = source_tokens(spec, seq_len, source_len)
    if max(seq_len, read) * batch > MOST_TOKENS:
        said = f"batch = {batch:,} sequences of {max(seq_len, read):,} tokens"
        raise SpecError(f"{said} are more than {MOST_TOKENS:,} tokens, the most that are counted at once; take fewer")
    each: list[tuple[str, int, Spec]] = [("source_len", read, spec.encoder.embedding)] if spec.encoder else []
    each += [("seq_len", seq_len, spec.stack.embedding)]
    each += [("seq_len", seq_len, head.layers) for head in spec.heads if head.layers]
    for name, tokens, part in each:
        most = learned_positions(part)
        if most is not None and tokens > most:
            beyond = f"{name} = {tokens:,} goes beyond the {most:,} learned positions of this model"
            raise SpecError(f"{beyond}; take at most {most:,}, or resize its context")
    return seq_len, read


def source_tokens(spec: ModelSpec, seq_len: int, source_len: int | None) -> int:
    """How many tokens the encoder reads: as many as the decoder where nothing is said, 0 without one. Raises SpecError."""
    if source_len is None:
        return seq_len if spec.encoder else 0
    if spec.encoder is None:
        raise SpecError(f"source_len = {source_len} is an encoder's, and this model has none; leave it out")
    if source_len < 1:
        raise SpecError(f"source_len = {source_len} must be at least 1")
    return source_len


def _decode(spec: ModelSpec, workload: Workload) -> dict[str, int]:
    """The FLOPs of the last token after all others, without the encoder, which runs once before the first."""
    if later_tokens_seen(spec.stack, after_prefix=True):
        return {}
    last = replace(workload, query=1, past=workload.query - 1)
    ran = (each for each in inside(spec, Place()) if each[1] is not spec.encoder and not isinstance(each[1], AheadSpec))
    return dict(sum((part.cost(place, last) for _, part, place in ran), Cost()))
