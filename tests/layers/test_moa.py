"""A mixture of attention heads is what its paper says token by token, whichever way the experts' products are made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import mixing, with_layers
from anyformer.layers import AttentionSpec, Causal, MoASpec, RouterSpec, RouterStreamSpec, experts
from anyformer.layers.context import ForwardContext
from anyformer.layers.experts import of_choices
from anyformer.layers.tokens import plain_tokens
from anyformer.model import Transformer
from anyformer.recipe import LoadBalance
from anyformer.resizing import shrink
from anyformer.spec import Count, Width
from anyformer.training.step.routing import Routed, mixtures_of, routers_of
from tests.laws.models import ids_for, randomised

SMALL = shrink(preset("jetmoe-8b").spec)


def layer_of(model: Transformer) -> tuple[AttentionSpec, dict[str, Tensor]]:
    mixer = model.stack.blocks[0].sublayers[0].branches[0].mixer
    return mixer.spec, dict(mixer.named_parameters())


def by_the_paper(spec: AttentionSpec, own: dict[str, Tensor], x: Tensor) -> Tensor:
    """One row x [token, d_model], without positions: each token, each of its experts and each head by itself."""
    heads = spec.projection
    assert isinstance(heads, MoASpec)
    d = heads.head_dim
    assert d is not None
    k, v = (x @ own[f"projection.{name}.weight"].T for name in "kv")
    outs = []
    for t, token in enumerate(x):
        best = (own["projection.router.weight"] @ token).topk(heads.router.top_k)
        y = own["projection.bias"].clone()
        for share, i in zip(best.values.softmax(0), best.indices.tolist(), strict=True):
            q = own["projection.q.weight"][i] @ token
            each = []
            for h in range(heads.kv_heads):
                at = slice(h * d, (h + 1) * d)
                weights = (k[: t + 1, at] @ q[at] / d**0.5).softmax(0)
                each.append(weights @ v[: t + 1, at])
            y = y + share * (own["projection.o.weight"][i] @ torch.cat(each))
        outs.append(y)
    return torch.stack(outs)


def test_it_is_the_papers_sum() -> None:
    spec = MoASpec(
        router=RouterSpec(n_experts=Count(4), top_k=2, score="softmax-of-chosen"), kv_heads=Count(3), head_dim=Width(4), bias=True
    )  # fmt: skip
    blocks = SMALL.stack.blocks
    mixer = AttentionSpec(projection=spec, mask=Causal())
    model = randomised(with_layers(SMALL, [mixing(blocks[0], mixer)])).double()
    ids = ids_for(model.spec, 2, 9)
    seen: list[tuple[Tensor, Tensor]] = []
    layer = model.stack.blocks[0].sublayers[0].branches[0].mixer
    layer.register_forward_hook(lambda _, given, made: seen.append((given[0], made[0])))
    model(ids)
    ((x, y),) = seen
    for row, made in zip(x, y, strict=True):
        torch.testing.assert_close(made, by_the_paper(*layer_of(model), row))


@pytest.mark.parametrize("rows", [1, 3])
def test_all_ways_are_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(*s, generator=g, dtype=torch.float64).requires_grad_() for s in ((7, rows, 5), (4, 6, 5)))
    chosen = torch.stack([torch.randperm(4, generator=g)[:3] for _ in range(7)])

    def way(experts: str = "sorted") -> Tensor:
        context = ForwardContext(plain_tokens(7, torch.device("cpu")), {}, experts=experts)  # type: ignore[arg-type]
        return of_choices(x, chosen, w, context)

    expected = torch.stack(
        [torch.stack([w[i] @ x[t, min(k, rows - 1)] for k, i in enumerate(row)]) for t, row in enumerate(chosen)]
    )
    wanted = torch.autograd.grad(expected.square().sum(), (x, w))
    ways = {"loop": lambda: way("loop"), "sorted": way}
    for name, asked in (("few", "few_are_chosen"), ("all", "transformed")):

        def forced(asked: str = asked) -> Tensor:
            with monkeypatch.context() as m:
                m.setattr(experts, asked, lambda *_: True)
                return way()

        ways[name] = forced
    for made in ways.values():
        y = made()
        torch.testing.assert_close(y, expected)
        for a, b in zip(torch.autograd.grad(y.square().sum(), (x, w)), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_routers_of_heads_are_trained_too() -> None:
    """The loss that evens out loads is over both mixtures of a layer, in the order of their calls."""
    model = randomised(SMALL)
    routers = routers_of(model)
    assert [router.spec for router in routers] == [r for b in SMALL.stack.blocks for r in b.nested(RouterSpec)]
    out = model(ids_for(SMALL, 2, 9))
    routed = Routed(mixtures_of(model), out.notes)
    load = routed.load()
    assert [float(count.sum()) for count in load.counts] == [2 * 9 * r.spec.top_k for r in routers]
    model.zero_grad()
    routed.loss([LoadBalance(weight=0.01)], load).backward()
    assert all(router.weight.grad is not None and router.weight.grad.any() for router in routers)


def test_what_has_no_heads_is_refused() -> None:
    router = RouterSpec(n_experts=Count(4), top_k=2)
    with pytest.raises(SpecError, match=r"MoA\.router = Router has identities, and such an expert has no heads"):
        MoASpec(router=router.but(n_identity=1), kv_heads=Count(2))
    with pytest.raises(SpecError, match=r"MoA\.router = Router has shared ones, and such an expert has no heads"):
        MoASpec(router=router.but(n_shared=1), kv_heads=Count(2))
    with pytest.raises(SpecError, match=r"MoA\.router = Router reads the routers of other layers"):
        MoASpec(router=router.but(stream=RouterStreamSpec(width=Width(4))), kv_heads=Count(2))
