"""How much single heads, neurons, experts and features of the stream matter for a loss, by its gradient.

The gradient of a gate on each head: Michel et al. 2019, arXiv:1905.10650, equation 2; of neurons Molchanov et al. 2017,
arXiv:1611.06440.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyformer.errors import UsageError
from anyformer.inference.judging import Judging
from anyformer.inspection.effects import passes
from anyformer.layers.held import HeldWeight
from anyformer.model import Transformer
from anyformer.spec import HeadMap, Weight
from anyformer.surgery import Anatomy, Importance
from anyformer.text import NOT_PREDICTED

AXES = ("d_ff", "experts")  # of what writes to the stream, that stand for single parts, beside heads and features


class Writing(NamedTuple):
    """A tensor that writes to a stream: an output map, or a table of the embedding."""

    weight: Weight
    stream: str | None  # "stack" or "encoder", where it writes to all its features
    heads: HeadMap | None  # whose columns it has


def importance(model: Transformer, judging: Judging, tokens: int) -> Importance:
    """How much a head, a neuron or an expert matters: what a row's loss would change by, to first order, if it wrote nothing.

    That is |Σ w · ∂L/∂w| over the weights w that it writes with, L the loss of one row, the sum over rows by their labels; of a
    feature of the stream, over all that writes it. Raises UsageError for weights without a gradient.
    """
    writing, named = _writing(model), dict(model.named_parameters())
    if not writing.keys() <= named.keys() or any(isinstance(named[name], HeldWeight) for name in writing):
        raise UsageError(
            "weights in few bits, or below adapters, have no gradient of their own, by which single heads matter; "
            "load the model in float32, adapters merged"
        )
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    labels = 0
    for by, rows in passes(model, judging, tokens, apart=True):
        with _learning(list(named.values())):
            total = judging.objective(by, rows).total
            grads = torch.autograd.grad(total, [named[name] for name in writing], allow_unused=True)
        labels += int((rows.labels != NOT_PREDICTED).sum())
        effects = {
            name: named[name].detach() * grad for name, grad in zip(writing, grads, strict=True) if grad is not None
        }
        for name, axis, effect in _of_parts(writing, effects):
            found[name][axis] = found[name].get(axis, 0) + effect.abs()
    return {name: {axis: each / labels for axis, each in axes.items()} for name, axes in found.items()}


def _writing(model: Transformer) -> dict[str, Writing]:
    """What writes to the streams, by its name in the state dict; of what is shared the first place."""
    anatomy, spec = Anatomy(model.spec), model.spec
    heads = {anatomy.tensors[f"{path}weight"].name: each for path, each in anatomy.maps if each.makes == "output"}
    widths = {"encoder": spec.encoder and spec.encoder.d_model, "stack": spec.stack.d_model}
    found: dict[str, Writing] = {}
    for path, (name, weight) in anatomy.tensors.items():
        if weight.role == "output" or (weight.role == "table" and ".embedding." in path):
            stream, sizes = path.partition(".")[0], dict(zip(weight.axes, weight.shape, strict=True))
            whole = "d_model" in sizes and sizes["d_model"] == widths.get(stream)
            found.setdefault(name, Writing(weight, stream if whole else None, heads.get(name)))
    return found


def _of_parts(writing: Mapping[str, Writing], effects: Mapping[str, Tensor]) -> Iterator[tuple[str, str, Tensor]]:
    """(name, axis, the sum of the effects of each single part along it) of tensors; of streams, of all that writes to them."""
    streams: dict[str, Tensor] = {}
    for name, effect in effects.items():
        weight, stream, heads = writing[name]
        for dim, axis in enumerate(weight.axes):
            if axis in AXES:
                yield name, axis, _summed(effect, dim)
        if heads is not None:
            columns = _summed(effect, 1).narrow(0, heads.first, heads.n * heads.width)
            yield name, "heads", columns.unflatten(0, (heads.n, -1)).sum(1)
        if stream is not None:
            streams[stream] = streams.get(stream, 0) + _summed(effect, weight.axes.index("d_model"))
    for stream, effect in streams.items():
        yield stream, "d_model", effect


def _summed(effect: Tensor, dim: int) -> Tensor:
    """The sums over all other dimensions."""
    return effect.movedim(dim, 0).reshape(effect.shape[dim], -1).sum(1, dtype=torch.float64).cpu()


@contextmanager
def _learning(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Have all parameters take part in gradients meanwhile, frozen ones too, wherever they are asked for."""
    frozen = [each for each in parameters if not each.requires_grad and each.is_floating_point()]
    try:
        with torch.enable_grad():
            for each in frozen:
                each.requires_grad_(True)
            yield
    finally:
        for each in frozen:
            each.requires_grad_(False)
