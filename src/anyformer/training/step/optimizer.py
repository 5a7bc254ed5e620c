"""The optimiser of a recipe: what decays follows from the roles of weights, the learning rate from the step alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.model import Transformer
from anyformer.recipe import OptimizerSpec
from anyformer.spec import ModelSpec, Place, tensors
from anyformer.spec.part import Role
from anyformer.training.cluster.parts import together
from anyformer.training.step.rules import TensorRule, torch_optimizer

# Tables don't decay: a token that is rare would be pulled to zero between its appearances, and a tied table would
# lose the scale that the embedding needs.
DECAYING: frozenset[Role] = frozenset({"matrix", "query", "inner", "output"})
OF_ADAPTERS = TensorRule(decays=True, share=1.0, is_map=False)  # whose matrices no specification names


def ways(spec: ModelSpec) -> dict[str, TensorRule]:
    """How each tensor is trained that is, by its name."""

    def width(name: str) -> int:
        return (spec.encoder if spec.encoder and name.startswith("encoder.") else spec.stack).d_model

    return {
        name: TensorRule(weight.role in DECAYING, spec.init.rate(weight, width(name)), weight.quantises_as == "map")
        for name, weight in tensors(spec, Place())
        if weight.trainable
    }


def ways_of(*models: Transformer) -> dict[nn.Parameter, TensorRule]:
    """How each parameter is trained that is, in the order of the models; what they share is the first one's."""
    found: dict[nn.Parameter, TensorRule] = {}
    for model in models:
        named = ways(model.spec)
        for name, p in model.named_parameters():
            if p.requires_grad:
                found.setdefault(p, named.get(name, OF_ADAPTERS))
    return found


def optimizer_of(
    rule: OptimizerSpec, model: Transformer, way: Mapping[nn.Parameter, TensorRule]
) -> torch.optim.Optimizer:
    """The optimiser over weights, of a model and of any beside it: those that decay, then the others, each in their order.

    Those that learn at another share of the rate (μP) are groups of their own, which decay no less. Raises UsageError for a
    rule without an implementation.
    """
    peak = rule.peak(model.spec.stack.d_model)
    # All of the model's, where a process has some of the layers.
    kinds = {how[:2] for how in (ways(model.spec) if model.stack.stage else way).values()}
    groups = [
        {
            "params": [p for p, how in way.items() if how[:2] == (decays, share)],
            "lr": peak * share,
            "weight_decay": rule.decay(share) if decays else 0.0,
        }
        for decays, share in sorted(kinds, reverse=True)
    ]
    return torch_optimizer(rule, groups, way)


def kept_nbytes(spec: ModelSpec, rule: OptimizerSpec) -> int:
    """The bytes that an optimiser keeps of a model's trained weights."""
    shapes = ((weight.shape, weight.quantises_as == "map") for _, weight in tensors(spec, Place()) if weight.trainable)
    return 4 * sum(rule.numbers_kept(*each) for each in shapes)


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
