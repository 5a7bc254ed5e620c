"""LSTMs and GRUs equal torch.nn's, forward and backward, in documents and segments; dropout is what the paper says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import anyformer.model  # noqa: F401  (the observer names the operators of all kernels)
from anyformer.layers import Dropout, GRUSpec, LSTMSpec, Steps, gru, lstm
from anyformer.layers.gated_recurrence import GatedRecurrence
from anyformer.observation.operators import KERNELS
from anyformer.spec import Count, Place, Width, Workload

D, INNER, NAMES = 7, 11, {"input": "weight_ih", "state": "weight_hh", "bias_input": "bias_ih", "bias_state": "bias_hh"}
both = pytest.mark.parametrize("kind", [LSTMSpec, GRUSpec])


def pair(kind: Any, n_layers: int = 3, bias: bool = True) -> tuple[GatedRecurrence[Any], list[Any]]:
    """The mixer and torch.nn's layers with the same random weights, in float64."""
    spec = kind(n_layers=Count(n_layers), d_inner=Width(INNER), bias=bias)
    ours = spec.build(Place(d_model=D).at(D)).double()
    reference = {LSTMSpec: torch.nn.LSTM, GRUSpec: torch.nn.GRU}[kind]
    theirs = []
    for i, (d_in, d_out) in enumerate(spec.widths(ours.place)):
        theirs.append(reference(d_in, d_out, bias=bias, batch_first=True).double())
        for own, name in NAMES.items():
            if bias or own in ("input", "state"):
                torch.nn.init.normal_(ours.get_parameter(f"{own}_{i}"), std=0.5)
                theirs[-1].get_parameter(f"{name}_l0").data.copy_(ours.get_parameter(f"{own}_{i}").data)
    return ours, theirs


def through(layers: list[Any], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x, _ = layer(x)
    return x


@both
@pytest.mark.parametrize("bias", [True, False])
def test_forward_and_gradients_are_those_of_torch(kind: Any, bias: bool) -> None:
    torch.manual_seed(1)
    ours, theirs = pair(kind, bias=bias)
    x = torch.randn(3, 20, D, dtype=torch.float64)
    given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    direction = torch.randn_like(x)
    y, _ = ours.run(given[0], Steps(), None)
    expected = through(theirs, given[1])
    torch.testing.assert_close(y, expected, atol=1e-13, rtol=1e-12)
    for each in (y, expected):
        (each * direction).sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, atol=1e-12, rtol=1e-10)
    for i, layer in enumerate(theirs):
        for own, name in NAMES.items():
            if bias or own in ("input", "state"):
                grads = ours.get_parameter(f"{own}_{i}").grad, layer.get_parameter(f"{name}_l0").grad
                torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-10)


@both
def test_gradients_reach_the_state_before(kind: Any) -> None:
    """By finite differences, through a document's beginning; of the cells behind too, which no layer above reads."""
    g = torch.Generator().manual_seed(2)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()  # noqa: E731
    keep = torch.ones(2, 5, dtype=torch.float64)
    keep[1, 2] = 0
    gates = kind.gates
    x, weight, hidden = make(2, 5, gates * 3), make(gates * 3, 3), make(2, 3)
    if kind is LSTMSpec:
        given, run = (x, weight, hidden, make(2, 3)), lambda *each: lstm.recurrence(*each, keep)[:2]
    else:
        given, run = (x, weight, make(gates * 3), hidden), lambda *each: gru.recurrence(*each, keep)[0]
    assert torch.autograd.gradcheck(run, given)


@both
def test_documents_begin_with_nothing(kind: Any) -> None:
    ours, theirs = pair(kind)
    x = torch.randn(1, 9, D, dtype=torch.float64)
    begins = torch.zeros(1, 9, dtype=torch.bool)
    begins[0, [0, 4]] = True
    y, state = ours.run(x, Steps(begins=begins, real=torch.ones(1, 9, dtype=torch.bool)), {})
    with torch.no_grad():
        torch.testing.assert_close(y, torch.cat((through(theirs, x[:, :4]), through(theirs, x[:, 4:])), 1))
    assert set(state) == set(ours.spec.cache_shapes(ours.place))


@both
def test_the_state_is_that_behind_the_last_real_step(kind: Any) -> None:
    ours, _ = pair(kind)
    x = torch.randn(2, 6, D, dtype=torch.float64)
    real = torch.tensor([[True] * 4 + [False] * 2, [False] * 6])
    _, before = ours.run(x[:, :2], Steps(), {})
    _, after = ours.run(x, Steps(real=real), before)
    _, expected = ours.run(x[:1, :4], Steps(), {name: value[:1] for name, value in before.items()})
    for name, value in after.items():
        torch.testing.assert_close(value[:1], expected[name])
        torch.testing.assert_close(value[1], before[name][1])


@both
def test_flops_are_those_that_torch_counts_inside(kind: Any) -> None:
    """The operators' bodies, counted product by product; the formula and what the observer is told are the same."""
    ours, _ = pair(kind)
    ours, spec, widths = ours.float(), ours.spec, ours.spec.widths(ours.place)
    module, operators = (lstm, "lstm") if kind is LSTMSpec else (gru, "gru")
    total = 0
    for d_in, d_out in widths:
        x, weight, hidden = (
            torch.randn(2, 5, spec.gates * d_out),
            torch.randn(spec.gates * d_out, d_out),
            torch.randn(2, d_out),
        )
        own = (hidden, hidden) if kind is LSTMSpec else (torch.randn(spec.gates * d_out), hidden)
        with FlopCounterMode(display=False) as forward:
            out = module.recurrence._init_fn(x, weight, *own, None)
        states = (
            (out[0], out[1], weight, *own, None, *out) if kind is LSTMSpec else (out[0], weight, hidden, None, *out)
        )
        with FlopCounterMode(display=False) as backward:
            module.gradients._init_fn(*states)
        packets = [getattr(torch.ops.anyformer, name) for name in (operators, f"{operators}_backward")]
        assert KERNELS[packets[0]](x, weight, *own, None).flops == forward.get_total_flops()
        assert KERNELS[packets[1]](*states).flops == backward.get_total_flops() == 2 * forward.get_total_flops()
        total += forward.get_total_flops() + 2 * 10 * d_in * spec.gates * d_out
    assert spec.cost(ours.place, Workload(batch=2, query=5)).flops == total


@both
def test_dropout_of_state_matrices_and_between_layers(kind: Any) -> None:
    """Merity et al. 2017: a matrix that loses entries for a whole pass (section 2), one mask for all steps (4.2)."""
    ours, _ = pair(kind, n_layers=2)
    x = torch.randn(4, 12, D, dtype=torch.float64)
    plain, _ = ours.run(x, Steps(dropout=Dropout()), None)
    torch.testing.assert_close(plain, ours.run(x, Steps(), None)[0])
    torch.manual_seed(0)
    changed, _ = ours.run(x, Steps(dropout=Dropout(recurrent=0.5)), None)
    first = [y[:, 0] for y in (changed, plain)]
    torch.testing.assert_close(*first)  # before the first step there is no state
    assert not torch.allclose(changed[:, 1:], plain[:, 1:])
    seen: list[torch.Tensor] = []
    layer = ours.layer
    ours.layer = lambda i, x, *rest: seen.append(x) or layer(i, x, *rest)  # type: ignore[method-assign]
    ours.run(x, Steps(dropout=Dropout(activation=0.5)), None)
    lost = seen[1] == 0
    assert lost.any()
    assert not lost.all()
    assert (lost == lost[:, :1]).all()
