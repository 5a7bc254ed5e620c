"""A small real run that can be killed anywhere: what the kill test starts in a process of its own, again and again."""

import json
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch._dynamo  # the first optimiser step imports it, in every process that was forked without it

import anyformer.layers as L
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    ModelSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Vocab,
    Width,
)
from anyformer.text import EncodedCorpus
from anyformer.training.checkpoint import checkpoints as checkpoint
from anyformer.training.checkpoint.checkpoints import CheckpointContent, Checkpoints
from anyformer.training.checkpoint.metrics import MetricsLog
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, train

STEPS, SAVE_EVERY, VOCABULARY = 20, 4, 61
SAVES = STEPS // SAVE_EVERY
Moment = Literal["before", "middle", "after"]


@dataclass(frozen=True)
class Fault:
    """Where a process kills itself: at call `call` of the part `part` ("begin", or the number of a save)."""

    part: str
    call: int
    moment: Moment


def spec() -> ModelSpec:
    norm, table = L.RMSNormSpec(), TableSpec(rows=Vocab(VOCABULARY), shared="tokens")
    projection = L.GQASpec(n_heads=Count(2), n_kv_heads=Count(1), head_dim=Width(8), rotary=L.RotarySpec())
    attention = L.AttentionSpec(projection=projection, mask=L.Causal())
    mixers = (attention, L.GatedFeedForwardSpec(d_ff=Width(24), activation=L.SiLU()))
    sublayers = tuple(SublayerSpec(norm_in=norm, branches=(BranchSpec(mixer=mixer),)) for mixer in mixers)
    embedding = EmbeddingSpec(terms=(L.TokensSpec(table=table),))
    blocks = (BlockSpec(sublayers=sublayers),) * 2
    stack = StackSpec(d_model=Width(16), embedding=embedding, blocks=blocks, residual=L.AddSpec(), norm=norm)
    return ModelSpec(stack=stack, heads=(HeadSpec(table=table),), init=L.ByRole())


def recipe() -> Recipe:
    # With dropout: what a step draws must not depend on where the run was stopped.
    return Recipe(tokens=STEPS * 64, batch_tokens=64, seq_len=16, dropout=DropoutSpec(residual=0.2, embedding=0.1))


def corpus(n_documents: int, seed: int) -> EncodedCorpus:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(10, 50, n_documents)
    tokens = draw.integers(0, VOCABULARY, lengths.sum()).astype(np.uint16)
    return EncodedCorpus(tokens, np.concatenate([[0], lengths.cumsum()]), lengths - 2, VOCABULARY, f"noise {seed}")


def run(out: Path, save: Literal["now", "async"] = "now") -> None:
    """Start the run in `out`, or go on with it."""
    torch.set_num_threads(1)
    options = RunOptions(device=torch.device("cpu"), save_every=SAVE_EVERY, validations=5, save=save)
    train(spec(), recipe(), TextData(corpus(40, 1), corpus(5, 2), None), out=out, options=options)


class Injection:
    """Counts the calls that change the disk, in the parts of a run, and kills the process at one of them."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault, self.part, self.saves, self.calls = fault, "begin", 0, 0
        self.thread = threading.get_ident()  # that saves; what another does meanwhile is not counted
        self.trace: list[tuple[str, str]] = []  # (part, call)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # of a file that is too long, here: another thread may not say so
        for name in ("mkdir", "fsync", "rename", "unlink", "rmdir"):
            setattr(os, name, self.counted(name, getattr(os, name)))
        os.write = self.counted("write", os.write, middle=self.half_a_write)
        checkpoint.save_file = self.counted("write", checkpoint.save_file, middle=self.half_a_file)
        MetricsLog.add = self.counted("metrics", MetricsLog.add)
        write = Checkpoints.write

        def counted_write(own: Checkpoints, content: CheckpointContent) -> Path:
            self.saves += 1
            before, self.thread = self.thread, threading.get_ident()
            self.enter(f"save {self.saves}")
            try:
                return write(own, content)
            finally:
                self.enter("between")
                self.thread = before

        Checkpoints.write = counted_write  # type: ignore[method-assign]

    def enter(self, part: str) -> None:
        self.part, self.calls = part, 0

    def counted(self, name: str, call: Callable[..., Any], middle: Callable[..., Any] | None = None) -> Any:
        def counting(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self.thread:
                return call(*arguments, **options)
            self.trace.append((self.part, name))
            here, self.calls = (self.part, self.calls), self.calls + 1
            hit = self.fault is not None and (self.fault.part, self.fault.call) == here
            moment = self.fault.moment if hit and self.fault else None
            if moment == "before":
                die()
            if moment == "middle" and middle is not None:
                middle(call, *arguments)
            try:
                return call(*arguments, **options)
            finally:
                if hit:  # also where the call failed: there may have been nothing to unlink
                    die()

        return counting

    def half_a_write(self, call: Callable[..., int], descriptor: int, content: memoryview) -> None:
        call(descriptor, content[: len(content) // 2])
        die()

    def half_a_file(self, call: Callable[..., Any], tensors: dict[str, torch.Tensor], path: Path) -> None:
        """Let the system kill the process at a given byte, inside the library that writes."""
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes // 2, resource.RLIM_INFINITY))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt(out: Path, fault: Fault | None, trace: Path | None, save: Literal["now", "async"]) -> None:
    injection = Injection(fault) if fault or trace else None
    run(out, save)
    if trace is not None and injection is not None:
        calls = injection.trace
        trace.write_text(json.dumps(calls))


def start(
    out: Path, fault: Fault | None = None, trace: Path | None = None, save: Literal["now", "async"] = "now"
) -> BaseProcess:
    """Start `run` in a process of its own, forked from one that has imported everything but has no threads."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=attempt, args=(out, fault, trace, save))
    process.start()
    return process


def losses(out: Path) -> list[tuple[str, ...]]:
    """Every number that must be the same in a run that was killed, floats in hexadecimal; a step twice shows."""
    return [tuple(_words(json.loads(line))) for line in (out / "metrics.jsonl").read_text().splitlines()]


def _words(row: dict[str, Any]) -> Iterator[str]:
    for name in ("step", "tokens", "loss", "grad_norm", "lr", "validation_loss"):
        if name in row:
            yield f"{name}={float(row[name]).hex()}"


def weights(out: Path) -> bytes:
    last = max((out / "checkpoints").glob("step-*"))
    return b"".join((last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors"))


def names(out: Path) -> list[str]:
    """Every file and folder, hidden ones too, leftovers beside the run too."""
    return sorted(path.relative_to(out.parent).as_posix() for path in out.parent.rglob("*"))
