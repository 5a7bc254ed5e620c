"""A cost report in words: tables of rows, one an aspect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from anyformer.amounts import gibibytes, prefixed
from anyformer.costs.conventions import CONVENTIONS
from anyformer.costs.state import LAYOUTS
from anyformer.screen import figures

if TYPE_CHECKING:
    from rich.table import Table

    from anyformer.costs.report import CostReport

AGAIN = {
    "none": "nothing is made again",
    "selective": "attention is made again in the backward pass",
    "full": "layers are made again in the backward pass",
}


class FigureLine(NamedTuple):
    """One row of a table."""

    name: str
    value: str
    says: str = ""


class Section(NamedTuple):
    """One table."""

    title: str
    lines: tuple[FigureLine, ...]

    def table(self) -> Table:
        """As it is printed."""
        found = figures(self.title)
        for line in self.lines:
            found.add_row(*line)
        return found


def sections(report: CostReport) -> Iterator[Section]:
    """The tables of a report: what formulas give, then activations, which are worked out when their table is asked for."""
    yield Section("parameters", tuple(_parameters(report)))
    yield Section(f"{report.unit} by part, {report.convention}", tuple(_flops(report)))
    yield Section("inference memory", tuple(_inference(report)))
    yield Section("training memory, activations beside", tuple(_state(report)))
    recompute = "full" if report.spec.stack.residual.undoes else report.recompute
    title = f"activations by part, the whole batch at once, {AGAIN[recompute]}"
    yield Section(title, tuple(_activations(report)))


def _parameters(report: CostReport) -> Iterator[FigureLine]:
    count = report.parameters
    yield FigureLine("total", f"{count.total:,}", f"{count.embedding:,} in tables, {count.non_embedding:,} beside them")
    if count.inactive:
        says = "used by one token: the experts it chooses, and all else"
        yield FigureLine("active", f"{report.active['all']:,}", says)
    for name, number in report.active.items():
        if name != "all" and number != count.total:
            yield FigureLine(f"{'active ' if count.inactive else ''}{name}", f"{number:,}")
    for part, number in report.by_part.items():
        yield FigureLine(f"  {part}", f"{number:,}", f"{number / count.total:6.1%}")
    if count.frozen:
        yield FigureLine("frozen", f"{count.frozen:,}", "held beside them and never trained")


def _flops(report: CostReport) -> Iterator[FigureLine]:
    convention, unit = CONVENTIONS[report.convention], report.unit
    step = report.training_flops_total
    yield FigureLine("forward", f"{prefixed(report.forward_flops_per_token, unit)}/token", convention.says)
    training = f"{prefixed(report.training_flops_per_token, unit)}/token"
    yield FigureLine("training", training, f"{prefixed(step, unit)} a step; {convention.source}")
    if report.decode_flops:
        decoding = f"{prefixed(report.decode_flops_per_token, 'FLOPs')}/token"
        yield FigureLine("decoding", decoding, "the last token, all others cached, visible pairs alone")
    for part, flops in report.training_flops.items():
        forward = report.forward_flops.get(part, 0)
        shares = f"{forward / report.forward_flops_total:6.1%} of forward, {flops / step:6.1%} of training"
        yield FigureLine(f"  {part}", prefixed(forward, unit), shares)


def _state(report: CostReport) -> Iterator[FigureLine]:
    says = f"with AdamW; {LAYOUTS[report.precision].source}"
    yield FigureLine("training state", gibibytes(report.training_nbytes), says)
    for name in ("weights", "gradients", "optimizer"):
        yield FigureLine(f"  {name}", gibibytes(getattr(report.state, name)))


def _activations(report: CostReport) -> Iterator[FigureLine]:
    found = report.activations
    if found is None:
        why = report.unobserved or "a part has no module yet, so there is no pass to observe"
        yield FigureLine("activations", "unknown", why)
        return
    yield FigureLine("activations", gibibytes(found.nbytes), f"at the peak of a step of {report.tokens:,} tokens")
    for part, nbytes in found.saved.items():
        yield FigureLine(f"  {part}", gibibytes(nbytes), f"{nbytes / found.saved_nbytes:6.1%}")
    for part, nbytes in found.passing.items():
        yield FigureLine(f"  {part}", gibibytes(nbytes), "for a while")


def _inference(report: CostReport) -> Iterator[FigureLine]:
    yield FigureLine("weights", gibibytes(report.weights_nbytes), report.dtype)
    if report.cache:
        says = f"{report.cache_dtype}, the whole batch at this context"
        yield FigureLine("cache", gibibytes(report.cache_nbytes), says)
    for kind in report.cache:
        of_tokens = f"{kind.nbytes_per_token:,} bytes/token in {kind.calls} layers, {kind.tokens:,} tokens kept"
        says = f"in {kind.calls} layers, float32, the same for any length" if kind.kind == "state" else of_tokens
        yield FigureLine(f"  {kind.kind}", gibibytes(kind.nbytes), says)
