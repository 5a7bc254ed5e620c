"""Batch normalisation against torch's BatchNorm1d on the real tokens alone: training, kept statistics, evaluation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import BatchNormSpec, ChainSpec, Dropout, GQASpec, LayerNormSpec, RMSNormSpec
from anyformer.layers.batch_norm import BatchNorm
from anyformer.layers.context import ForwardContext
from anyformer.layers.tokens import Tokens
from anyformer.model import build
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Place
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.evaluation import evaluate
from anyformer.training.step import Trainer
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import edited
from tests.training.models import decoder
from tests.training.texts import text_data

D = 12


def tokens(mask: Tensor | None) -> Tokens:
    return Tokens(torch.arange(7)[None], document=mask)


def norms(momentum: float) -> tuple[BatchNorm, nn.BatchNorm1d]:
    ours, theirs = (
        BatchNorm(BatchNormSpec(eps=1e-3, momentum=momentum), Place(D, (D,))),
        nn.BatchNorm1d(D, 1e-3, momentum),
    )
    generator = torch.Generator().manual_seed(0)
    pairs = zip(ours.parameters(), (theirs.weight, theirs.bias, theirs.running_mean, theirs.running_var), strict=True)
    with torch.no_grad():
        for mine, other in pairs:
            assert other is not None
            other.copy_(torch.rand(D, generator=generator) + 0.5)
            mine.copy_(other)
    return ours, theirs


def test_a_batch_of_padding_alone_moves_nothing() -> None:
    norm, _ = norms(0.5)
    kept = norm.mean.clone(), norm.variance.clone()
    context = ForwardContext(tokens(torch.zeros(2, 7).long()), {}, dropout=Dropout())
    assert norm(torch.randn(2, 7, D), context).isfinite().all()
    assert (norm.mean.equal(kept[0]), norm.variance.equal(kept[1])) == (True, True)


@pytest.mark.parametrize("momentum", [0.1, 0.7])
@pytest.mark.parametrize("padded", [False, True])
def test_it_is_torchs_on_the_real_tokens(padded: bool, momentum: float) -> None:
    mask = torch.ones(3, 7).long()
    if padded:
        mask[0, :3], mask[2, 5:] = 0, 0
    ours, theirs = norms(momentum)
    x = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1)) * 2 + 1
    for training in (True, True, False):
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        theirs.train(training)
        context = ForwardContext(tokens(mask if padded else None), {}, dropout=Dropout() if training else None)
        found, expected = ours(mine, context)[mask.bool()], theirs(other[mask.bool()])
        assert distance(found, expected) < FLOAT32
        for y, at in ((found, ours), (expected, theirs)):
            at.zero_grad()
            (y * y.detach().sin()).sum().backward()
        assert mine.grad is not None
        assert other.grad is not None
        assert distance(mine.grad, other.grad) < FLOAT32
        assert ours.weight.grad is not None
        assert theirs.weight.grad is not None
        assert distance(ours.weight.grad, theirs.weight.grad) < FLOAT32
        assert theirs.running_mean is not None
        assert theirs.running_var is not None
        assert distance(ours.mean, theirs.running_mean) < FLOAT32
        assert distance(ours.variance, theirs.running_var) < FLOAT32
        assert ours.mean.grad is None


def model_spec() -> ModelSpec:
    return edited(shrink(preset("gpt2").spec), LayerNormSpec, lambda norm: BatchNormSpec())


def test_a_model_with_it_learns_and_is_causal_when_it_does_not() -> None:
    model, ids = build(model_spec(), seed=0), torch.arange(48).view(4, 12) * 7 % 101
    names = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(names) == 2 * 5  # kept statistics of four norms of layers and the last
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        logits = model(ids, dropout=Dropout()).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    other = ids.clone()
    other[:, 8] += 1
    with torch.no_grad():
        before, after = model(ids).logits, model(other).logits
        assert torch.equal(before[:, :8], after[:, :8])
        trained, changed_later = (model(x, dropout=Dropout()).logits for x in (ids, other))
        assert not torch.equal(trained[:, :8], changed_later[:, :8])  # the caveat bites
    assert [caveat.law for caveat in BatchNormSpec().caveats()] == ["causality"]


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_trainer_moves_the_kept_statistics_and_evaluation_only_reads_them(rate: float) -> None:
    """A step is a pass of training whatever the rates; looks at the validation text, and calls of the model, are none."""
    spec = edited(decoder(), RMSNormSpec, lambda norm: BatchNormSpec())
    data, recipe = text_data(), Recipe(tokens=640, batch_tokens=64, seq_len=16, dropout=DropoutSpec(residual=rate))
    trainer = Trainer(build(spec, seed=0), recipe, objective_of(recipe.objective, spec))
    rows, validation = next(data.feed(recipe)), data.validation(recipe)
    assert validation is not None
    model = trainer.model
    seen: list[Tensor] = []
    last: Any = model.stack.norm
    last.register_forward_hook(lambda module, given, out: seen.append(given[0].detach()))
    trainer.step(1, rows)
    assert (rows.document > 0).all(), "every token of the batch is real"
    mean = seen[0].flatten(0, 1).mean(0)
    assert distance(last.mean, 0.1 * mean) < FLOAT32, "from 0, a tenth of the way to the batch's"
    kept = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert kept
    first, again = (evaluate(model, trainer.objective, validation).loss for _ in range(2))
    evaluate(model, trainer.objective, validation, most_tokens=64)
    model(torch.zeros(1, 4, dtype=torch.long))
    assert first == again
    assert all(torch.equal(p, kept[name]) for name, p in model.named_parameters() if name in kept)
    trainer.step(2, rows)
    assert not any(torch.equal(p, kept[name]) for name, p in model.named_parameters() if name in kept)


def test_where_it_cannot_stand_it_is_refused() -> None:
    with pytest.raises(SpecError, match="BatchNorm, which asks what is padding; let it stand by itself"):
        ChainSpec(maps=(BatchNormSpec(),))
    with pytest.raises(SpecError, match="BatchNorm stands where nothing tells it what is padding"):
        build(changed(shrink(preset("llama-7b").spec), GQASpec, norm_query=BatchNormSpec()), seed=0)(
            torch.zeros(1, 3).long()
        )
    with pytest.raises(SpecError, match=r"BatchNorm\.momentum = 0\.0 must be above 0"):
        BatchNormSpec(momentum=0.0)
