"""PyTorch's optimiser of each rule. One of your own is registered beside these (CONTRIBUTING.md, "An optimiser")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.recipe import OPTIMIZERS, Adafactor, Adam, AdamW, Lion, Muon, OptimizerSpec
from anyformer.training.step.adafactor import FactoredAdam
from anyformer.training.step.lion import SignedMomentum
from anyformer.training.step.muon import MuonAdam

Groups = Sequence[dict[str, Any]]  # PyTorch's: "params", "lr", "weight_decay"


class TensorRule(NamedTuple):
    """How a tensor is trained."""

    decays: bool
    # of the learning rate, by Adam's rule, whose steps move what a matrix writes by as much as it is wide (μP)
    share: float
    is_map: bool  # a matrix that features pass through: no table, router, taps, or matrix of a recurrence


Ways = Mapping[Tensor, TensorRule]  # of all parameters


@singledispatch
def torch_optimizer(rule: OptimizerSpec, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
    """PyTorch's optimiser of a rule, over groups of parameters. Raises UsageError for a rule without one."""
    said = f"optimizer {rule.kind} has no implementation; there are {', '.join(OPTIMIZERS)}"
    raise UsageError(f"{said}, and what training.step.rules.torch_optimizer.register is told")


@torch_optimizer.register
def _(rule: Adam | AdamW, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
    how: Any = {"decoupled_weight_decay": isinstance(rule, AdamW), **fastest(groups)}
    return torch.optim.Adam(groups, betas=(rule.beta1, rule.beta2), eps=rule.eps, **how)


@torch_optimizer.register
def _(rule: Muon, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
    # Singular values of its steps grow with the root of the width, not with the width: so does what μP takes off.
    maps = {p: way.share**-0.5 for p, way in ways.items() if way.is_map}
    how = {"momentum": rule.momentum, "iterations": rule.iterations, **fastest(groups)}
    return MuonAdam(groups, maps, betas=(rule.beta1, rule.beta2), eps=rule.eps, **how)


@torch_optimizer.register
def _(rule: Lion, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
    return SignedMomentum(groups, betas=(rule.beta1, rule.beta2))


@torch_optimizer.register
def _(rule: Adafactor, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
    # A matrix starts smaller the wider it is, and so do steps that are shares of it: by the root of what μP takes off.
    scales = {p: way.share**-0.5 for p, way in ways.items()}
    eps = (rule.eps1, rule.eps2)
    return FactoredAdam(groups, scales, power=rule.power, threshold=rule.threshold, eps=eps)


def fastest(groups: Groups) -> dict[str, bool | None]:
    """The ways of PyTorch's Adam that are for these parameters."""
    every = [p for group in groups for p in group["params"]]
    devices = ("cpu", "cuda", "mps", "xpu")
    fused = all(p.device.type in devices and p.is_floating_point() and in_one_piece(p) for p in every)
    return {"fused": fused, "foreach": None if fused else True}


def in_one_piece(x: Tensor) -> bool:
    """Whether nothing lies between the numbers of x, so that its gradient lies as it does: fused optimisers take that for given.

    Maps that `lay_out_for_decoding` has laid together lie between one another.
    """
    return not x.numel() or x.numel() == 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
