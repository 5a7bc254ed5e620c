"""Training of routers: losses beside transformers' and by hand, corrections, loads, and a run that goes on exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func

from anyformer import layers
from anyformer.errors import SpecError, UsageError
from anyformer.families.compose import edited
from anyformer.model import build
from anyformer.recipe import (
    AdamW,
    CausalLM,
    Constant,
    LoadBalance,
    Recipe,
    RouterTraining,
    RouterZLoss,
    SequenceBalance,
    dumps,
    loads,
)
from anyformer.spec import Count, ModelSpec, Width
from anyformer.text import NOT_PREDICTED, Batch
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.checks import check_run
from anyformer.training.step import Trainer
from anyformer.training.step.routing import ExpertLoad, Routed, routers_of
from tests.training.models import VOCAB, decoder
from tests.training.texts import text_data

ROWS, LENGTH, EXPERTS, TOP_K = 6, 10, 6, 2


def mixture(score: Any = "softmax", capacity: layers.CapacitySpec | None = None, n_identity: int = 0) -> ModelSpec:
    """Two layers with experts."""
    dense = decoder()
    attend, feed = dense.stack.blocks[0].sublayers
    router = layers.RouterSpec(
        n_experts=Count(EXPERTS),
        top_k=TOP_K,
        n_identity=n_identity,
        score=score,
        correction=score == "sigmoid",
        renormalise=True,  # type: ignore[arg-type]
    )
    expert = layers.GatedFeedForwardSpec(d_ff=Width(12), activation=layers.SiLU())
    sparse = feed.branches[0].but(mixer=layers.MoESpec(router=router, expert=expert, capacity=capacity))
    block = dense.stack.blocks[0].but(sublayers=(attend, feed.but(branches=(sparse,))))
    return dense.but(stack=dense.stack.but(blocks=(block, block)))


def recipe(*losses: Any, **changes: Any) -> Recipe:
    plain = Recipe(tokens=ROWS * LENGTH * 50, batch_tokens=ROWS * LENGTH, seq_len=LENGTH, schedule=(Constant(),))
    training = {name: changes.pop(name) for name in ("jitter", "correction_speed") if name in changes}
    return plain.but(router=RouterTraining(losses=losses, **training), **changes)


def batch(seed: int = 0, padded: bool = True) -> Batch:
    rng = np.random.default_rng(seed)
    ids, labels = (rng.integers(0, VOCAB, (ROWS, LENGTH)) for _ in range(2))
    document = np.ones_like(ids)
    if padded:
        for row, kept in enumerate((10, 3, 10, 7, 10, 10)):
            document[row, kept:], labels[row, kept:] = 0, NOT_PREDICTED
    return Batch(ids, labels, document, np.tile(np.arange(LENGTH), (ROWS, 1)), document - 1)


def trainer(given: Recipe, spec: ModelSpec | None = None, micro_tokens: int | None = None) -> Trainer:
    model = build(spec or mixture(), seed=1)
    with torch.no_grad():
        # What all tokens have in common makes some experts everybody's.
        dict(model.named_parameters())["shared.tokens.weight"].add_(0.02)
        for router in routers_of(model):
            router.weight.mul_(40)
    return Trainer(model, given, objective_of(CausalLM(), model.spec), micro_tokens=micro_tokens)


def routed(of: Trainer, rows: Batch) -> tuple[Routed, list[dict[str, Tensor]]]:
    notes = of.losses(rows).notes
    return Routed(of.mixtures, notes), [note for note in notes if "chosen" in note]


def test_balance_over_all_layers_is_transformers() -> None:
    ours, rows = trainer(recipe()), batch()
    calls, notes = routed(ours, rows)
    loss = calls.loss([LoadBalance(weight=0.02)], calls.load())
    logits: Any = tuple(note["router_logits"].flatten(0, 1) for note in notes)
    theirs: Any = load_balancing_loss_func(logits, EXPERTS, TOP_K, torch.from_numpy(rows.document))
    assert loss.item() == pytest.approx(0.02 * theirs.item(), rel=1e-5)
    assert theirs.item() > 1.02 * TOP_K, "an uneven load"
    ours.model.zero_grad()
    loss.backward(retain_graph=True)
    got = [p.grad.clone() for p in ours.parameters if p.grad is not None]
    ours.model.zero_grad()
    (0.02 * theirs).backward()
    for a, b in zip(got, (p.grad for p in ours.parameters if p.grad is not None), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_balance_of_each_layer_is_the_sum_of_transformers() -> None:
    calls, notes = routed(trainer(recipe()), rows := batch())
    loss = calls.loss([LoadBalance(weight=1.0, over="layer")], calls.load())
    mask = torch.from_numpy(rows.document)
    theirs = sum(load_balancing_loss_func((n["router_logits"].flatten(0, 1),), EXPERTS, TOP_K, mask) for n in notes)
    assert loss.item() == pytest.approx(float(theirs.detach()), rel=1e-5)  # type: ignore[union-attr]


def test_the_z_loss_is_transformers() -> None:
    calls, notes = routed(trainer(recipe()), batch(padded=False))
    loss = calls.loss([RouterZLoss(weight=0.5)], calls.load())
    theirs = router_z_loss_func(torch.cat([note["router_logits"] for note in notes], 1))
    assert loss.item() == pytest.approx(0.5 * theirs.item(), rel=1e-5)  # type: ignore[attr-defined]


def test_balance_within_sequences_is_deepseeks_by_hand() -> None:
    """Equations 17 to 20 of arXiv:2412.19437, in Python's own loops."""
    calls, notes = routed(trainer(recipe(), mixture("sigmoid")), rows := batch())
    expected = 0.0
    for note in notes:
        for row in range(ROWS):
            real = np.flatnonzero(rows.document[row])
            for i in range(EXPERTS):
                f = sum(i in note["chosen"][row, t].tolist() for t in real) * EXPERTS / (TOP_K * len(real))
                scores = [note["router_logits"][row, t].detach().sigmoid().tolist() for t in real]
                expected += f * sum(s[i] / sum(s) for s in scores) / len(real) / ROWS
    assert calls.loss([SequenceBalance(weight=1e-4)], calls.load()).item() == pytest.approx(1e-4 * expected, rel=1e-5)


