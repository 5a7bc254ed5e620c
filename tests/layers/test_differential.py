"""Differential attention by the formulas of its paper, head by head, around grouped-query and latent attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    Causal,
    DifferentialSpec,
    GQASpec,
    LayerNormSpec,
    OutputGateSpec,
    RMSNormSpec,
    ShawValuesSpec,
    SlidingWindow,
)
from anyformer.layers.attention import Attention
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.tokens import plain_tokens
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance


def by_hand(module: Attention, x: Tensor, start: float, window: int) -> Tensor:
    """Return attention of x [batch, token, d_model] by loops over rows, pairs of heads and queries, in float64."""
    p, n = module.projection, x.shape[1]
    context = ForwardContext(tokens=plain_tokens(n, x.device), kernels={})
    q, k, v = (t.double() for t in p.expand(p.query(p.narrow(x), context), p.store(x, context)))
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    part = module.difference
    assert part is not None
    q1, k1, q2, k2 = (vector.double() for vector in (part.q1, part.k1, part.q2, part.k2))
    share = math.exp(sum(q1 * k1)) - math.exp(sum(q2 * k2)) + start
    rows = []
    for row in range(len(x)):
        pairs = []
        for first in range(heads // 2):
            second = first + heads // 2
            values = torch.cat((v[row, first // group], v[row, second // group]), -1)
            out = torch.zeros(n, values.shape[-1], dtype=torch.float64)
            for i in range(n):
                seen = range(max(0, i + 1 - window), i + 1)
                a, b = (
                    torch.stack([q[row, head, i] @ k[row, head // group, j] for j in seen]).mul(module.scale).softmax(0)
                    for head in (first, second)
                )
                mean = sum((a[m] - share * b[m]) * values[j] for m, j in enumerate(seen))
                root = (mean.square().mean() + 1e-5).sqrt()  # type: ignore[union-attr]
                out[i] = (1 - start) * mean / root
            pairs.append(out)
        rows.append(torch.cat(pairs, -1))
    return p.o(torch.stack(rows).to(x.dtype))


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
@pytest.mark.parametrize("start", [None, 0.5])
def test_it_is_the_difference_of_two_softmaxes(name: str, start: float | None) -> None:
    """In the third layer of four, where λ starts at 0.8 - 0.6 e^(-0.6)."""
    attention = next(v for v in shrink(preset(name).spec).nested() if isinstance(v, AttentionSpec))
    attention = attention.but(
        mask=Causal() & SlidingWindow(size=Window(5)), difference=DifferentialSpec(start=start)
    ).within(2, 4)
    torch.manual_seed(0)
    module = attention.build(Place(32, (32,)))
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.5)
    from anyformer.kernels import KERNELS

    x = torch.randn(2, 9, 32)
    found = 0.8 - 0.6 * math.exp(-0.3 * 2) if start is None else start
    with torch.no_grad():
        expected = by_hand(module, x, found, 5)
        for name in ("eager", "sdpa", "blocked"):
            context = ForwardContext(tokens=plain_tokens(9, x.device), kernels={module.digest: KERNELS[name]})
            close(module(x, context, Store())[0], expected)


def test_layers_differ_by_depth_alone() -> None:
    """Layers that are alike in a specification start from other shares, and each is told to its kernel."""
    spec = changed(shrink(preset("llama3-8b").spec), AttentionSpec, difference=DifferentialSpec())
    assert spec.stack.blocks[0] == spec.stack.blocks[1]
    model = build(spec, seed=0)
    parts = [module.spec.difference for module in model.modules() if isinstance(module, Attention)]
    starts = [part and part.start for part in parts]
    assert starts == pytest.approx([0.2, 0.8 - 0.6 * math.exp(-0.3)])
    drawn = torch.cat([p.flatten() for name, p in model.named_parameters() if ".difference." in name])
    assert 0.05 < drawn.std() < 0.15


@pytest.mark.parametrize(
    "around",
    [
        {"gate": OutputGateSpec(over="heads"), "sink": True, "softcap": 3.0},
        {"norm": RMSNormSpec(), "relative_values": ShawValuesSpec(farthest=Window(3))},
        {"mask": Causal() & SlidingWindow(size=Window(4)), "gate": OutputGateSpec()},
    ],
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_cached_is_uncached(name: str, around: dict[str, object]) -> None:
    learned = DifferentialSpec(norm=LayerNormSpec())
    spec: ModelSpec = changed(shrink(preset(name).spec), AttentionSpec, difference=learned, **around)
    model, ids = randomised(spec), ids_for(spec, 2, 12)
    with torch.no_grad():
        whole = model(ids).logits
        assert distance(whole, randomised(changed(spec, AttentionSpec, difference=None))(ids).logits) > 0.01
        cache = KVCache(spec, batch=2, length=12)
        close(torch.cat([model(piece, cache=cache).logits for piece in ids.split((5, 1, 3, 1, 2), 1)], 1), whole)


def test_heads_without_a_pair_are_refused() -> None:
    with pytest.raises(SpecError, match="difference is of pairs of heads, and there are 3 of keys and values"):
        AttentionSpec(
            projection=GQASpec(n_heads=Count(6), n_kv_heads=Count(3), head_dim=Width(8)), difference=DifferentialSpec()
        )
