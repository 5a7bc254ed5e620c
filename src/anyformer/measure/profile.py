"""A model run on this machine: times, memory and cache measured beside those predicted, and time and FLOPs by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.amounts import count, gigabytes, prefixed, seconds
from anyformer.cache import KVCache
from anyformer.capacity import free_nbytes, refuse_beyond_memory
from anyformer.costs import cost
from anyformer.costs.activations import Activations, activations
from anyformer.costs.hardware.roofline import roofline
from anyformer.costs.report import lengths_of
from anyformer.costs.state import state_nbytes
from anyformer.errors import InputError, UsageError
from anyformer.layers.packing import PACKINGS, Packing
from anyformer.measure.calibrate import dtype_name, fastest
from anyformer.measure.classes import flops_by_class, shares_of_time
from anyformer.measure.here import kept
from anyformer.measure.runs import decoding_step, random_rows, trainer_of
from anyformer.model import build
from anyformer.notebook import ShowsItself
from anyformer.observation.operators import Operator
from anyformer.observation.passes import DeviceKind, forward_pass, training_pass
from anyformer.recipe import Precision
from anyformer.screen import columns, printed
from anyformer.spec import Architecture, ModelSpec, parameters, specification
from anyformer.training.prepare import resized
from anyformer.training.step import Trainer
from anyformer.training.step.device import choose_device, compute_dtype, keep_heap

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS = 2.0  # of repeating a step, at least three times
ROOM = 0.8  # of free memory that a run may take
VERSION = 1


@dataclass(frozen=True)
class Beside:
    """A figure measured and the same predicted; no prediction without a calibration."""

    measured: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1 if self.predicted is not None and self.measured else None

    def as_json(self) -> dict[str, float | None]:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True)
class Profile(ShowsItself):
    """What `profile` found; seconds of one step, shares of FLOPs and of time by class."""

    device: str
    precision: Precision
    dtype: str  # of weights and cache in decoding
    n_params: int
    batch: int
    seq_len: int
    seconds: dict[str, Beside]  # training; decoding of one token a row, where there is such a thing
    activation_nbytes: Beside  # that a training pass keeps for its backward pass; on a GPU, the peak beyond the state
    cache_nbytes: Beside | None
    flops: dict[str, dict[str, int]]  # by phase and class
    time: dict[str, dict[str, float]]  # seconds of the step by phase and class, which the profiler tells the shares of

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            **{name: getattr(self, name) for name in ("device", "precision", "dtype", "n_params", "batch", "seq_len")},
            "seconds": {phase: beside.as_json() for phase, beside in self.seconds.items()},
            "activation_nbytes": self.activation_nbytes.as_json(),
            "cache_nbytes": self.cache_nbytes and self.cache_nbytes.as_json(),
            "classes": {
                phase: {
                    name: {
                        "flops": self.flops[phase][name],
                        "share_of_flops": self.flops[phase][name] / max(1, sum(self.flops[phase].values())),
                        "seconds": taken,
                        "share_of_seconds": taken / sum(time.values()),
                    }
                    for name, taken in time.items()
                }
                for phase, time in self.time.items()
            },
        }

    @property
    def calibrated(self) -> bool:
        """Whether all times are predicted that can be."""
        return not self._lacking

    @property
    def _lacking(self) -> list[str]:
        """The dtypes to calibrate, so that no time lacks a prediction; products in few bits have none."""
        of = {"training": dtype_name(compute_dtype(self.precision)), "decoding": self.dtype}
        lacking = dict.fromkeys(of[phase] for phase, beside in self.seconds.items() if beside.predicted is None)
        return [name for name in lacking if name not in PACKINGS]

    def __str__(self) -> str:
        return printed(*self.sections())

    def sections(self, model: str = "a model") -> Iterator[RenderableType]:
        """What `anyformer profile` prints: what was measured beside what was predicted, and time by class of each phase."""
        from rich.text import Text

        size = f"{count(self.n_params)} parameters, {self.batch} × {self.seq_len:,} tokens"
        dtype = f", decoding in {self.dtype}" if "decoding" in self.seconds else ""
        table = columns(f"{model}, {size}, {self.precision}{dtype}", "", "measured", "predicted", "error")
        for phase, beside in self.seconds.items():
            what = "training step" if phase == "training" else "decoding, a token a row"
            table.add_row(what, *_beside(beside, seconds))
        table.add_row("activations kept", *_beside(self.activation_nbytes, gigabytes))
        if self.cache_nbytes is not None:
            table.add_row("cache", *_beside(self.cache_nbytes, gigabytes))
        yield table
        if self._lacking:
            command = " --dtype ".join(["anyformer calibrate", *self._lacking])
            yield Text(f"no predicted times: run `{command}` once, while nothing else runs", style="dim")
        for phase, classes in self.as_json()["classes"].items():
            table = columns(phase, "", "FLOPs", "share of FLOPs", "time", "share of time")
            for name, found in classes.items():
                shares = f"{found['share_of_flops']:.2%}", f"{found['share_of_seconds']:.1%}"
                table.add_row(name, prefixed(found["flops"]), shares[0], seconds(found["seconds"]), shares[1])
            yield table


def _beside(beside: Beside, words: Callable[[float], str]) -> tuple[str, str, str]:
    if beside.predicted is None or beside.error is None:
        return words(beside.measured), "", ""
    return words(beside.measured), words(beside.predicted), f"{beside.error:+.1%}"


def profile(
    architecture: Architecture,
    *,
    n_params: float | None = None,
    vocab_size: int | None = None,
    batch: int = 4,
    seq_len: int = 256,
    precision: Precision = "float32",
    dtype: torch.dtype | Packing = torch.float32,
    device: str | None = None,
    budget_seconds: float = SECONDS,
) -> Profile:
    """What training and decoding take with a new model of an architecture, at another size if asked, seen for some seconds.

    A training step scores every token by the first head, as `cost` counts it, and in two streams the blanks beside them;
    `dtype` is of weights and cache in decoding, or how weights are packed. Times are predicted where this machine is
    calibrated. Raises UsageError for a model that does not fit the memory that is free, or has no head; SpecError for sizes
    that make no sense; KernelError for weights in few bits that the device does not multiply.
    """
    spec, where = resized(specification(architecture), n_params, vocab_size), choose_device(device)
    if batch < 1 or seq_len < 1:
        raise UsageError(f"--batch {batch} and --seq-len {seq_len} must be at least 1")
    lengths_of(spec, seq_len, None, batch)
    kind: DeviceKind = "cuda" if where.type == "cuda" else "cpu"
    rows = random_rows(spec, batch, seq_len)
    lengths = {"training": rows.labels.shape[1], "decoding": seq_len}
    said = activations(spec, batch=batch, seq_len=lengths["training"], precision=precision, device=kind)
    refuse_too_large(spec, said, precision, where)
    keep_heap()
    count, here = parameters(spec).total, kept(where)

    def predicted(phase: str, name: str) -> float | None:
        if here is None or here.rates is None or not here.rates.knows(name):
            return None
        return roofline(spec, device=here, seq_len=lengths[phase], batch=batch, dtype=name).phases[phase].seconds

    trainer = trainer_of(build(spec, device=where), rows, precision)
    activation = _activations(trainer, rows, said)
    source_len = seq_len if spec.encoder else 0
    name, number = (dtype, torch.float32) if isinstance(dtype, str) else (dtype_name(dtype), dtype)
    found = Profile(str(where), precision, name, count, batch, seq_len, {}, activation, None, {}, {})

    def measure(phase: str, step: Callable[[], object], seen: tuple[Operator, ...], of: str) -> None:
        measured = fastest(step, where, budget_seconds)
        found.seconds[phase] = Beside(measured, predicted(phase, of))
        shares = shares_of_time(step, where, times=2 if phase == "training" else 10)
        found.time[phase] = {name: share * measured for name, share in shares.items()}
        found.flops[phase] = flops_by_class(seen, n_updated=count if phase == "training" else 0)

    trained = training_pass(
        spec,
        batch=batch,
        seq_len=lengths["training"],
        source_len=source_len,
        half=precision == "bf16",
        device=kind,
    )
    measure("training", lambda: trainer.step(1, rows), trained.operators, dtype_name(compute_dtype(precision)))
    try:
        step = decoding_step(spec, batch, seq_len, where, dtype)
        step()
    except InputError:  # an encoder, say
        return found
    one = forward_pass(spec, batch=batch, query=1, past=seq_len - 1, source_len=source_len, dtype=number, device=kind)
    measure("decoding", step, one, name)
    held = cost(spec, seq_len=seq_len, batch=batch, dtype=dtype_name(number)).cache
    own = sum(each.nbytes for each in held if each.kind != "memory")  # the encoder makes that, later
    cache = KVCache(spec, batch, seq_len, device=where, dtype=number)
    return replace(found, cache_nbytes=Beside(cache.nbytes, own))


def refuse_too_large(spec: ModelSpec, said: Activations, precision: Precision, device: torch.device) -> None:
    """Raise UsageError where training would take more memory than is free."""
    n_params = parameters(spec).total
    needed = state_nbytes(n_params, precision=precision).total + said.nbytes
    most = max(1_000_000, int(n_params * ROOM * (free_nbytes(device) or needed) / needed / 2))
    rounded = f"{most // 1_000_000}M" if most < 10**9 else f"{most / 1e9:.1f}B"
    remedy = f"resize it (--params {rounded}), or take a smaller --batch or --seq-len"
    refuse_beyond_memory(needed, device, "training this model here", remedy, share=ROOM)


def _activations(trainer: Trainer, rows: Any, said: Activations) -> Beside:
    device = trainer.device
    if device.type == "cuda":
        trainer.step(1, rows)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        trainer.losses(rows)
        peak = torch.cuda.max_memory_allocated(device) - before
        return Beside(peak, said.nbytes)
    own = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}
    storages: dict[int, Any] = {}  # held, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = trainer.losses(rows).total
    return Beside(
        sum(storage.nbytes() for storage in storages.values()) + _made_at_once(total.grad_fn), said.saved_nbytes
    )


def _made_at_once(node: Any) -> int:
    """Bytes of the gradients that a loss, or each of a sum of losses, has made in its forward pass."""
    made = getattr(node, "grads", None)
    if made is None:
        of_sum = type(node).__name__.startswith("AddBackward")
        return sum(_made_at_once(term) for term, _ in node.next_functions) if of_sum else 0
    return sum(grad.nbytes for grad in made if grad is not None)
