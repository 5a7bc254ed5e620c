"""The law of a model that several ranks share: what they compute of it adds up to the whole, loss and every gradient.

The ranks are threads here (`simulated`), so that every preset can be asked; over gloo see `test_tensor_parallel`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.model import Transformer, build
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.training.cluster.meeting import meet
from anyformer.training.cluster.narrowing import Cut, cuts, narrowed
from anyformer.training.step import Trainer
from tests.training.cluster.simulated import Simulated, together
from tests.training.cluster.steps import batch_for, recipe_for, trainer_for
from anyformer.training.cluster.world import ALONE

FAST = ("llama3-8b", "gpt-oss-20b", "t5-base", "bloom-560m", "deberta-v3-base-generator", "falcon-7b")
LOSS, GRADIENT = 1e-5, 1e-5


def part_of(tensor: Tensor, cut: Cut | None) -> Tensor:
    return tensor if cut is None else tensor.narrow(cut.dim, cut.start, cut.length)


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


def check(spec: ModelSpec, ranks: int, **changes: object) -> None:
    recipe = recipe_for(spec, clip=None, **changes)
    whole = trainer_for(spec, recipe, ALONE)
    batch = batch_for(spec, 1)
    weights = {name: p.detach().clone() for name, p in whole.model.named_parameters()}

    def one(here: Simulated) -> tuple[float, dict[str, Tensor], object]:
        narrow = narrowed(spec, here.rank, ranks)
        cut = cuts(spec, narrow, here.rank, ranks)
        model = build(narrow, None)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(part_of(weights[name], cut[name]))
        partial = meet(model, cut, spec.vocab_size, here)
        trainer = Trainer(model, recipe, type(whole.objective)(recipe.objective, spec))
        result = trainer.gradients(1, batch)
        for module, last in sorted(partial, key=lambda owned: str(names(model)[owned])):
            p = getattr(module, last)
            if p.requires_grad and not (cut[names(model)[module, last]] or Cut(0, 0, 0, False)).shared:
                p.grad = here.reduce(torch.zeros_like(p) if p.grad is None else p.grad)
        return result.loss, gradients(trainer), (result.load and result.load.numbers().tolist(), result.router_loss)

    found = together(ranks, one)
    wanted = whole.gradients(1, batch)
    grads = gradients(whole)
    largest = max(float(g.abs().max()) for g in grads.values())
    for rank, (loss, mine, noted) in enumerate(found):
        assert loss == pytest.approx(wanted.loss, rel=LOSS)
        assert noted[0] == (wanted.load and wanted.load.numbers().tolist())
        assert noted[1] == (None if wanted.router_loss is None else pytest.approx(wanted.router_loss, rel=LOSS))
        cut = cuts(spec, narrowed(spec, rank, ranks), rank, ranks)
        far = {}
        for name, gradient in grads.items():
            if cut[name] is not None and cut[name].shared:  # added up over those that have it
                continue
            one_ = part_of(gradient, cut[name])
            error = float((mine.get(name, torch.zeros_like(one_)) - one_).abs().max())
            if error > GRADIENT * float(gradient.abs().max()) + 1e-6 * largest:
                far[name] = error / float(gradient.abs().max())
        assert far == {}


def names(model: Transformer) -> dict[tuple[torch.nn.Module, str], str]:
    found = {}
    for name, _ in model.named_parameters():
        owner, _, last = name.rpartition(".")
        found[model.get_submodule(owner), last] = name
    return found


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PRESETS])
def test_ranks_add_up_to_the_whole(name: str) -> None:
    spec = shrink(PRESETS[name].spec)
    try:
        narrowed(spec, 0, 2)
    except SpecError as error:
        assert "tp = 2" in str(error)
        return
    check(spec, 2)
