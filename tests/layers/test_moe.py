"""Mixtures of experts against a loop over tokens, and against transformers' classes; forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.layers import (
    GELU,
    CapacityFactor,
    FeedForwardSpec,
    FixedCapacity,
    GatedFeedForwardSpec,
    MoESpec,
    ReLU,
    RouterSpec,
    SiLU,
    experts,
    grouped,
)
from anyformer.layers.context import Dropout, ForwardContext, Store
from anyformer.layers.moe import MoE
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.spec import Count, Place, Width, Workload, tensors
from tests.laws.tolerance import FLOAT32, close, distance, gradient_distance
from tests.oracles import moe as oracle

D, BATCH, N = 12, 2, 17
GATED = GatedFeedForwardSpec(d_ff=Width(10), activation=SiLU())
CLAMPED = GatedFeedForwardSpec(
    d_ff=Width(10), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=0.7, up_offset=1.0
)
PLAIN = FeedForwardSpec(d_ff=Width(14), activation=ReLU())


def router(n_experts: int = 8, top_k: int = 2, **options: Any) -> RouterSpec:
    return RouterSpec(n_experts=Count(n_experts), top_k=top_k, **options)


MIXTURES = {
    "Mixtral": MoESpec(router=router(renormalise=True), expert=GATED),
    "Qwen": MoESpec(router=router(top_k=3), expert=GATED, shared_expert=GATED, shared_gate=True),
    "gpt-oss": MoESpec(router=router(top_k=4, score="softmax-of-chosen", bias=True), expert=CLAMPED),
    "Phi": MoESpec(router=router(score="sparsemixer", tolerance=0.2), expert=GATED),
    "DeepSeek-V2": MoESpec(
        router=router(12, 3, n_groups=4, top_groups=2, factor=16.0), expert=GATED, shared_expert=PLAIN
    ),
    "DeepSeek-V3": MoESpec(
        router=router(
            12,
            4,
            score="sigmoid",
            correction=True,
            n_groups=4,
            top_groups=2,
            group_score="top2-sum",
            renormalise=True,
            factor=2.5,
        ),
        expert=GATED,
        shared_expert=GATED,
    ),
    "Switch": MoESpec(router=router(top_k=1), expert=PLAIN, capacity=CapacityFactor(factor=0.9)),
    "two of few places": MoESpec(router=router(4, 2), expert=CLAMPED, capacity=FixedCapacity(tokens=5)),
    "Llama 4": MoESpec(router=router(score="sigmoid"), expert=GATED, shared_expert=GATED, weighs="input"),
    "what is read is weighed, of few places": MoESpec(
        router=router(4, 2), expert=CLAMPED, capacity=FixedCapacity(tokens=5), weighs="input"
    ),
    "LongCat-Flash": MoESpec(router=router(6, 4, n_identity=3, correction=True, factor=6.0), expert=GATED),
    "identities of what is weighed, of few places": MoESpec(
        router=router(4, 3, n_identity=4, bias=True), expert=CLAMPED, capacity=FixedCapacity(tokens=5), weighs="input"
    ),
    "in a latent": MoESpec(router=router(4, 2, renormalise=True), expert=PLAIN, shared_expert=GATED, latent=Width(6)),
    "in a latent, beside identities, weighed before": MoESpec(
        router=router(4, 3, n_identity=4, bias=True), expert=CLAMPED, latent=Width(6), weighs="input"
    ),
    "all of them": MoESpec(router=router(3, 3), expert=PLAIN),
    "little is divided by more": MoESpec(router=router(score="sigmoid", renormalise=True, eps=0.3), expert=GATED),
    "capped": MoESpec(router=router(6, 3, bias=True, softcap=1.5), expert=GATED),
    "Kolibri 1": MoESpec(
        router=router(6, 2, score="sigmoid", correction=True, corrects="logits"), expert=GATED, shared_expert=GATED
    ),
    "of groups that are corrected before a softmax": MoESpec(
        router=router(6, 2, correction=True, corrects="logits", n_groups=3, top_groups=2), expert=GATED
    ),
    "one": MoESpec(router=router(1, 1, score="sigmoid"), expert=GATED),
}
every_mixture = pytest.mark.parametrize("name", MIXTURES)


def built(spec: MoESpec, seed: int = 0) -> MoE:
    module = spec.build(Place(d_model=D, shape=(D,)))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        scale = 1.5 * D**-0.5 if parameter.dim() > 1 else 0.3
        spread = 3.0 if name == "router.weight" else 1.0  # experts are far from equally good
        parameter.data.copy_(spread * scale * torch.randn(parameter.shape, generator=generator))
    return module


def context(experts: str = "sorted", **options: Any) -> ForwardContext:
    return ForwardContext(plain_tokens(N, torch.device("cpu")), {}, experts=experts, **options)  # type: ignore[arg-type]


def inputs(seed: int = 1) -> Tensor:
    return torch.randn(BATCH, N, D, generator=torch.Generator().manual_seed(seed))


def by_the_oracle(spec: MoESpec, module: MoE, x: Tensor, real: list[list[bool]] | None = None) -> Tensor:
    """Each token by itself, with the module's numbers and none of its code."""
    own = dict(module.named_parameters())
    activations = {"SiLU": lambda z: z / (1 + (-z).exp()), "ReLU": lambda z: z.clamp(min=0)}
    activations["GELU"] = lambda z: z / (1 + (-1.702 * z).exp())

    def feed(kind: Any, prefix: str, i: int | None, token: Tensor) -> Tensor:
        if i is not None and i >= spec.router.n_experts:
            return token

        def linear(name: str, z: Tensor) -> Tensor:
            found = [own.get(f"{prefix}.{name}.{end}") for end in ("weight", "bias")]
            weight, bias = (each if each is None or i is None else each[i] for each in found)
            assert weight is not None
            return weight @ z if bias is None else weight @ z + bias

        act = activations[kind.activation.kind]
        if isinstance(kind, FeedForwardSpec):
            return linear("down", act(linear("up", token)))
        gate, up = linear("gate", token), linear("up", token)
        if kind.limit is not None:
            gate, up = gate.minimum(torch.tensor(kind.limit)), up.clamp(-kind.limit, kind.limit)
        return linear("down", act(gate) * (up + kind.up_offset))

    def logits(token: Tensor) -> list[Tensor]:
        each = own["router.weight"] @ token
        each = each + own["router.bias"] if "router.bias" in own else each
        return list(each if r.softcap is None else r.softcap * (each / r.softcap).tanh())

    def there(token: Tensor) -> Tensor:
        return own["latent_in.weight"] @ token if spec.latent else token

    def back(token: Tensor) -> Tensor:
        return own["latent_out.weight"] @ token if spec.latent else token

    r, places = spec.router, None  # which identities, after the experts, do not need
    if isinstance(spec.capacity, FixedCapacity):
        places = spec.capacity.tokens
    elif isinstance(spec.capacity, CapacityFactor):
        places = -int(-spec.capacity.factor * r.top_k * N // r.n_experts)
    correction = own["router.correction"].tolist() if r.correction else None
    fields = "score top_k corrects n_groups top_groups group_score renormalise eps factor tolerance"
    options = {name: getattr(r, name) for name in fields.split()}
    options["weighs"] = spec.weighs
    y = oracle.mixture(
        x,
        logits,
        lambda i, t: t if i >= r.n_experts else back(feed(spec.expert, "experts", i, there(t))),
        lambda i: places if i < r.n_experts else None,
        real,
        correction=correction,
        **options,
    )
    if spec.shared_expert is not None:
        shared = torch.stack([feed(spec.shared_expert, "shared_expert", None, t) for t in x.flatten(0, 1)]).view_as(x)
        if spec.shared_gate:
            shared = shared / (1 + (-(x @ own["shared_gate.weight"][0])).exp())[..., None]
        y = y + shared
    return y


def gradients(module: MoE, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    module.zero_grad()
    x.grad = None
    (y * weight).sum().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return {**found, "x": x.grad}


@every_mixture
@pytest.mark.parametrize("way", ["sorted", "loop", "traced"])
def test_it_is_the_sum_over_each_tokens_experts(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = MIXTURES[name]
    module, x = built(spec), inputs().requires_grad_()
    if way == "traced":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    y, notes = module(x, context("loop" if way == "loop" else "sorted"), Store())
    expected = by_the_oracle(spec, module, x)
    close(y, expected)
    assert expected.std() > 0.1
    got, wanted = gradients(module, x, y), gradients(module, x, expected)
    assert gradient_distance(got, wanted) < FLOAT32
    assert notes["router_logits"].shape == (BATCH, N, spec.router.n_choices)
    if spec.capacity is not None:
        assert 0 < (~notes["served"]).sum() < notes["served"].numel() / 2, "some tokens must find no place"


@every_mixture
def test_each_choice_with_its_own_matrices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiled step takes them; of more choices than it would do so for, some of which have no place."""
    monkeypatch.setattr(experts, "few_are_chosen", lambda *_: True)
    module, x = built(MIXTURES[name]), inputs()
    with torch.no_grad():
        close(module(x, context(), Store())[0], by_the_oracle(MIXTURES[name], module, x))
        rows, nobody = x[0, :2, : MIXTURES[name].latent or D], torch.tensor([[0, -1], [-1, 0]])
        given = rows, nobody, torch.tensor([[0.3, 0.7], [0.6, 0.4]])
        close(module.experts(*given, context()), module.experts(*given, context("loop")))


@every_mixture
def test_a_single_token_is_not_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a token is written: by the loop's numbers, in the products' dtype, also where a choice has no place."""
    module, x = built(MIXTURES[name]), inputs()
    row, last = x[0, :1, : MIXTURES[name].latent or D], MIXTURES[name].router.n_experts - 1
    shares = torch.tensor([[0.3, 0.7, 0.2]])
    given = [(row, torch.tensor([chosen]), shares[:, : len(chosen)]) for chosen in ([last], [last, 0], [-1, last, 0])]
    sorted_ = [module.experts(*each, context()) for each in given]
    monkeypatch.setattr(experts, "sorted_by_expert", None)
    with torch.no_grad():
        for each, expected in zip(given, sorted_, strict=True):
            close(module.experts(*each, context()), expected)
            close(module.experts(*each, context()), module.experts(*each, context("loop")))
        nobody = module.experts(row, torch.tensor([[-1, -1]]), shares[:, :2], context())
        assert torch.equal(nobody, torch.zeros_like(row))
        with torch.autocast("cpu", torch.bfloat16):
            half = module.experts(*given[1], context())
    assert half.dtype == torch.bfloat16
    assert 1e-4 < distance(half.float(), sorted_[1]) < 0.05


@every_mixture
def test_padding_takes_no_place_and_changes_nothing(name: str) -> None:
    spec = MIXTURES[name]
    module, x = built(spec), inputs()
    document = torch.ones(BATCH, N, dtype=torch.long)
    document[0, :5] = 0
    tokens = Tokens(torch.arange(N)[None].expand(BATCH, -1), document)
    with torch.no_grad():
        y, notes = module(x, ForwardContext(tokens, {}), Store())
        real = document.bool()
        close(y[real], by_the_oracle(spec, module, x, real.tolist())[real])
    assert torch.equal(notes["real"], real)


def test_an_expert_that_nobody_chose_gets_a_gradient_of_zero() -> None:
    module, x = built(MIXTURES["gpt-oss"]), inputs()
    with torch.no_grad():
        module.router.bias[3] = -1e4  # type: ignore[index]
    module(x, context(), Store())[0].sum().backward()
    for part in module.experts.parameters():
        assert part.grad is not None
        assert (part.grad[3] == 0).all()
        assert (part.grad[2] != 0).any()


@pytest.mark.parametrize("way", ["sorted", "traced"])
def test_what_is_frozen_gets_no_gradient_and_all_else_its_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = built(MIXTURES["gpt-oss"]), inputs().requires_grad_()
    if way == "traced":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    y, _ = module(x, context(), Store())
    whole, weight = gradients(module, x, y), torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    tensors = {name: p for name, p in module.named_parameters() if name.startswith("experts.")}
    assert len(tensors) == 6
    for frozen in tensors:
        tensors[frozen].requires_grad_(False)
        y, _ = module(x, context(), Store())
        learning = {name: p for name, p in tensors.items() if name != frozen}
        found = torch.autograd.grad((y * weight).sum(), list(learning.values()))
        for name, grad in zip(learning, found, strict=True):
            torch.testing.assert_close(grad, whole[name], rtol=1e-5, atol=1e-6)
        tensors[frozen].requires_grad_()
    for each in tensors.values():
        each.requires_grad_(False)

    def unwanted(*_: Any) -> Any:
        raise AssertionError("a gradient of experts is computed, which nobody asks for")

    for room in (experts, grouped):
        monkeypatch.setattr(room, "outer", unwanted)
    y, _ = module(x, context(), Store())
    (found,) = torch.autograd.grad((y * weight).sum(), x)
    torch.testing.assert_close(found, whole["x"], rtol=1e-5, atol=1e-6)


def test_dropout_inside_experts_has_the_gradient_of_what_was_computed() -> None:
    module, x = built(MIXTURES["Mixtral"]), inputs().requires_grad_()
    results = []
    for way in ("sorted", "sorted"):
        torch.manual_seed(3)
        y, _ = module(x, context(way, dropout=Dropout(activation=0.5)), Store())
        results.append((y, gradients(module, x, y)))
    assert torch.equal(results[0][0], results[1][0])
    plain, _ = module(x, context(), Store())
    assert distance(plain, results[0][0]) > 0.1
    # The result is linear in the last matrix, so its own gradient gives the result back.
    weight = torch.randn(plain.shape, generator=torch.Generator().manual_seed(5))
    down = module.experts.down.weight  # type: ignore[union-attr]
    back = (results[0][1]["experts.down.weight"] * down).sum()
    assert back.item() == pytest.approx((results[0][0] * weight).sum().item(), rel=1e-4)


def test_jitter_is_for_training_alone() -> None:
    module, x = built(MIXTURES["Switch"]), inputs()
    with torch.no_grad():
        plain = module(x, context(), Store())[1]["router_logits"]
        assert torch.equal(module(x, context(dropout=Dropout(residual=0.1)), Store())[1]["router_logits"], plain)
        noisy = module(x, context(dropout=Dropout(router_jitter=0.1)), Store())[1]["router_logits"]
    assert 0.001 < distance(noisy, plain) < 0.2


@pytest.mark.parametrize("name", ["Mixtral", "gpt-oss", "DeepSeek-V3"])
def test_bf16_autocast_is_the_loops(name: str) -> None:
    module, x = built(MIXTURES[name]), inputs().requires_grad_()
    found = []
    for options in ("sorted", "loop"):
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = module(x, context(options), Store())
        found.append((y.float(), gradients(module, x, y.float())))
    exact, _ = module(x, context(), Store())
    assert distance(found[0][0], exact) < 2 * distance(found[1][0], exact) + 0.01
    assert distance(found[0][0], exact) > 1e-4, "it must have been rounded to bfloat16"
    for key, wanted in found[1][1].items():
        assert distance(found[0][1][key], wanted) < 0.05, key


def test_what_a_token_uses_beside_identities() -> None:
    """Eight of twelve choices, where a third of 768 are identities (LongCat-Flash, arXiv:2509.01322, section 2.1.1)."""
    half = Place(d_model=D, shape=(D,))
    for top_k, n_experts, n_identity, n_used in ((12, 512, 256, 8), (4, 6, 3, 3), (1, 2, 30, 1), (5, 5, 0, 5)):
        spec = MoESpec(router=router(n_experts, top_k, n_identity=n_identity), expert=GATED)
        experts = 3 * 10 * D  # numbers of one
        assert spec.cost(half, Workload(batch=BATCH, query=N))["experts"] == 2 * BATCH * N * n_used * experts
        weights = [weight for _, weight in tensors(spec, half)]
        assert sum(weight.numel for weight in weights) == n_experts * experts + (n_experts + n_identity) * D
        assert sum(weight.active for weight in weights) == n_used * experts + (n_experts + n_identity) * D


@pytest.mark.parametrize("score", ["softmax", "softmax-of-chosen", "sigmoid"])
def test_shared_experts_that_are_scored_are_experts_that_all_choose(score: Any) -> None:
    """One mixture of all experts, whose router has a bias that has the last two chosen by every token."""
    choice = RouterSpec(
        n_experts=Count(4), top_k=2, n_shared=2, score=score, renormalise=score == "sigmoid", factor=3.0
    )
    all_choose = choice.but(n_experts=Count(6), top_k=4, n_shared=0, correction=True)
    expert, place = GatedFeedForwardSpec(d_ff=Width(6), activation=SiLU()), Place(d_model=8).at(8)
    ours, whole = (MoESpec(router=router, expert=expert).build(place) for router in (choice, all_choose))
    for weight in ours.parameters():
        torch.nn.init.normal_(weight)
    held = ours.state_dict()
    joined = {f"experts.{x}.weight" for x in ("gate", "up", "down")}
    found = {name: torch.cat((held[name], held[name.replace("experts", "scored")])) for name in joined}
    correction = torch.tensor([0.0] * 4 + [100.0] * 2)
    whole.load_state_dict({"router.weight": held["router.weight"], "router.correction": correction, **found})
    x, context = torch.randn(2, 9, 8), ForwardContext(plain_tokens(9, torch.device("cpu")), {})
    (y, notes), (expected, _) = (mixture(x, context, Store()) for mixture in (ours, whole))
    close(y, expected)
    assert notes["chosen"].shape == (2, 9, 2)
    assert notes["router_logits"].shape == (2, 9, 4)
