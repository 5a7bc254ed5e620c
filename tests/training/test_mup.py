"""μP: one learning rate for every width. What starts and learns how fast follows Yang et al. 2022, table 8."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.descriptions import as_variant
from anyformer.layers import LinearSpec
from anyformer.model import build
from anyformer.recipe import Adafactor, AdamW, Constant, Lion, Muon, OptimizerSpec, Warmup
from anyformer.spec import ModelSpec, TableSpec, Vocab, Width
from anyformer.training.step.optimizer import optimizer_of, ways_of
from tests.training.test_step import batch, recipe, trainer

WIDTHS = (64, 128, 256)
STEPS, RATE = 4, 0.01
ADAM = AdamW(lr=RATE, weight_decay=0.0)


def llama(width: int, init: str = "MuP(base=64)") -> ModelSpec:
    """Two layers with heads of 16, as wide as asked."""
    heads = f"n_heads={width // 16}+attention=GQA(n_kv_heads={width // 16})"
    return af.load_spec(f"llama2-7b+n_layers=2+vocab_size=97+d_model={width}+{heads}+d_ff={2 * width}+init={init}")


def test_matrices_learn_slower_the_wider_they_are() -> None:
    spec = llama(256)
    model = build(spec)
    optimizer = optimizer_of(AdamW(lr=RATE, weight_decay=0.1), model, ways_of(model))
    names = {parameter: name for name, parameter in model.named_parameters()}
    rates = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, rate in rates.items():
        slow = name.startswith("stack.blocks") and "norm" not in name
        assert rate == pytest.approx(RATE * (64 / 256 if slow else 1)), name
    assert {RATE, RATE / 4} == set(rates.values())
    for group in optimizer.param_groups:  # what decays in a step is the same at every width
        assert group["lr"] * group["weight_decay"] in (0, pytest.approx(RATE * 0.1))


def test_a_step_is_taken_at_these_rates() -> None:
    rates = {"optimizer": AdamW(lr=RATE), "schedule": (Warmup(steps=2), Constant())}
    ours = trainer(recipe(**rates), llama(256))
    for step, rate in ((1, RATE / 2), (2, RATE), (3, RATE)):
        assert ours.step(step, batch()).lr == rate
        assert {group["lr"] for group in ours.optimizer.param_groups} == {rate, rate / 4}


def test_starts_are_as_in_table_8() -> None:
    model = build(llama(512))
    blocks = model.stack.blocks
    for weight in (blocks[0].get_parameter(name) for name, p in blocks[0].named_parameters() if p.dim() == 2):
        assert weight.std().item() == pytest.approx(weight.shape[-1] ** -0.5, rel=0.05)
    table = model.get_parameter("stack.embedding.terms.0.table.weight")
    assert table.std().item() == pytest.approx(0.02, rel=0.05)


def test_at_the_base_width_nothing_differs() -> None:
    plain = llama(64, "ByRole(matrix=Normal(scale=1.0,fan_in_power=-0.5))")
    ids = torch.randint(97, (4, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(build(plain, seed=1)(ids).logits, build(llama(64), seed=1)(ids).logits)


def narrowing(width: int, init: str = "MuP(base=64)") -> ModelSpec:
    """The same with a head that makes vectors of 16 features before it asks a table of that width, as ALBERT's."""
    spec = llama(width, "ByRole")
    (head,) = spec.heads
    narrow = head.but(transform=(LinearSpec(d_out=Width(16)),), table=TableSpec(rows=Vocab(97)))
    return af.vary(spec.but(heads=(narrow,)), init=init)


