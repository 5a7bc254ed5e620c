"""The selective scan equals a plain loop over tokens, forward and backward, at any length and where documents begin."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from anyformer.layers.selective_scan import CHUNK, selective_scan
from tests.laws.models import flop_counter
from tests.oracles.recurrences import selective

CHANNELS, STATE = 3, 4


def drawn(tokens: int, strength: float) -> dict[str, Tensor]:
    """Inputs of two rows in float64, decays down to e^-strength a step."""
    g = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    drawn = {
        "x": normal(2, tokens, CHANNELS),
        "step": normal(2, tokens, CHANNELS).abs(),
        "rate": -strength * normal(STATE, CHANNELS).abs(),
        "b": normal(2, tokens, STATE),
        "c": normal(2, tokens, STATE),
        "state": normal(2, STATE, CHANNELS),
    }
    return {name: value.requires_grad_() for name, value in drawn.items()}


def by_loop(given: dict[str, Tensor], begins: Tensor) -> tuple[Tensor, Tensor]:
    """A document at a time, each from no state but the first."""
    rows, lasts = [], []
    for r in range(2):
        firsts = [0, *(t for t in range(1, begins.shape[1]) if begins[r, t]), begins.shape[1]]
        columns, ends = [], []
        for n in range(CHANNELS):
            state = given["state"][r, :, n] * (not begins[r, 0])
            outs = []
            for first, behind in pairwise(firsts):
                piece = slice(first, behind)
                x, step, b, c = (
                    given["x"][r, piece, n], given["step"][r, piece, n], given["b"][r, piece], given["c"][r, piece]
                )  # fmt: skip
                y, state = selective(x, step, given["rate"][:, n], b, c, state if first == 0 else state * 0)
                outs.append(y)
            columns.append(torch.cat(outs))
            ends.append(state)
        rows.append(torch.stack(columns, -1))
        lasts.append(torch.stack(ends, -1))
    return torch.stack(rows), torch.stack(lasts)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("strength", [0.05, 20.0])
@pytest.mark.parametrize("tokens", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_chunks_are_the_loop(tokens: int, strength: float, documents: bool) -> None:
    given = drawn(tokens, strength)
    begins = torch.zeros(2, tokens, dtype=torch.bool)
    if documents:
        begins[0, tokens // 2], begins[1, 0], begins[1, -1] = True, True, True
    outs = []
    for way in ("loop", "chunks"):
        if way == "loop":
            y, state = by_loop(given, begins)
        else:
            x, step, rate, b, c, before = given.values()
            y, state = selective_scan(x, step, rate, b, c, begins if documents else None, before)
        weighed = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() + state.square().sum()
        outs.append((y.detach(), state.detach(), *torch.autograd.grad(weighed, list(given.values()))))
    for name, ours, loop in zip(("y", "last", *given), outs[1], outs[0], strict=True):
        torch.testing.assert_close(ours, loop, atol=1e-11, rtol=1e-10, msg=name)


def test_the_scan_multiplies_no_matrices() -> None:
    """Its formula of FLOPs counts none, and it is one operator to whoever counts."""
    x, step, rate, b, c, state = (value.detach() for value in drawn(70, 1.0).values())
    with flop_counter() as counter:
        selective_scan(x, step, rate, b, c, None, state)
    assert counter.get_total_flops() == 0


def test_a_state_may_be_absent_which_is_zero() -> None:
    x, step, rate, b, c, state = drawn(40, 1.0).values()
    none, zero = (selective_scan(x, step, rate, b, c, None, given) for given in (None, state * 0))
    assert all(torch.equal(a, b) for a, b in zip(none, zero, strict=True))
