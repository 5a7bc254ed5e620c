"""Layers whose gates read the input and the state before, one on another: what an LSTM and a GRU share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.context import NO_DROPOUT
from anyformer.layers.execution import exact_dtype
from anyformer.layers.linear import product
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.spec import Cost, Count, Place, Weight, Width, Workload


class GatedRecurrenceSpec(RecurrentSpec, abstract=True):
    """Layers one on another; of each, gates of W x + b and of U h + b, where h is its own last output."""

    n_layers: Count = Count(1)
    d_inner: Width | None = None  # of the layers before the last; None: d_model
    bias: bool = True  # of both maps, as torch.nn has it
    gates: ClassVar[int]
    held: ClassVar[tuple[str, ...]] = ("hidden",)  # what a layer keeps of a row, each as wide as its output

    def widths(self, place: Place) -> tuple[tuple[int, int], ...]:
        """(d_in, d_out) of each layer."""
        out = [*[self.d_inner or place.d_model] * (self.n_layers - 1), place.d_model]
        return tuple(zip([place.d_model, *out[:-1]], out, strict=True))

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        found: dict[str, Weight | None] = {}
        for i, (d_in, d_out) in enumerate(self.widths(place)):
            rows, std = self.gates * d_out, (3 * d_out) ** -0.5  # of torch.nn's uniform distribution to ±1/√d_out
            found[f"input_{i}"] = Weight((rows, d_in), ("gates", "d_in"), std=std)
            found[f"state_{i}"] = Weight((rows, d_out), ("gates", "hidden"), std=std)
            for name in (f"bias_input_{i}", f"bias_state_{i}"):
                found[name] = Weight((rows,), ("gates",), "bias", fill=0.0) if self.bias else None
        return found

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        widths = enumerate(self.widths(place))
        return {f"{name}_{i}": (width,) for i, (_, width) in widths for name in self.held}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The maps of input and state; what gates multiply is not counted."""
        maps = sum(d_out * (d_in + d_out) for d_in, d_out in self.widths(place))
        return Cost({"recurrence": 2 * self.gates * maps * workload.tokens})


R = TypeVar("R", bound=GatedRecurrenceSpec)


class GatedRecurrence(Recurrent[R]):
    """The module of both; a subclass writes `layer`."""

    def layer(
        self, i: int, x: Tensor, weight: Tensor, before: Sequence[Tensor], keep: Tensor | None
    ) -> Sequence[Tensor]:
        """What layer i holds at each step, each [batch, step, d_out], its output first, of x [batch, step, d_in].

        `weight` [gates · d_out, d_out]; `before` [batch, d_out] each; `keep` [batch or 1, step]: 0 where a document begins.
        """
        raise TypeError(f"{self.spec.kind} does not run")

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], what each layer holds behind the last step) of x of that shape."""
        spec, dtype = self.spec, exact_dtype(x)
        keep = None if steps.begins is None else (~steps.begins).to(dtype)
        rates, after = NO_DROPOUT if steps.dropout is None else steps.dropout, {}
        for i, (_, width) in enumerate(spec.widths(self.place)):
            names = [f"{name}_{i}" for name in spec.held]
            nothing = x.new_zeros(x.shape[0], width, dtype=dtype)
            before = [(state or {}).get(name, nothing).to(dtype) for name in names]
            weight = getattr(self, f"state_{i}")
            if rates.recurrent:
                weight = F.dropout(weight, rates.recurrent)
            ways = self.layer(i, x, weight.to(dtype), before, keep)
            for name, old, new in zip(names, before, ways, strict=True):
                after[name] = steps.last(torch.cat((old[:, None], new), 1), 1)[:, 0]
            x = ways[0].to(x.dtype)
            if rates.activation and i < spec.n_layers - 1:
                x = x * F.dropout(torch.ones_like(x[:, :1]), rates.activation)  # one mask for all steps of a row
        return x, after

    def mapped(self, i: int, x: Tensor, bias: Tensor | None) -> Tensor:
        """What gates read of the input [batch, step, gates · d_out], in float32 at least, since a state adds up its rounding."""
        y = product(x, getattr(self, f"input_{i}"), bias)
        return y.to(exact_dtype(x))

    def bias(self, name: str, i: int) -> Tensor | None:
        return getattr(self, f"bias_{name}_{i}")


def stepped(
    x: Tensor, keep: Tensor | None, before: Sequence[Tensor], step: Callable[..., Sequence[Tensor]]
) -> list[Tensor]:
    """step(x at t, *what was held before) for each step of x [batch, step, …] in turn, stacked: each [batch, step, …].

    As many of a step's results as there are in `before` are held for the next one, times `keep`.
    """
    found = []
    held = list(before)
    for t in range(x.shape[1]):
        if keep is not None:
            held = [each * keep[:, t, None] for each in held]
        found.append(step(x[:, t], *held))
        held = list(found[-1][: len(held)])
    return [torch.stack(each, 1) for each in zip(*found, strict=True)]


def shifted(before: Tensor, at: Tensor, keep: Tensor | None) -> Tensor:
    """What each step was given [batch, step, width], of what was held before and at each step."""
    given = torch.cat((before[:, None], at[:, :-1]), 1)
    return given if keep is None else given * keep[..., None]


def outer(left: Tensor, right: Tensor) -> Tensor:
    """Σ over rows and steps of left [batch, step, m] ⊗ right [batch, step, n]: [m, n]."""
    return left.flatten(0, 1).t() @ right.flatten(0, 1)
