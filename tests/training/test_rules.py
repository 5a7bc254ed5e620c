"""Lion written out step by step, Adafactor against PyTorch's, and what both keep; a rule of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import anyformer as af
from anyformer.errors import UsageError
from anyformer.model import build
from anyformer.recipe import Adafactor, AdamW, Constant, Lion, Muon, OptimizerSpec, Recipe
from anyformer.resizing import shrink
from anyformer.spec import Place, tensors
from anyformer.training.chosen_recipe import changed
from anyformer.training.run import Job, Run, train
from anyformer.training.step.adafactor import FactoredAdam
from anyformer.training.step.optimizer import kept_nbytes, optimizer_of, ways_of
from anyformer.training.step.rules import Groups, Ways, torch_optimizer
from tests.training.crashing import hexadecimal, resumed
from tests.training.test_run import HOW, RECIPE, SPEC, text_data

STEPS, SHAPES = 6, [(5, 9), (9, 5), (1, 4), (7,), (3, 4, 7)]


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lion_is_the_program_of_its_paper() -> None:
    """Of matrices, which decay, and of tables and gains, which do not."""
    rule, lr = Lion(lr=0.01, beta1=0.8, beta2=0.95, weight_decay=0.5), 0.01
    model = build(shrink(af.preset("gpt2").spec), seed=0).double()
    matrices = {name for name, weight in tensors(model.spec, Place()) if weight.role not in ("bias", "gain", "table")}
    mine = optimizer_of(rule, model, ways_of(model))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    momentum = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(1, STEPS + 1):
        for i, (name, p) in enumerate(model.named_parameters()):
            grad = drawn(tuple(p.shape), 1000 * step + i)
            p.grad = grad.clone()
            update = torch.sign(0.8 * momentum[name] + 0.2 * grad) + (0.5 * weights[name] if name in matrices else 0.0)
            weights[name] = weights[name] - lr * update
            momentum[name] = 0.95 * momentum[name] + 0.05 * grad
        mine.step()
    assert 0 < len(matrices) < len(weights)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), weights[name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [0.3, 1e-5], ids=["of its size", "below the least"])
@pytest.mark.parametrize("threshold", [1.0, 1.5])
def test_adafactor_is_pytorchs(shape: tuple[int, ...], size: float, threshold: float) -> None:
    lr, decay = 0.02, 0.3
    mine, theirs = (nn.Parameter(size * drawn(shape, 0)) for _ in range(2))
    groups = [{"params": [mine], "lr": lr, "weight_decay": decay}]
    ours = FactoredAdam(groups, {mine: 1.0}, power=0.8, threshold=threshold, eps=(1e-30, 1e-3))
    other = torch.optim.Adafactor([theirs], lr, -0.8, (1e-30, 1e-3), threshold, decay)  # its rate is 1/√step at most
    for step in range(1, STEPS + 1):
        mine.grad, theirs.grad = (drawn(shape, step) * 10.0 ** (step % 3) for _ in range(2))
        ours.step()
        other.step()
    assert (mine - size * drawn(shape, 0)).abs().max() > 1e-5
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rule", [Lion(lr=1e-3), Adafactor(lr=0.03)], ids=lambda rule: rule.kind)
def test_a_run_learns_and_goes_on_bit_for_bit(tmp_path: Path, rule: OptimizerSpec) -> None:
    given = RECIPE.but(optimizer=rule)
    whole = train(SPEC, given, text_data(), options=HOW)
    again = resumed(13, SPEC, given, text_data(), out=tmp_path / "run", options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)
    longer = train(SPEC, given.but(tokens=64 * 150, schedule=(Constant(),)), text_data(), options=HOW)
    assert longer.evaluation is not None
    assert longer.evaluation.loss < longer.steps[0].loss - 0.5


@pytest.mark.parametrize("rule", [Lion(), Adafactor()], ids=lambda rule: rule.kind)
def test_room_is_needed_for_what_is_kept(tmp_path: Path, rule: OptimizerSpec) -> None:
    shapes = [tuple(p.shape) for p in build(SPEC).parameters()]
    numbers: dict[str, Callable[[tuple[int, ...]], int]] = {
        "Lion": lambda shape: int(torch.Size(shape).numel()),
        "Adafactor": lambda shape: int(torch.Size(shape).numel()) if len(shape) == 1 else shape[0] + shape[1],
    }
    kept = 4 * sum(map(numbers[rule.kind], shapes))
    assert max(map(len, shapes)) == 2
    assert kept_nbytes(SPEC, rule) == kept
    given, out = RECIPE.but(optimizer=rule), tmp_path / "run"
    n = sum(int(torch.Size(shape).numel()) for shape in shapes)
    assert Run(Job(SPEC, given, text_data(), out), HOW).plan().disk_nbytes == (HOW.keep_last + 2) * (4 * n + kept)
    train(SPEC, given, text_data(), out=out, options=HOW)
    (latest, *_) = sorted((out / "checkpoints").iterdir(), reverse=True)
    held = load_file(latest / "optimizer.safetensors").values()
    assert sum(each.nbytes for each in held if each.dim()) == kept


def test_what_was_chosen_goes_along() -> None:
    """Where it means the same by both: a rate, decay, Adam's betas; what was not is as the other rule has it."""
    assert changed(Recipe(), {"optimizer": "lion"}).optimizer == Lion()
    assert changed(Recipe(), {"optimizer": "adafactor"}, lr=0.1).optimizer == Adafactor(lr=0.1)
    given = Recipe(optimizer=AdamW(lr=0.3, beta2=0.9, weight_decay=0.7))
    assert changed(given, {"optimizer": "lion"}).optimizer == Lion(lr=0.3, weight_decay=0.7)


@pytest.mark.parametrize("rule", [Lion(), Adafactor(), Muon()], ids=lambda rule: rule.kind)
def test_a_closure_makes_the_gradient(rule: OptimizerSpec) -> None:
    """As PyTorch's own take one."""
    model, ids = build(SPEC, seed=0), torch.arange(8)[None]
    optimizer, before = optimizer_of(rule, model, ways_of(model)), [p.detach().clone() for p in model.parameters()]

    def loss() -> float:
        found = model(ids).logits.square().mean()
        found.backward()
        return found.item()

    first = model(ids).logits.square().mean().item()
    assert optimizer.step(loss) == first
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Descent(OptimizerSpec):
    """A rule of one's own, which keeps nothing."""

    def numbers_kept(self, shape: Any, is_map: bool) -> int:
        return 0


def test_a_rule_of_ones_own(tmp_path: Path) -> None:
    given = RECIPE.but(optimizer=Descent(lr=0.1), clip=None, schedule=(Constant(),))
    with pytest.raises(UsageError, match=r"Descent has no implementation; there are adam, .*register"):
        train(SPEC, given, text_data(), options=HOW)

    @torch_optimizer.register
    def _(rule: Descent, groups: Groups, ways: Ways) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups)

    whole = train(SPEC, given, text_data(), options=HOW)
    again = resumed(13, SPEC, given, text_data(), out=tmp_path / "run", options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)
    assert whole.steps[-1].loss < whole.steps[0].loss - 0.1