LOSSES = [LoadBalance(weight=0.3), RouterZLoss(weight=0.1), SequenceBalance(weight=0.2)]


@pytest.mark.parametrize(
    "losses", [[loss] for loss in LOSSES] + [LOSSES], ids=lambda each: "+".join(x.kind for x in each)
)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_the_gradient_is_the_same_for_every_split(losses: list[Any], jitter: float) -> None:
    given = recipe(*losses)
    found = []
    for micro_rows in (6, 4, 1):
        ours = trainer(given, micro_tokens=micro_rows * LENGTH)
        ours.gradients(1, batch())
        found.append(torch.cat([p.grad.flatten() for p in ours.parameters if p.grad is not None]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-6)
    without = trainer(recipe())
    without.gradients(1, batch())
    plain = torch.cat([p.grad.flatten() for p in without.parameters if p.grad is not None])
    assert (plain - found[0]).abs().max() > 1e-4
    if jitter:
        noisy = trainer(recipe(*losses, jitter=jitter), micro_tokens=4 * LENGTH)
        noisy.gradients(1, batch())
        assert noisy.dropout is not None
        first = [p.grad.clone() for p in noisy.parameters if p.grad is not None]
        noisy.optimizer.zero_grad()
        noisy.gradients(1, batch())  # drawn from seed and step alone
        assert all(torch.equal(a, p.grad) for a, p in zip(first, noisy.parameters, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("n_identity", [0, 3])
def test_corrections_move_against_the_load_and_by_nothing_else(n_identity: int) -> None:
    """Those of identities do not move."""
    spec = mixture("sigmoid", n_identity=n_identity)
    ours = trainer(recipe(correction_speed=0.01), spec)
    _, notes = routed(ours, batch())
    real = torch.from_numpy(batch().document > 0)
    result = ours.step(1, batch())
    assert result.load is not None
    for router, note, counts in zip(ours.mixtures.routers, notes, result.load.counts, strict=True):
        chosen = note["chosen"][real].flatten().tolist()
        mean = len(chosen) / (EXPERTS + n_identity)
        assert counts.tolist() == [chosen.count(i) for i in range(EXPERTS + n_identity)]
        expected = [0.01 * ((mean > chosen.count(i)) - (mean < chosen.count(i))) for i in range(EXPERTS)]
        expected += [0.0] * n_identity
        assert router.correction is not None
        assert router.correction.tolist() == pytest.approx(expected)
        assert router.correction.grad is None
    still = trainer(recipe(), spec)
    still.step(1, batch())
    assert all((router.correction == 0).all() for router in still.mixtures.routers)  # type: ignore[union-attr]


def test_corrections_even_the_load_out() -> None:
    ours = trainer(recipe(correction_speed=0.02), mixture("sigmoid"))
    busiest = [ours.step(t, batch(seed=t, padded=False)).load.busiest for t in range(1, 41)]  # type: ignore[union-attr]
    assert np.mean(busiest[-5:]) < 0.75 * np.mean(busiest[:5])


def test_a_balance_loss_evens_the_load_out() -> None:
    results = {}
    for weight in (None, 0.5):
        losses = () if weight is None else (LoadBalance(weight=weight),)
        ours = trainer(recipe(*losses, optimizer=AdamW(lr=0.01)))
        results[weight] = [ours.step(t, batch(seed=t, padded=False)) for t in range(1, 31)][-1]
    assert results[None].router_loss is None
    assert results[0.5].load.entropy > results[None].load.entropy  # type: ignore[union-attr]
    assert results[0.5].load.busiest < results[None].load.busiest  # type: ignore[union-attr]


def test_a_load_in_figures() -> None:
    load = ExpertLoad(
        (torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, 1.0])), (2, 2), dropped=2.0, rows=1
    )
    assert load.busiest == 4.0
    assert load.entropy == pytest.approx(0.5)
    assert load.dropped_share == pytest.approx(0.25)
    uneven = ExpertLoad((torch.tensor([3.0, 1.0]),), (4,))
    assert uneven.entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2))
    assert uneven.busiest == 1.5