def slope(
    init: str, of: Callable[[int, str], ModelSpec] = llama, by: OptimizerSpec = ADAM, maps_alone: bool = False
) -> float:
    """How the change of logits in a few steps grows with the width, as a power of it; of all weights, or of maps alone."""
    ids = torch.randint(97, (8, 32), generator=torch.Generator().manual_seed(0))
    moved = []
    for width in WIDTHS:
        spec = of(width, init)
        model = build(spec, seed=0)
        optimizer = optimizer_of(by, model, ways_of(model))
        if maps_alone:
            for parameter, way in ways_of(model).items():
                parameter.requires_grad_(way.is_map)
        before = model(ids).logits.detach()
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
        moved.append((model(ids).logits.detach() - before).square().mean().sqrt().item())
    xs, ys = [math.log(width) for width in WIDTHS], [math.log(each) for each in moved]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return rise / sum((x - mean_x) ** 2 for x in xs)


def test_coordinates_move_alike_at_every_width() -> None:
    """The coordinate check (section D.1): under μP the power is 0 as widths grow, otherwise a half or more."""
    assert abs(slope("MuP(base=64)")) < 0.3
    assert slope("ByRole(matrix=Normal(scale=1.0,fan_in_power=-0.5))") > 0.5


def test_logits_of_a_table_that_keeps_its_width_move_alike_too() -> None:
    """Its multiplier follows its own fan-in (table 8, output weights): what narrows learns slower, the table does not."""
    assert abs(slope("MuP(base=64)", narrowing)) < 0.3
    assert slope("ByRole(matrix=Normal(scale=1.0,fan_in_power=-0.5))", narrowing) > 0.5
    starts = [build(narrowing(width), seed=0)(torch.arange(97)[None]).logits.std().item() for width in WIDTHS]
    assert max(starts) < 1.3 * min(starts)


@pytest.mark.parametrize(
    "rule", [Muon(lr=RATE, weight_decay=0.0), Adafactor(lr=RATE), Lion(lr=RATE / 4, weight_decay=0.0)]
)
def test_what_maps_write_moves_alike_by_each_rule(rule: OptimizerSpec) -> None:
    """As by Adam, of which table 8 speaks: steps of Muon's and Adafactor's matrices grow with the root of the width, and less is
    taken off them."""
    of_adam = slope("MuP(base=64)", by=ADAM, maps_alone=True)
    assert slope("MuP(base=64)", by=rule, maps_alone=True) == pytest.approx(of_adam, abs=0.2)
    assert slope("ByRole(matrix=Normal(scale=1.0,fan_in_power=-0.5))", by=rule, maps_alone=True) > of_adam + 0.5


def test_the_start_brings_what_goes_with_it() -> None:
    plain, mup = llama(128, "ByRole"), llama(128)
    (head,) = mup.heads
    assert head.scale is not None
    assert head.scale.value(128) == 0.5
    assert af.load_spec(as_variant(plain, mup, names=("gpt2", "")).replace("gpt2", "llama2-7b", 1)).init == mup.init


def best_rate(width: int, init: str) -> int:
    """The power of two, of the learning rate, after which a language of one's own costs the least."""
    spec = llama(width, init)
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(97, (97, 4), generator=generator)  # after each token one of four
    ids = torch.zeros(512, 33, dtype=torch.long)
    ids[:, 0] = torch.randint(97, (512,), generator=generator)
    for t in range(32):
        ids[:, t + 1] = table[ids[:, t], torch.randint(4, (512,), generator=generator)]
    losses = {}
    for power in range(-12, -2):
        model = build(spec, seed=0)
        optimizer = optimizer_of(AdamW(lr=2.0**power, weight_decay=0.0), model, ways_of(model))
        for rows in ids.split(8):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses[power] = losses.get(power, loss.item()) * 0.9 + loss.item() * 0.1
    return min(losses, key=losses.__getitem__)


@pytest.mark.slow
def test_the_best_rate_stands_still() -> None:
    """Four widths, ten rates, two factors of two apart at most; without μP it falls by about as much as the width grows."""
    mup = [best_rate(width, "MuP(base=64)") for width in (32, 64, 128, 256)]
    plain = [best_rate(width, "ByRole(matrix=Normal(scale=1.0,fan_in_power=-0.5))") for width in (32, 64, 128, 256)]
    assert max(mup) - min(mup) <= 1, mup
    assert plain[0] - plain[-1] >= 2, plain
