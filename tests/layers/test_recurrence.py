"""A recurrence's chunks equal a plain loop over tokens, forward and backward, at any length, decay and number of heads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.layers.delta_rule import delta_rule
from anyformer.layers.delta_rule_by_feature import BLOCK, delta_rule_by_feature
from anyformer.layers.linear_attention import CHUNK, SEGMENT, linear_attention
from tests.oracles.recurrences import decayed_sum, written_anew

LENGTHS = (1, 2, BLOCK + 3, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 5, SEGMENT + 3)


def drawn(tokens: int, of_keys: int, heads: int, strength: float, which: object, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of two rows; keys of length one, decays down to e^-strength a step."""
    g = torch.Generator().manual_seed(seed)
    unit = torch.nn.functional.normalize
    of_decays = (6,) if which is delta_rule_by_feature else ()
    drawn = {
        "q": torch.randn(2, tokens, of_keys, 6, generator=g),
        "k": unit(torch.randn(2, tokens, of_keys, 6, generator=g), dim=-1),
        "v": torch.randn(2, tokens, heads, 5, generator=g),
        "decay": -strength * torch.rand(2, tokens, heads, *of_decays, generator=g),
        "rate": torch.rand(2, tokens, heads, generator=g),
        "state": torch.randn(2, heads, 6, 5, generator=g),
    }
    return {name: value.requires_grad_() for name, value in drawn.items()}


def by_loop(given: dict[str, Tensor], which: object) -> tuple[Tensor, Tensor]:
    heads, each = given["v"].shape[2], given["v"].shape[2] // given["q"].shape[2]
    rows, states = [], []
    for b in range(2):
        pairs = []
        for h in range(heads):
            own = [given[n][b, :, h // each] for n in ("q", "k")] + [given[n][b, :, h] for n in ("v", "decay")]
            own += [given["rate"][b, :, h]] if which is not linear_attention else []
            loop: Any = decayed_sum if which is linear_attention else written_anew
            pairs.append(loop(*own, given["state"][b, h]))
        rows.append(torch.stack([y for y, _ in pairs], 1))
        states.append(torch.stack([state for _, state in pairs]))
    return torch.stack(rows), torch.stack(states)


def in_chunks(given: dict[str, Tensor], which: object) -> tuple[Tensor, Tensor | None]:
    q, k, v, decay, rate, state = given.values()
    if which is delta_rule_by_feature:
        return delta_rule_by_feature(q, k, v, decay, rate, None, state, True)
    if which is delta_rule:
        return delta_rule(q, k, v, decay, rate, None, state, True)
    return linear_attention(q, k, v, decay, None, state, True)


@pytest.mark.in_turn
@pytest.mark.parametrize("strength", [0.05, 20.0])
@pytest.mark.parametrize(
    ("which", "of_keys"), [*product((linear_attention, delta_rule), (1, 2, 4)), (delta_rule_by_feature, 4)]
)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_chunks_are_the_loop(which: object, strength: float, of_keys: int, tokens: int) -> None:
    given = drawn(tokens, of_keys, 4, strength, which)
    outs = []
    for run in (by_loop, in_chunks):
        for value in given.values():
            value.grad = None
        y, state = run(given, which)
        assert state is not None
        (y.square().sum() + state.square().sum()).backward()
        grads = {n: v.grad.clone() for n, v in given.items() if v.grad is not None}
        outs.append((y.detach(), state.detach(), grads))
    (y, state, grads), (y2, state2, grads2) = outs
    torch.testing.assert_close(y2, y, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state2, state, atol=2e-5, rtol=1e-4)
    assert set(grads) == set(grads2)
    for name, grad in grads.items():
        torch.testing.assert_close(grads2[name], grad, atol=1e-4 * grad.abs().max().item(), rtol=1e-3, msg=name)