def test_what_found_no_place_is_reported() -> None:
    ours = trainer(recipe(), mixture(capacity=layers.FixedCapacity(tokens=2)))
    result = ours.step(1, batch(padded=False))
    assert result.load is not None
    places = 2 * ROWS * EXPERTS * 2  # of each expert in each row of each layer
    assert result.load.dropped >= 2 * ROWS * LENGTH * TOP_K - places
    assert 0 < result.load.dropped_share < 1


def test_dense_models_know_nothing_of_it() -> None:
    ours = trainer(recipe(LoadBalance(weight=0.1), jitter=0.1, correction_speed=0.1), decoder())
    result = ours.step(1, batch())
    assert (result.load, result.router_loss, ours.dropout) == (None, None, None)


def test_it_is_written_and_read() -> None:
    given = recipe(*LOSSES, correction_speed=1e-3, jitter=0.01)
    assert loads(dumps(given)) == given
    assert "LoadBalance" in dumps(given)


def test_layers_of_other_numbers_of_experts_have_losses_of_their_own() -> None:
    """Over layers together there is no such sum: told before a run begins. Each by itself learns."""
    spec = mixture()
    first, second = spec.stack.blocks
    other = edited(second, layers.RouterSpec, lambda router: router.but(n_experts=Count(4)))
    spec = spec.but(stack=spec.stack.but(blocks=(first, other)))
    together, apart = (recipe(LoadBalance(weight=0.1, over=over)) for over in ("layers", "layer"))
    says = r"LoadBalance\.over = 'layers' adds up .* these have 4 and 6 of them; give the loss `over: layer`"
    with pytest.raises(UsageError, match=says):
        check_run(spec, together, text_data())
    with pytest.raises(UsageError, match=says):
        trainer(together, spec)
    result = trainer(apart, spec).step(1, batch())
    assert result.load is not None
    assert [len(counts) for counts in result.load.counts] == [6, 4]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: LoadBalance(weight=0.0), "LoadBalance.weight = 0.0 must be above 0"),
        (lambda: RouterTraining(jitter=1.0), "RouterTraining.jitter = 1.0 must be at least 0 and below 1"),
        (lambda: RouterTraining(correction_speed=-0.1), "RouterTraining.correction_speed = -0.1 must be at least 0"),
        (lambda: RouterTraining(losses=(LOSSES[0], LOSSES[0])), "RouterTraining.losses = .* give each kind once"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(wrong: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        wrong()
