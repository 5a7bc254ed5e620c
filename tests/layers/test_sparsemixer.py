"""SparseMixer in training: transformers' draws, weights and gradients; the frequencies and the integral of the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.phimoe import modeling_phimoe as theirs

from anyformer.layers import RouterSpec
from anyformer.layers.context import Dropout, ForwardContext
from anyformer.layers.router import Router
from anyformer.layers.tokens import plain_tokens
from anyformer.model import build
from anyformer.recipe import Constant, Recipe
from anyformer.spec import Count, Place
from anyformer.training.run import RunOptions, train
from tests.laws.tolerance import close
from tests.laws.weights import edited
from tests.training.crashing import hexadecimal, resumed
from tests.training.test_routing import batch, mixture, recipe, trainer
from tests.training.texts import text_data

EXPERTS, TOLERANCE = 6, 0.3
SPEC = edited(
    mixture(),
    RouterSpec,
    lambda old: RouterSpec(n_experts=old.n_experts, top_k=old.top_k, score="sparsemixer", tolerance=TOLERANCE),
)
RECIPE = Recipe(tokens=64 * 40, batch_tokens=64, seq_len=16, schedule=(Constant(),))


def router(top_k: int = 2, tolerance: float = TOLERANCE, n_experts: int = EXPERTS) -> Router:
    spec = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="sparsemixer", tolerance=tolerance)
    return spec.build(Place(d_model=4, shape=(4,)))


def scattered(n: int) -> Tensor:
    return torch.randn(n, EXPERTS, generator=torch.Generator().manual_seed(3)).requires_grad_()


def test_draws_weights_and_gradients_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs writes a third as 0.3333, and draws the second expert's uniform numbers twice, the first time for nothing."""
    calls = []

    def uniform(like: Tensor) -> Tensor:
        calls.append(like)
        fresh = torch.empty_like(like)
        return fresh.uniform_() if len(calls) == 1 else fresh  # the second call's result is drawn by its caller

    monkeypatch.setattr(theirs.torch, "rand_like", uniform)
    wanted = scattered(400)
    torch.manual_seed(5)
    expected, chosen = theirs.sparsemixer(wanted, TOLERANCE, training=True)
    monkeypatch.undo()
    logits = scattered(400)
    torch.manual_seed(5)
    found = router().choose(logits, training=True)
    assert torch.equal(found.chosen, chosen)
    whole = router().choose(scattered(400), training=False).chosen
    assert 0.2 < (whole != chosen).float().mean() < 0.8, "many draws must be another expert than the best"
    ratio = expected / found.weights
    third = (ratio - 1).abs() > 5e-5
    assert 0.1 < third.float().mean() < 0.6
    close(ratio[third], torch.full_like(ratio[third], 3 * 0.3333))
    close(ratio[~third], torch.ones_like(ratio[~third]))
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(6))
    (expected * weight).sum().backward()
    (found.weights * weight).sum().backward()
    assert wanted.grad is not None
    assert logits.grad is not None
    close(logits.grad, wanted.grad)


def test_experts_are_drawn_by_the_softmax_of_those_near_the_best() -> None:
    n = 40_000
    logits = torch.tensor([1.0, 0.9, 0.7, 0.3, -1.0, 0.95]).expand(n, -1)
    torch.manual_seed(0)
    chosen = router(top_k=1).choose(logits, training=True).chosen
    near = torch.tensor([0, 1, 2, 5])  # within 2 · 0.3 of 1.0
    expected = torch.zeros(EXPERTS)
    expected[near] = logits[0, near].softmax(0)
    share = torch.bincount(chosen.flatten(), minlength=EXPERTS) / n
    assert ((share - expected).abs() <= 4 * (expected * (1 - expected) / n).sqrt()).all()


def test_the_slopes_add_up_to_the_integral_of_a_cubic() -> None:
    """Heun's third-order method is exact for it: f(w) - f(0) is w times the mean slope at the points that are drawn."""
    n = 400_000
    logits = torch.tensor([1.0, 0.8], dtype=torch.float64).repeat(n, 1).requires_grad_()
    torch.manual_seed(1)
    found = router(top_k=1, n_experts=2).choose(logits, training=True)
    other = found.chosen[:, 0] == 1  # the best is always taken whole
    y = found.weights[other, 0]
    w = torch.tensor([1.0, 0.8], dtype=torch.float64).softmax(0)[1].item()
    f = lambda y: 0.5 * y - 2 * y**2 + 3 * y**3  # noqa: E731
    f(y).sum().backward()
    assert logits.grad is not None
    slopes = logits.grad[other, 1] / (w * (1 - w))  # of the weight by the logit
    error = slopes.std().item() / len(slopes) ** 0.5
    assert abs(slopes.mean().item() - f(w) / w) < 4 * error < 0.05 * abs(f(w) / w)
    best = found.weights[~other, 0].detach()
    assert torch.equal(best, best[:1].expand_as(best))


def test_only_training_draws() -> None:
    model, ids = build(SPEC, seed=1), torch.zeros(2, 5, dtype=torch.long)
    before = torch.random.get_rng_state()
    model(ids)
    assert torch.equal(before, torch.random.get_rng_state())
    model(ids, dropout=Dropout())
    assert not torch.equal(before, torch.random.get_rng_state())


def test_a_step_draws_from_its_own_number() -> None:
    """Two trainers agree, in parts or not alike; another step draws otherwise."""
    rows, first, second = batch(), trainer(recipe(), SPEC), trainer(recipe(), SPEC)
    gradients = []
    for of, number in ((first, 1), (second, 1), (second, 2)):
        of.gradients(number, rows)
        gradients.append(torch.cat([p.grad.flatten() for p in of.parameters if p.grad is not None]))
        of.optimizer.zero_grad()
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_a_compiler_follows() -> None:
    torch.compiler.reset()
    module, x = router(), torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
    context = ForwardContext(plain_tokens(30, x.device), {}, dropout=Dropout())
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found = []
    for each in (module, compiled):
        torch.manual_seed(2)
        found.append(each(x, context))
    assert torch.equal(found[0].chosen, found[1].chosen)
    close(found[1].weights, found[0].weights)


def test_a_run_goes_on_exactly_and_learns(tmp_path: Path) -> None:
    options = RunOptions(device=torch.device("cpu"), save_every=5, validations=2)
    whole = train(SPEC, RECIPE, text_data(), options=options)
    again = resumed(12, SPEC, RECIPE, text_data(), out=tmp_path / "run", options=options)
    assert hexadecimal(again) == hexadecimal(whole)
    other = train(SPEC, RECIPE.but(seed=1), text_data(), options=options)
    assert hexadecimal(other) != hexadecimal(whole)
    assert whole.evaluation is not None
    assert whole.evaluation.loss < whole.steps[0].loss - 0.1
