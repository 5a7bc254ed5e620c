"""An mLSTM in chunks equals the paper's loop over tokens, forward and backward, whatever its gates and documents are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.layers.mlstm import MLSTM, MLSTMSpec
from anyformer.layers.recurrence import Steps
from anyformer.spec import Count, Place, Width
from tests.oracles.recurrences import mlstm
from tests.sample import in_turn

HEADS, KEYS, VALUES = 3, 4, 5
NAMES = ("q", "k", "v", "write", "forget")


def built(eps: float) -> MLSTM:
    """Return a mixer whose parameters nobody reads here."""
    spec = MLSTMSpec(n_heads=Count(HEADS), key_dim=Width(KEYS), value_dim=Width(VALUES), cap=None, eps=eps)
    module = spec.build(Place(8).at(8))
    assert isinstance(module, MLSTM)
    return module


def drawn(tokens: int, strength: float) -> list[Tensor]:
    """Return q, k, v and what the gates are made of, two rows; `strength` is how far these lie apart."""
    g = torch.Generator().manual_seed(tokens)
    shapes = [(2, tokens, HEADS, n) for n in (KEYS, KEYS, VALUES)]
    found = [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]
    gates = [strength * torch.randn(2, tokens, HEADS, generator=g, dtype=torch.float64) for _ in range(2)]
    return [each.requires_grad_() for each in (*found, *gates)]


def by_loop(given: Sequence[Tensor], spans: Sequence[slice], eps: float) -> list[Tensor]:
    """Return h of all tokens, and the last C, n and m of every row and head."""
    q, k, v, write, forget = given

    def piece(at: tuple[int, slice, int]) -> tuple[Tensor, ...]:
        return mlstm(q[at], k[at], v[at], write[at], forget[at], eps)

    rows = []
    for b in range(2):
        heads = [[piece((b, span, h)) for span in spans] for h in range(HEADS)]
        ys = torch.stack([torch.cat([y for y, *_ in pieces]) for pieces in heads], 1)
        rows.append([ys, *(torch.stack([pieces[-1][i] for pieces in heads]) for i in (1, 2, 3))])
    return [torch.stack(each) for each in zip(*rows, strict=True)]


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("strength", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("cuts", [(), (1, 40), (0, 63, 64, 65)])
@pytest.mark.parametrize("tokens", [1, 70, in_turn(150)])
def test_chunks_are_the_papers_loop(tokens: int, cuts: tuple[int, ...], strength: float, eps: float) -> None:
    cuts = tuple(cut for cut in cuts if cut < tokens)
    ends = [0, *(cut for cut in cuts if cut), tokens]
    spans = [slice(a, b) for a, b in pairwise(ends)]
    begins = torch.zeros(1, tokens, dtype=torch.bool)
    begins[0, list(cuts)] = True
    given = drawn(tokens, strength)
    q, k, v, write, forget = given
    steps = Steps(begins=begins if cuts else None)
    scan = built(eps)._scan(q, k, v, write, torch.nn.functional.logsigmoid(forget), steps, {})
    found = [scan[0], scan[1]["state"][..., :-1], scan[1]["state"][..., -1], scan[1]["largest"]]
    expected = by_loop(given, spans, eps)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    weight = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = [torch.autograd.grad((each[0] * weight).sum(), given) for each in (found, expected)]
    for name, ours, theirs in zip(NAMES, *grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9 * max(1.0, theirs.abs().max().item()), rtol=1e-8, msg=name)


def test_gates_begin_closed_and_remembering() -> None:
    mixer = af.build(af.resize(af.preset("xlstm-7b").spec, d_model=64, n_layers=1), seed=0).stack.blocks[0]
    held = dict(mixer.named_parameters())
    [write] = [value for name, value in held.items() if name.endswith("write_bias")]
    [forget] = [value for name, value in held.items() if name.endswith("forget_bias")]
    [matrix] = [value for name, value in held.items() if name.endswith("forget.weight")]
    assert write.unique().tolist() == [-10.0]
    torch.testing.assert_close(forget, torch.linspace(3.0, 6.0, len(forget)))
    assert not matrix.any()
