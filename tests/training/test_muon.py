"""Muon against its polynomial on singular values, against PyTorch's, and written out step by step in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import UsageError
from anyformer.families import preset
from anyformer.model import build
from anyformer.recipe import Adam, AdamW, Constant, Muon, Recipe, Warmup
from anyformer.resizing import shrink
from anyformer.spec import parameters
from anyformer.training.chosen_recipe import changed
from anyformer.training.run import Job, Run, train
from anyformer.training.step.muon import MuonAdam, orthogonal
from anyformer.training.step.optimizer import kept_nbytes, optimizer_of, ways_of
from tests.laws.tolerance import in_float64
from tests.training.crashing import hexadecimal, resumed
from tests.training.models import decoder
from tests.training.test_run import HOW, RECIPE, SPEC, text_data
from tests.training.test_step import batch, recipe, trainer

SHAPES = [(5, 9), (9, 5), (6, 6), (1, 4), (3, 4, 7), (2, 3, 8, 4)]


def by_singular_values(matrices: Tensor, iterations: int = 5) -> Tensor:
    """The polynomial of Jordan's post, 3.4445 s - 4.7750 s³ + 2.0315 s⁵, of each singular value by itself."""
    u, s, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt()
    for _ in range(iterations):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s[..., None, :] @ v


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_become_about_1(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = orthogonal(x, 5)
    torch.testing.assert_close(found, by_singular_values(x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, orthogonal(1e-3 * x, 5), rtol=1e-9, atol=1e-9)
    well = x @ x.mT + torch.eye(shape[-2], dtype=torch.float64)
    assert torch.linalg.svdvals(orthogonal(well, 8)).sub(0.95).abs().max() < 0.3
    assert orthogonal(torch.zeros(3, 4), 5).eq(0).all()


def test_steps_are_pytorchs() -> None:
    """Its Muon multiplies in bfloat16; the momentum, the size of a step and decay are all the same."""
    start, lr = torch.randn(24, 16, generator=torch.Generator().manual_seed(0)), 0.02
    mine, theirs = (start.clone().requires_grad_() for _ in range(2))
    how: dict[str, Any] = {"momentum": 0.9, "iterations": 5, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}
    ours = MuonAdam([{"params": [mine], "lr": lr, "weight_decay": 0.3}], {mine: 1.0}, **how)
    other = torch.optim.Muon([theirs], lr, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    for step in range(1, 6):
        grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
        mine.grad, theirs.grad = grad.clone(), grad.clone()
        ours.step()
        other.step()
        assert mine.grad is not None
        assert torch.equal(mine.grad, grad), "what was given stays to be read"
    moved = (theirs - start).detach()
    assert (mine - theirs).detach().norm() < 0.02 * moved.norm()


@in_float64()
def test_steps_equal_muon_by_hand() -> None:
    """Of matrices by singular values, of all else AdamW; clipped and warmed up as by any rule."""
    spec, rule = decoder(tied=False), Muon(lr=0.02, weight_decay=0.3, momentum=0.9)
    ours = trainer(recipe(optimizer=rule, clip=0.5, schedule=(Warmup(steps=2), Constant())), spec)
    weights = {name: p.detach().double().clone() for name, p in ours.model.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in weights.items()}
    momentum, first, second = dict(zeros), dict(zeros), dict(zeros)
    reference = build(spec, seed=1)
    maps = {name for name in weights if name.endswith(".weight") and ("projection" in name or "mixer" in name)}
    assert len(maps) == 6 * spec.n_layers or len(maps) == 7 * spec.n_layers
    for t in range(1, 5):
        rows = batch(seed=t)
        reference.load_state_dict(weights)
        reference.zero_grad()
        logits = reference(torch.from_numpy(rows.input_ids)).logits.flatten(0, 1)
        F.cross_entropy(logits, torch.from_numpy(rows.labels).flatten()).backward()
        grads = {name: p.grad.double() for name, p in reference.named_parameters() if p.grad is not None}
        norm = float(torch.cat([g.flatten() for g in grads.values()]).norm())
        ours.step(t, rows)
        lr = 0.02 * min(1.0, t / 2)
        for name, g in grads.items():
            g = g * min(1.0, 0.5 / norm)
            if name in maps:
                momentum[name] = 0.9 * momentum[name] + g
                size = 0.2 * max(g.shape) ** 0.5
                step = size * by_singular_values(g + 0.9 * momentum[name])
            else:
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.95 * second[name] + 0.05 * g**2
                step = first[name] / (1 - 0.9**t) / ((second[name] / (1 - 0.95**t)).sqrt() + 1e-8)
            weights[name] = weights[name] * (1 - lr * (0.3 if name in maps else 0.0)) - lr * step
    # Clipping divides by the norm + 1e-6: 2e-9 here, where float32 loses 4e-8.
    for name, p in ours.model.named_parameters():
        torch.testing.assert_close(p.detach().double(), weights[name], rtol=0, atol=1e-8)
    state = ours.optimizer.state
    held = {name for name, p in ours.model.named_parameters() if "momentum" in state[p]}
    assert held == maps
    assert all(set(state[p]) == {"step", "momentum"} for name, p in ours.model.named_parameters() if name in maps)


def test_which_matrices() -> None:
    spec = shrink(preset("mixtral-8x7b").spec)
    model = build(spec)
    named: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    found = {named[p] for p, way in ways_of(model).items() if way.is_map}
    assert {name.split(".", 3)[-1] for name in found if name.startswith("stack.blocks.0.")} == {
        *(f"sublayers.0.branches.0.mixer.projection.{each}.weight" for each in "qkvo"),
        *(f"sublayers.1.branches.0.mixer.experts.{each}.weight" for each in ("gate", "up", "down")),
    }
    assert len(found) == 7 * spec.n_layers, "no router, no table, no head"


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    given = RECIPE.but(optimizer=Muon(lr=0.01))
    whole = train(SPEC, given, text_data(), options=HOW)
    assert hexadecimal(whole) != hexadecimal(train(SPEC, RECIPE, text_data(), options=HOW))
    again = resumed(13, SPEC, given, text_data(), out=tmp_path / "run", options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)
    longer = train(SPEC, given.but(tokens=64 * 150, schedule=(Constant(),)), text_data(), options=HOW)
    assert longer.evaluation is not None
    assert longer.evaluation.loss < longer.steps[0].loss - 0.5


def test_room_is_needed_for_one_number_of_a_matrix(tmp_path: Path) -> None:
    """A checkpoint's bytes are those that are written; what must be free before a run is less by as much."""
    model = build(SPEC)
    n, of_maps = parameters(SPEC).total, sum(p.numel() for p, way in ways_of(model).items() if way.is_map)
    saved: dict[str, int] = {}
    for rule, kept in ((AdamW(), 8 * n), (Muon(), 8 * n - 4 * of_maps)):
        assert kept_nbytes(SPEC, rule) == kept
        given = RECIPE.but(optimizer=rule)
        out = tmp_path / rule.kind
        saved[rule.kind] = Run(Job(SPEC, given, text_data(), out), HOW).plan().disk_nbytes
        assert saved[rule.kind] == (HOW.keep_last + 2) * (4 * n + kept)
        train(SPEC, given, text_data(), out=out, options=HOW)
        (latest, *_) = sorted((out / "checkpoints").iterdir(), reverse=True)
        held = load_file(latest / "optimizer.safetensors").values()
        assert sum(each.nbytes for each in held if each.dim()) == kept
    assert saved["Muon"] < 0.85 * saved["AdamW"]


def test_named_on_the_way() -> None:
    """What both rules have stays as the recipe has it."""
    given = Recipe(optimizer=AdamW(lr=0.3, beta2=0.9, weight_decay=0.7))
    assert changed(given, {"optimizer": "muon"}).optimizer == Muon(lr=0.3, beta2=0.9, weight_decay=0.7)
    assert changed(given, {"optimizer": "adam"}, lr=0.1).optimizer == Adam(lr=0.1, beta2=0.9)
    with pytest.raises(UsageError, match=r"there is no optimizer 'moun' .did you mean 'muon'"):
        changed(given, {"optimizer": "moun"})
    model = build(decoder())
    assert isinstance(optimizer_of(Muon(), model, ways_of(model)), MuonAdam)
