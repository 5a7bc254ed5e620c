"""Law 9: one step reaches every parameter with a finite gradient, and a short run lowers the loss."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from torch.nn import functional as F

from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from tests.laws.combinations import decoders
from tests.laws.models import every_preset, ids_for, randomised, runner


def loss_of(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    logits = runner(model)(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def check_reach(spec: ModelSpec) -> None:
    """A key's bias adds the same to all scores of a query where nothing else tells keys apart: softmax hides it."""
    model = randomised(spec)
    loss_of(model, ids_for(spec, 3, 24)).backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # moved by other means: the biases of a router's choice
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not a number"
        assert parameter.grad.abs().max() > 0, f"{name} has no gradient"


@every_preset
def test_presets_are_reached(spec: ModelSpec) -> None:
    check_reach(spec)


@given(spec=decoders())
@settings(max_examples=30, deadline=None)
def test_combinations_are_finite(spec: ModelSpec) -> None:
    model = randomised(spec)
    loss_of(model, ids_for(spec, 2, 24)).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters() if p.requires_grad)


@every_preset
def test_a_short_run_lowers_the_loss(spec: ModelSpec) -> None:
    model, ids = build(spec, seed=0), ids_for(spec, 4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(240 if spec.heads[0].scale else 40):  # logits that are scaled down learn slower
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
