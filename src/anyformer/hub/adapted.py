"""Weights with a low-rank adapter (LoRA) that PEFT has written: each is read as what both make together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anyformer.disk.foreign import read_json
from anyformer.disk.run_layout import ADAPTER, ADAPTER_CONFIG
from anyformer.errors import CheckpointError, SpecError
from anyformer.families.hf.mapping import TensorRow
from anyformer.hub.weights import Weights, listed
from anyformer.hub.wrapped import prefix_in
from anyformer.layers.held import row_by_row

WRAPPED = "base_model.model."  # what PEFT puts before the names of the class that it wraps
BASE = ".base_layer."  # between the name of a map and that of its weight, where PEFT has wrapped it
A, B = ".lora_A.weight", ".lora_B.weight"


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + B A · scale [out, in], of the type of `weight` [out, in]; a is [r, in], b [out, r]."""
    return (weight.float() + b.float() @ a.float() * scale).to(weight.dtype)


def joined(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """What reads each parameter of a model: of a map that a LoRA stands on, by the map's name, what both make together.

    What else was put on a model keeps its names, which are none of the model's.
    """
    found: dict[str, Callable[[], Tensor]] = {}
    for name, weight in model.named_parameters():
        place, wrapped, end = name.rpartition(BASE)
        before, side, _ = name.rpartition(".lora_")
        layer: Any = model.get_submodule(place if wrapped else before) if wrapped or side else None
        sides: list[Any] = [getattr(layer, each, {}) for each in ("lora_A", "lora_B")]
        has_lora = all(list(each) == ["default"] for each in sides)
        if has_lora and name.endswith((".lora_A.default.weight", ".lora_B.default.weight")):
            continue  # unlike DoRA's magnitudes, say
        ours = f"{place}.{end}" if has_lora and wrapped else name
        if has_lora and wrapped and end == "weight":
            a, b = (each["default"].weight for each in sides)
            found[ours] = partial(_joined, weight, a, b, layer.scaling["default"])
        else:
            found[ours] = partial(numbers, weight)
    return found


def numbers(weight: Tensor) -> Tensor:
    """What a weight holds, row by row."""
    return row_by_row(weight).detach()


def _joined(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return merged(numbers(weight), a.detach(), b.detach(), scale)


class AdaptedWeights(Weights):
    """The weights in the directory `base`, with the adapter in `adapter`. Raises CheckpointError where it is not of them."""

    def __init__(self, base: Path, adapter: Path) -> None:
        super().__init__(base)
        self._adapter = Weights(adapter / ADAPTER)
        self._scale = _scale(adapter / ADAPTER_CONFIG)
        names = self._adapter.listed()
        self._before = prefix_in(names, WRAPPED)
        own = (name.removeprefix(self._before) for name in names if name.endswith(A))
        self._adapted = {name.removesuffix(A) + ".weight" for name in own}
        wanted = {self._named(name, end) for name in self._adapted for end in (A, B)}
        if odd := sorted(set(names) ^ wanted) or sorted(self._adapted - set(self.listed())):
            raise CheckpointError(f"{adapter / ADAPTER} is no adapter of the weights in {base}: {listed(odd)}")
        for name in self._adapted:
            (r, d_in), (d_out, rank) = (self._adapter.shape(self._named(name, end)) for end in (A, B))
            if (d_out, d_in) != self.shape(name) or r != rank:
                raise CheckpointError(f"{adapter / ADAPTER} does not fit {name}, which is {list(self.shape(name))}")

    def read(self, name: str) -> Tensor:
        weight = super().read(name)
        if name not in self._adapted:
            return weight
        a, b = (self._adapter.read(self._named(name, end)) for end in (A, B))
        return merged(weight, a, b, self._scale)

    def _named(self, weight: str, end: str) -> str:
        return f"{self._before}{weight.removesuffix('.weight')}{end}"


def named_by_class(adapter: Path, rows: Iterable[TensorRow]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an adapter in a directory, and PEFT's description, by the names of a class that has these rows.

    Raises SpecError where the class holds a map otherwise: fused with others, or turned.
    """
    held, said = Weights(adapter / ADAPTER), read_json(adapter / ADAPTER_CONFIG, CheckpointError)
    theirs = {row.ours[0]: row.theirs[0] for row in rows if row.renames}
    before, found, targets = prefix_in(held.listed(), WRAPPED), dict[str, Tensor](), dict[str, None]()
    for name in held.listed():
        place, _, side = name.removeprefix(before).partition(".lora_")
        if (weight := f"{place}.weight") not in theirs:
            raise SpecError(f"does not hold {weight} as a matrix of its own")
        target = theirs[weight].removesuffix(".weight")
        targets[target] = None
        found[f"{WRAPPED}{target}.lora_{side}"] = held.read(name)
    return found, {**said, "target_modules": [*targets]}


def _scale(config: Path) -> float:
    said = read_json(config, CheckpointError)
    r, alpha = (said.get(name) if isinstance(said, dict) else None for name in ("r", "lora_alpha"))
    if not isinstance(r, int) or not isinstance(alpha, int | float) or r < 1:
        raise CheckpointError(f"{config} says no rank (r) and alpha (lora_alpha) of an adapter; copy it again")
    return alpha / r
