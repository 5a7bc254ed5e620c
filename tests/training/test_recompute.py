"""Recomputation in training: fewer bytes kept, the same weights to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer.model import build
from anyformer.recipe import CausalLM, DropoutSpec
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from tests.training.models import decoder
from tests.training.test_step import LENGTH, batch, recipe

DROPPED = DropoutSpec(embedding=0.1, attention=0.1, residual=0.1, activation=0.1)


def weights_after_steps(
    recompute: Any, precision: Any, micro_tokens: int | None
) -> tuple[list[float], list[torch.Tensor]]:
    model = build(decoder(), seed=1)
    given = recipe(dropout=DROPPED, precision=precision)
    trainer = Trainer(
        model, given, objective_of(CausalLM(), model.spec), micro_tokens=micro_tokens, recompute=recompute
    )
    assert model.recompute == recompute
    losses = [trainer.step(number, batch(number)).loss for number in (1, 2, 3)]
    return losses, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_steps_are_the_same_to_the_bit(recompute: str, precision: str) -> None:
    for micro_tokens in (None, 2 * LENGTH):
        losses, plain = weights_after_steps("none", precision, micro_tokens)
        again_losses, again = weights_after_steps(recompute, precision, micro_tokens)
        assert losses == again_losses
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
