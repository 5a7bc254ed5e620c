"""The optimiser of a recipe: what decays follows from the roles of weights, the learning rate from the step alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import UsageError
from anyformer.model import Transformer
from anyformer.recipe import OPTIMIZERS, Adam, AdamW, Muon, OptimizerSpec
from anyformer.spec import ModelSpec, Place, Weight, tensors
from anyformer.spec.part import Role
from anyformer.training.cluster.parts import together
from anyformer.training.step.muon import MuonAdam

# Tables don't decay: a token that is rare would be pulled to zero between its appearances, and a tied table would
# lose the scale that the embedding needs.
DECAYING: frozenset[Role] = frozenset({"matrix", "query", "inner", "output"})

MOMENTS_NBYTES, MOMENTUM_NBYTES = 8, 4  # of a number: Adam's two averages, the momentum of Muon's matrices, in float32


def ways(spec: ModelSpec, muon: bool = False) -> dict[str, tuple[bool, float]]:
    """(whether weight decay acts on it, its share of the learning rate) of each tensor that is trained, by its name.

    The largest singular value of a step grows with the width of a map by Adam's rule, and with the root of it by Muon's: so does
    what μP takes off.
    """

    def width(name: str) -> int:
        return (spec.encoder if spec.encoder and name.startswith("encoder.") else spec.stack).d_model

    def power(weight: Weight) -> float:
        return 0.5 if muon and _is_map(weight) else 1.0

    return {
        name: (weight.role in DECAYING, spec.init.rate(weight, width(name)) ** power(weight))
        for name, weight in tensors(spec, Place())
        if weight.trainable
    }


def trained(models: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The trained parameters of models, each once."""
    return [p for p in nn.ModuleList(models).parameters() if p.requires_grad]


def optimizer_of(optimizer: OptimizerSpec, model: Transformer, *beside: Transformer) -> torch.optim.Optimizer:
    """The optimiser over a model's weights: those that decay, then the others, each in the model's order.

    Those that learn at another share of the rate (μP) are groups of their own, which decay no less. Those of models `beside` it
    come after them in each group. Raises UsageError for an optimiser without an implementation.
    """
    if not isinstance(optimizer, Adam | AdamW | Muon):
        raise UsageError(f"optimizer {optimizer.kind} has no implementation; there are {', '.join(OPTIMIZERS)}")
    models = (model, *beside)
    decoupled = not isinstance(optimizer, Adam)
    decay = optimizer.weight_decay if decoupled else optimizer.l2
    muon = isinstance(optimizer, Muon)
    # What models share is the first one's.
    every, way = trained(models), {p: how for each in models[::-1] for p, how in _by_parameter(each, muon).items()}
    lr = optimizer.peak(model.spec.stack.d_model)
    # All of the model's, where a process has some of the layers.
    kinds = set((ways(model.spec, muon) if model.stack.stage else way).values())
    groups = [
        {
            "params": [p for p in every if way[p] == (decays, rate)],
            "lr": lr * rate,
            "weight_decay": (decay / rate if decoupled else decay) if decays else 0.0,
        }
        for decays, rate in sorted(kinds, reverse=True)
    ]
    fused = all(
        p.device.type in ("cpu", "cuda", "mps", "xpu") and p.is_floating_point() and in_one_piece(p) for p in every
    )
    betas, eps = (optimizer.beta1, optimizer.beta2), optimizer.eps
    if isinstance(optimizer, Muon):
        maps = [p for each in models for p in maps_of(each)]
        how = {"momentum": optimizer.momentum, "iterations": optimizer.iterations}
        return MuonAdam(groups, maps, lr=lr, betas=betas, eps=eps, fused=fused, **how)
    return torch.optim.Adam(
        groups, lr, betas, eps, decoupled_weight_decay=decoupled, fused=fused, foreach=None if fused else True
    )


def maps_of(model: Transformer) -> list[nn.Parameter]:
    """The trained matrices of a model that features pass through: neither tables nor routers, taps and recurrences."""
    named = {name for name, weight in tensors(model.spec, Place()) if _is_map(weight)}
    return [p for name, p in model.named_parameters() if name in named and p.requires_grad]


def _is_map(weight: Weight) -> bool:
    return weight.quantises_as == "map"


def kept_nbytes(spec: ModelSpec, optimizer: OptimizerSpec) -> int:
    """The bytes that an optimiser keeps of a model's trained weights."""
    muon = isinstance(optimizer, Muon)
    return sum(
        (MOMENTUM_NBYTES if muon and _is_map(weight) else MOMENTS_NBYTES) * weight.numel
        for _, weight in tensors(spec, Place())
        if weight.trainable
    )


def in_one_piece(x: Tensor) -> bool:
    """Whether nothing lies between the numbers of x, so that its gradient lies as it does: fused optimisers take that for given.

    Maps that `lay_out_for_decoding` has laid together lie between one another.
    """
    return not x.numel() or x.numel() == 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


def _by_parameter(model: Transformer, muon: bool) -> dict[nn.Parameter, tuple[bool, float]]:
    named = ways(model.spec, muon)
    # An adapter's matrices, which the specification does not name, decay as matrices do.
    return {p: named.get(name, (True, 1.0)) for name, p in model.named_parameters() if p.requires_grad}


def clip(
    parameters: Sequence[Tensor],
    norm: float | None,
    counted: Sequence[Tensor] | None = None,
    of_all: Callable[[Tensor], Tensor] = lambda norm: norm,
) -> Tensor:
    """Scale all gradients together down to `norm` at most, and return the norm that they had; None only measures.

    `counted`: those of them that no other process counts; `of_all` makes of their norm that of all processes.
    """
    each = [
        together(nn.utils.get_total_norm([p.grad for p in ps if p.grad is not None]))
        for ps in _by_mesh(parameters if counted is None else counted)
    ]
    total = of_all(each[0] if len(each) == 1 else torch.linalg.vector_norm(torch.stack(each or [torch.zeros(())])))
    # By PyTorch's rule; where nothing is to be scaled, a pass over all gradients is saved.
    if norm is not None and not norm / (float(total) + 1e-6) >= 1:
        for ps in _by_mesh(parameters):
            nn.utils.clip_grads_with_norm_(ps, norm, total)
    return total


def _by_mesh(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those with a gradient, by the mesh that parts are on: those of experts have one of their own."""
    found: dict[Any, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            found.setdefault(getattr(p, "device_mesh", None), []).append(p)
    return list(found.values())
