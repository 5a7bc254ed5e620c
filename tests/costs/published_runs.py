"""Runs that others published, planned here: what devices reach is fitted on some of them and tried on the others.

PYTHONPATH=src python -m tests.costs.published_runs          # the fit, and every run beside its plan
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import exp, log
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

import anyformer as af
from anyformer.costs.conventions import CONVENTIONS
from anyformer.costs.hardware.devices import Efficiency, devices
from anyformer.costs.hardware.mesh import ParallelLayout, facts_of, parse
from anyformer.costs.hardware.placement import Placer
from anyformer.families.gpt2 import gpt2
from anyformer.resizing import resize
from anyformer.spec import ModelSpec, Recompute, Workload

FILE = Path(__file__).parent / "published_runs.csv"
# (layers, width, heads), of GPT-2's shape: https://github.com/mosaicml/llm-foundry and arXiv:2205.05198, table 3.
MOSAIC = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
MEGATRON = {"22b": (48, 6144, 64), "175b": (96, 12288, 96), "530b": (105, 20480, 128), "1t": (128, 25600, 160)}
VOCAB = {"mosaic": 50_368, "korthikanti": 51_200}
# torchtitan says of its H100: 96 GB of HBM2e at 2.4 TB/s and 500 W; what peak that leaves, nobody says.
GRAND_TETON = replace(devices()["H100"], memory_nbytes=96 * 10**9, nbytes_per_second=2.4e12)
# The share that the kernel of attention reached that the runs had on which shares are fitted; fitted with them.
TRITON = {"A100-80GB": 0.28, "A100-40GB": 0.28, "H100": 0.16}
FITTED = ("products", "attention", "memory", "hidden")


@dataclass(frozen=True)
class PublishedRun:
    """One row of the file."""

    number: int  # in the file
    source: str
    model: str
    device: str
    devices: int
    mesh: str
    seq_len: int
    micro_batch: int
    micro_batches: int
    recompute: Recompute
    precision: str
    printed: str  # tokens a second of one device; with "TFLOP/s" the arithmetic of the model, causal pairs counted once

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        sizes = MOSAIC if self.source == "mosaic" else MEGATRON if self.source == "korthikanti" else None
        if sizes is None:
            return af.preset(self.model).spec
        return resize(gpt2(*sizes[self.model], context=self.seq_len), vocab_size=VOCAB[self.source])

    @property
    def parsed(self) -> ParallelLayout:
        """The mesh."""
        return parse(self.mesh, self.devices, facts_of(self.spec))[0]

    @property
    def fitted_on(self) -> bool:
        """Whether what devices reach is fitted on this one: every second of the one source that has many."""
        return self.source == "mosaic" and self.number % 2 == 0

    @cached_property
    def tokens_per_second(self) -> float:
        """Of one device, as printed."""
        if not self.printed.endswith("TFLOP/s"):
            return float(self.printed)
        step = CONVENTIONS["exact-causal"].training(self.spec, Workload(1, self.seq_len))
        return float(self.printed.removesuffix("TFLOP/s")) * 1e12 * self.seq_len / sum(step.values())

    @cached_property
    def _placer(self) -> Placer:
        rows = self.parsed.dp * self.micro_batch * self.micro_batches
        where = GRAND_TETON if (self.source, self.device) == ("titan", "H100") else devices()[self.device]
        return Placer(self.spec, where, self.seq_len, rows, self.precision, where.efficiency)

    def planned(self, shares: Efficiency | None = None) -> float:
        """Tokens a second of one device, as the plan has them; by shares of peaks other than the device's own."""
        own = self._placer.shares
        if self.source == "mosaic":
            own = replace(own, attention=TRITON[self.device])
        placer = self._placer.at(shares or own)
        step = sum(placer.seconds(self.parsed, self.micro_batch, self.recompute).values())
        return placer.rows * self.seq_len / step / self.devices


@lru_cache(maxsize=1)
def published() -> tuple[PublishedRun, ...]:
    """Every row of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    whole = ("devices", "seq_len", "micro_batch", "micro_batches")
    return tuple(
        PublishedRun(**{"number": i, **row, **{key: int(row[key]) for key in whole}})  # type: ignore[arg-type]
        for i, row in enumerate(rows)
    )


def error(run: PublishedRun, shares: Efficiency | None = None) -> float:
    """How much faster the plan is than the run was, as the logarithm of the ratio."""
    return log(run.planned(shares) / run.tokens_per_second)


def fitted(runs: Sequence[PublishedRun]) -> Efficiency:
    """The shares of a device's peaks at which the plans of these runs are nearest to them; few odd ones weigh little."""

    def shares_of(x: np.ndarray) -> Efficiency:
        return replace(Efficiency(), **dict(zip(FITTED, map(float, x), strict=True)))

    def errors(x: np.ndarray) -> list[float]:
        return [error(run, shares_of(x)) for run in runs]

    return shares_of(least_squares(errors, [0.6, 0.3, 0.8, 0.9], bounds=(0.05, 1.0), loss="soft_l1", f_scale=0.05).x)


def tables() -> str:
    """Return in Markdown how far the plans lie from the runs: a summary, then each run; fitted ones are in italics."""
    return "\n".join([*_summary(), "", *_each()])


def _summary() -> Iterator[str]:
    yield "| runs | device | of them | plan against run: median | largest |"
    yield "|---|---|---|---|---|"
    for (fit, source, where), runs in _grouped(lambda run: (not run.fitted_on, run.source, run.device)):
        errors = [exp(error(run)) - 1 for run in runs]
        largest = max(errors, key=abs)
        name = source if fit else f"*{source}, fitted*"
        yield f"| {name} | {where} | {len(errors)} | {median(errors):+.0%} | {largest:+.0%} |"


def _each() -> Iterator[str]:
    yield "| runs | model | device | plan against run, by devices and tokens of a sequence |"
    yield "|---|---|---|---|"
    for (source, model, where), runs in _grouped(lambda run: (run.source, run.model, run.device)):
        said = (_told(run) for run in runs)
        yield f"| {source} | {model} | {where} | {', '.join(said)} |"


def _told(run: PublishedRun) -> str:
    said = f"{run.devices:,} × {run.seq_len:,} {exp(error(run)) - 1:+.0%}"
    return f"*{said}*" if run.fitted_on else said


def _grouped(key: Callable[[PublishedRun], tuple]) -> Iterator[tuple[tuple, list[PublishedRun]]]:
    for found, runs in groupby(sorted(published(), key=key), key):
        yield found, list(runs)
