"""RWKV's time and channel mixing equal plain sums over all tokens before, forward and backward, where documents begin too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RwkvConfig, RwkvModel

from anyformer.layers import ChannelMixSpec, WKVSpec, wkv_scan
from anyformer.layers.recurrence import Steps
from anyformer.layers.wkv_scan import wkv
from anyformer.spec import Place, Width
from tests.oracles.recurrences import weighed_mean

N = 23


def drawn(rows: int = 2, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, rates and boni of five channels."""
    g = torch.Generator().manual_seed(rows)
    k, v = (torch.randn(rows, N, 5, generator=g, dtype=torch.float64) for _ in "kv")
    rate, bonus = torch.rand(5, generator=g, dtype=torch.float64) * 3, torch.randn(5, generator=g, dtype=torch.float64)
    return (spread * k).requires_grad_(), v.requires_grad_(), rate.requires_grad_(), bonus.requires_grad_()


def alike(ours: Tensor, loop: Tensor, given: Sequence[Tensor]) -> None:
    torch.testing.assert_close(ours, loop)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    each = (torch.autograd.grad((y * weights).sum(), given) for y in (ours, loop))
    for a, b in zip(*each, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture(params=[4, 64])
def segment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wkv_scan, "SEGMENT", request.param)


@pytest.mark.usefixtures("segment")
@pytest.mark.parametrize("spread", [1.0, 100.0])  # with the second no weight is a number of float64
def test_the_scan_is_the_sum_over_all_tokens_before(spread: float) -> None:
    k, v, rate, bonus = given = drawn(spread=spread)
    expected = torch.stack([weighed_mean(keys, values, rate, bonus) for keys, values in zip(k, v, strict=True)])
    y, _ = wkv(k, v, rate, bonus, None, None, None)
    alike(y, expected, given)


@pytest.mark.usefixtures("segment")
def test_documents_and_padding_and_a_state() -> None:
    k, v, rate, bonus = given = drawn(rows=3)
    begins, lengths = torch.zeros(3, N, dtype=torch.bool), (N, 15, 6)
    begins[0, 9] = begins[1, 3] = begins[1, 4] = begins[2, 0] = True
    real = torch.arange(N) < torch.tensor(lengths)[:, None]
    spans = [(0, 0, 9), (0, 9, N), (1, 0, 3), (1, 3, 4), (1, 4, 15), (2, 0, 6)]
    expected = [weighed_mean(k[i, a:b], v[i, a:b], rate, bonus) for i, a, b in spans]
    y, (sums, most) = wkv(k, v, rate, bonus, begins, real, None)
    alike(torch.cat([y[i, a:b] for i, a, b in spans]), torch.cat(expected), given)
    # what a row leaves is what its last document leaves
    for i, a, b in (spans[1], spans[4], spans[5]):
        row = slice(i, i + 1)
        after, _ = wkv(k[row, :5], v[row, :5], rate, bonus, None, None, (sums[row], most[row]))
        keys, values = torch.cat((k[i, a:b], k[i, :5])), torch.cat((v[i, a:b], v[i, :5]))
        torch.testing.assert_close(after[0], weighed_mean(keys, values, rate, bonus)[b - a :])


def test_torch_func_computes_the_same() -> None:
    given, g = tuple(each.detach() for each in drawn()), torch.Generator().manual_seed(0)
    begins, real = torch.rand(2, N, generator=g) < 0.2, torch.arange(N) < torch.tensor([[N], [15]])

    def total(k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor) -> Tensor:
        y, _ = wkv(k, v, rate, bonus, begins, real, None)
        return (y * real[..., None]).square().sum()

    found = torch.func.grad(total, argnums=(0, 1, 2, 3))(*given)
    leaves = [each.clone().requires_grad_() for each in given]
    for a, b in zip(found, torch.autograd.grad(total(*leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("spec", [WKVSpec(width=Width(6)), ChannelMixSpec(d_ff=Width(10))], ids=["time", "channel"])
def test_a_layer_is_the_papers(spec: Any) -> None:
    layer = spec.build(Place(d_model=4).at(4)).double()
    g = torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        weight.data.normal_(generator=g)
    x = torch.randn(1, 7, 4, generator=g, dtype=torch.float64)
    weights = {name.removesuffix(".weight"): value for name, value in layer.named_parameters()}

    def shifted(x: Tensor, name: str) -> Tensor:
        """Section 3.1's, of one document [token, 4]."""
        mu, before = weights[f"shift_{name}"], torch.cat((torch.zeros_like(x[:1]), x[:-1]))
        return mu * x + (1 - mu) * before

    def paper(x: Tensor) -> Tensor:
        r = (shifted(x, "receptance") @ weights["receptance"].T).sigmoid()
        if isinstance(spec, ChannelMixSpec):
            return r * ((shifted(x, "key") @ weights["up"].T).relu().square() @ weights["down"].T)
        k, v = (shifted(x, name) @ weights[name].T for name in ("key", "value"))
        return (r * weighed_mean(k, v, weights["decay"].exp(), weights["bonus"])) @ weights["out"].T

    whole, _ = layer.run(x, Steps(), None)
    torch.testing.assert_close(whole[0], paper(x[0]))
    begins = torch.tensor([[True, False, False, True, False, False, False]])
    packed, _ = layer.run(x, Steps(begins=begins, piece=begins.cumsum(1)), None)
    torch.testing.assert_close(packed[0], torch.cat((paper(x[0, :3]), paper(x[0, 3:]))))
    first, state = layer.run(x[:, :3], Steps(), {})
    torch.testing.assert_close(torch.cat((first, layer.run(x[:, 3:], Steps(), state)[0]), 1), whole)


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_weights_start_as_transformers_has_them(layer: int) -> None:
    """Appendix E's formulas, of a layer of four."""
    spec, place = WKVSpec().within(layer, 4), Place(d_model=5).at(5)
    config = RwkvConfig(vocab_size=7, hidden_size=5, num_hidden_layers=4)
    theirs: Any = RwkvModel(config).blocks[layer].attention
    parts: dict[str, Any] = dict(spec.parts(place))
    for name in ("key", "value", "receptance"):
        start = parts[f"shift_{name}"][0].weights(place)["weight"].fill
        assert start == pytest.approx(getattr(theirs, f"time_mix_{name}").flatten().tolist())
    decay, bonus = spec.weights(place).values()
    assert decay is not None
    assert bonus is not None
    assert decay.fill == pytest.approx(theirs.time_decay.tolist())
    # where theirs is all ones, against the paper
    assert bonus.fill == pytest.approx([-1.2039728 + 0.5 * each for each in (0, 1, -1, 0, 1)])
