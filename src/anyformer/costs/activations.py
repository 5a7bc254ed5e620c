"""Bytes of activations that training holds until the backward pass, by part: the tensors that this implementation keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from anyformer.errors import SpecError, did_you_mean
from anyformer.kernels import choose
from anyformer.layers.head import rows_at_once
from anyformer.recipe import DropoutSpec
from anyformer.spec import Architecture, HeadSpec, ModelSpec, Place, Tape, Value, Workload, inside, specification
from anyformer.spec.saved import NBYTES, Recompute

Precision = Literal["float32", "bf16"]
Device = Literal["cpu", "cuda"]
NO_DROPOUT = DropoutSpec()


@dataclass(frozen=True)
class Activations:
    """Bytes by part. `saved` stays from the forward to the backward pass; `passing` is there for a while, at the worst time."""

    saved: Mapping[str, int]
    passing: Mapping[str, int]

    @property
    def saved_nbytes(self) -> int:
        """What the forward pass leaves."""
        return sum(self.saved.values())

    @property
    def nbytes(self) -> int:
        """At the peak: what stays, and the largest of what passes."""
        return self.saved_nbytes + max(self.passing.values(), default=0)


def activations(
    architecture: Architecture,
    *,
    batch: int,
    seq_len: int,
    source_len: int | None = None,
    precision: Precision = "bf16",
    recompute: Recompute = "none",
    device: Device = "cuda",
    dropout: DropoutSpec = NO_DROPOUT,
) -> Activations:
    """What one forward pass over `batch` rows of `seq_len` tokens, each one document, holds of training with `train`.

    bf16 is autocast's: the stream stays float32, products are of copies in bf16, of weights too. `source_len` is the
    encoder's length (None: as the decoder's). `device`: a GPU's fused dropout and attention, or what CPUs keep.
    Raises SpecError for names that are not known.
    """
    spec = specification(architecture)
    for name, value, known in (
        ("precision", precision, get_args(Precision)),
        ("recompute", recompute, get_args(Recompute)),
        ("device", device, get_args(Device)),
    ):
        if value not in known:
            raise SpecError(f"{name} = {value!r} is unknown{did_you_mean(value, known)}; there are {', '.join(known)}")
    memory = (source_len or seq_len) if spec.encoder else 0
    tape = Tape(
        workload=Workload(batch, seq_len, memory=memory),
        half=precision == "bf16",
        kernels=lambda attention: choose(None, attention),
        fused=device != "cpu",
        rates=frozenset(name for name, rate in dropout.values().items() if rate),
        recompute=recompute,
    )
    x = _stacks(spec, tape)
    _loss(spec, x, tape)
    return Activations(dict(tape.saved), dict(tape.passing))


def activation_nbytes(
    architecture: Architecture,
    *,
    batch: int,
    seq_len: int,
    precision: Precision = "bf16",
    recompute: Recompute = "none",
    device: Device = "cuda",
) -> Mapping[str, int]:
    """The bytes of activations at the peak of training, by part; their sum is that peak."""
    found = activations(
        architecture, batch=batch, seq_len=seq_len, precision=precision, recompute=recompute, device=device
    )
    largest = max(found.passing, key=lambda term: found.passing[term], default=None)
    return {**found.saved, **({f"{largest}, for a while": found.passing[largest]} if largest else {})}


def _stacks(spec: ModelSpec, tape: Tape) -> Value:
    """The last hidden state."""
    parts, workload = spec.parts(Place()), tape.workload
    if spec.encoder is not None:
        tape.workload = Workload(workload.batch, workload.memory)
        tape.memory = tape.run("encoder", parts["encoder"], tape.value(tape.workload.tokens, "int64"))
        tape.workload = workload
    return tape.run("stack", parts["stack"], tape.value(workload.tokens, "int64"))


def _loss(spec: ModelSpec, x: Value, tape: Tape) -> None:
    """Write down the gradients that `train.cross_entropy` makes in the forward pass, and its buffers of logits."""
    head = next(iter(spec.heads), None)
    if head is None or head.table is None:
        return
    heads = spec.parts(Place())["heads"]
    assert isinstance(heads, list)
    x = _transformed(head, heads[0][1], _of_layers(spec, head, heads[0][1], x, tape), tape)
    table, rows = head.table, tape.workload.tokens
    numel = table.rows * (x.numel // rows)
    with tape.term("loss"):
        tape.keep(tape.value(x.numel, x))
    with tape.term("gradient of the head's table"):
        tape.keep(tape.value(numel), tape.value(table.rows) if head.bias else None)
    size, half = rows_at_once(rows, table.rows), NBYTES["bfloat16"] if tape.half else NBYTES["float32"]
    buffers = size * table.rows * (half + NBYTES["float32"])
    beside = tape.passing.pop("weights in bf16", 0)  # autocast holds them until the loss is there
    tape.passing["logits, weights in bf16" if beside else "logits"] = (
        buffers + beside + (2 * numel * half if tape.half else 0)
    )


def _of_layers(spec: ModelSpec, head: HeadSpec, place: Place, x: Value, tape: Tape) -> Value:
    """What a head's own layers make of the stack's last state x, or an earlier one; both stay till the loss is there."""
    if head.layers is None:
        return x
    (placed,) = (stack.parts(at)["norm"] for name, stack, at in inside(spec, Place()) if name == "stack")
    if head.layers.before:
        with tape.term("norms"):
            x = tape.run("norm", placed, tape.states[-head.layers.before])
    tape.residual = spec.stack.residual
    return tape.run("layers", head.parts(place)["layers"], x)


def _transformed(head: HeadSpec, place: Place, x: Value, tape: Tape) -> Value:
    with tape.term("head"):
        return tape.run("transform", head.parts(place)["transform"], x)
