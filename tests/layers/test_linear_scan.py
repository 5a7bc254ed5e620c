"""The linear scan and RG-LRU equal plain loops over tokens, forward and backward, also where documents begin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.layers import CausalConvolutionSpec, RGLRUSpec
from anyformer.layers.linear_scan import linear_scan
from anyformer.layers.recurrence import Steps
from anyformer.spec import Count, Place, Width


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_the_scan_is_the_loop(tokens: int) -> None:
    g = torch.Generator().manual_seed(tokens)
    drawn = (torch.randn(2, *shape, 3, generator=g, dtype=torch.float64) for shape in ((tokens,), (tokens,), ()))
    decay, x, state = (value.requires_grad_() for value in drawn)
    outs, now = [], state
    for t in range(tokens):
        now = decay[:, t] * now + x[:, t]
        outs.append(now)
    expected, got = torch.stack(outs, 1), linear_scan(decay, x, state)
    torch.testing.assert_close(got, expected)
    weights = torch.linspace(-1, 1, got.numel(), dtype=torch.float64).view_as(got)
    for ours, loop in zip(
        *(torch.autograd.grad((y * weights).sum(), (decay, x, state)) for y in (got, expected)), strict=True
    ):
        torch.testing.assert_close(ours, loop)


def by_loop(layer: torch.nn.Module, x: Tensor, begins: list[bool]) -> Tensor:
    """RG-LRU of one row [token, 4] as the paper writes it, two blocks of three channels, a convolution of one token."""
    weights = {name: value.double() for name, value in layer.named_parameters()}
    h, outs = torch.zeros(6, dtype=torch.float64), []
    for token, begin in zip(x.double(), begins, strict=True):
        u = weights["inner.weight"] @ token + weights["inner.bias"]
        u = u * weights["convolution.weight"][:, 0, 0]
        gates = {}
        for name in ("forget", "write"):
            each = [
                u[3 * i : 3 * i + 3] @ weights[name][i] + weights[f"{name}_bias"][i]  # rows are inputs
                for i in range(2)
            ]
            gates[name] = torch.cat(each).sigmoid()
        a = (-8 * gates["forget"] * torch.nn.functional.softplus(weights["decay"])).exp()
        h = gates["write"] * u if begin else a * h + (1 - a**2).sqrt() * gates["write"] * u
        gate = torch.nn.functional.gelu(
            weights["out_gate.weight"] @ token + weights["out_gate.bias"], approximate="tanh"
        )
        outs.append(weights["out.weight"] @ (h * gate) + weights["out.bias"])
    return torch.stack(outs)


def test_rg_lru_is_the_loop() -> None:
    spec = RGLRUSpec(width=Width(6), n_blocks=Count(2), convolution=CausalConvolutionSpec(size=1))
    layer = spec.build(Place(d_model=4).at(4)).double()
    generator = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        weight.data.normal_(generator=generator)
    x = torch.randn(1, 7, 4, generator=generator).double()
    plain, _ = layer.run(x, Steps(), None)
    torch.testing.assert_close(plain[0], by_loop(layer, x[0], [True] + [False] * 6))
    begins = torch.tensor([[True, False, False, True, False, True, True]])
    packed, _ = layer.run(x, Steps(begins=begins, piece=begins.cumsum(1)), None)
    torch.testing.assert_close(packed[0], by_loop(layer, x[0], begins[0].tolist()))
    first, state = layer.run(x[:, :3], Steps(), {})
    rest, _ = layer.run(x[:, 3:], Steps(), state)
    torch.testing.assert_close(torch.cat((first, rest), 1), plain)
