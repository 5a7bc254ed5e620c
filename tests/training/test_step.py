"""One step: accumulation, decay, clipping, dropout, against plain PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import UsageError
from anyformer.layers import BatchNormSpec
from anyformer.model import build
from anyformer.recipe import Adam, AdamW, CausalLM, Constant, DropoutSpec, Recipe, Warmup
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Batch
from anyformer.training.data.feed import parts_of
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from anyformer.training.step.optimizer import clip, ways
from anyformer.training.step.trainer import rows_of
from tests.training.models import VOCAB, decoder, encoder_decoder

ROWS, LENGTH = 6, 10


def recipe(**changes: object) -> Recipe:
    plain = Recipe(tokens=ROWS * LENGTH * 50, batch_tokens=ROWS * LENGTH, seq_len=LENGTH, schedule=(Constant(),))
    return plain.but(**changes)


def batch(seed: int = 0) -> Batch:
    """Rows of very different numbers of labels, so that a mean of means would show."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCAB, (ROWS, LENGTH))
    labels = rng.integers(0, VOCAB, (ROWS, LENGTH))
    for row, kept in enumerate((10, 1, 10, 2, 10, 10)):
        labels[row, kept:] = NOT_PREDICTED
    ones = np.ones_like(ids)
    return Batch(ids, labels, ones, np.tile(np.arange(LENGTH), (ROWS, 1)), ones - 1)


def trainer(given: Recipe, spec: ModelSpec | None = None, micro_tokens: int | None = None) -> Trainer:
    model = build(spec or decoder(), seed=1)
    return Trainer(model, given, objective_of(CausalLM(), model.spec), micro_tokens=micro_tokens)


def gradient(of: Trainer) -> Tensor:
    return torch.cat([p.grad.flatten() for p in of.parameters if p.grad is not None])


@pytest.mark.parametrize("micro_rows", [1, 2, 4, 5, 6, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_the_same_for_every_split(micro_rows: int, smoothing: float) -> None:
    given = recipe(label_smoothing=smoothing)
    ours = trainer(given, micro_tokens=micro_rows * LENGTH)
    mean, tokens, *_ = ours.gradients(1, batch())
    model = build(decoder(), seed=1)
    logits = model(torch.from_numpy(batch().input_ids)).logits.flatten(0, 1)
    labels = torch.from_numpy(batch().labels).flatten()
    loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)  # the mean over all labels of the batch
    loss.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient(ours), theirs, rtol=1e-5, atol=1e-7)
    assert tokens == 43
    assert mean == pytest.approx(float(F.cross_entropy(logits, labels).detach()), rel=1e-6)


def test_a_batch_without_labels_changes_no_more_than_decay() -> None:
    empty = batch()._replace(labels=np.full((ROWS, LENGTH), NOT_PREDICTED))
    result = trainer(recipe()).step(1, empty)
    assert (result.loss, result.tokens, result.grad_norm) == (0, 0, 0)


def test_statistics_of_a_whole_batch_allow_no_split() -> None:
    spec = decoder().but(stack=decoder().stack.but(norm=BatchNormSpec()))
    trainer(recipe(), spec)
    with pytest.raises(UsageError, match="its BatchNorm are those of all rows of a batch; leave --micro-tokens out"):
        trainer(recipe(), spec, micro_tokens=LENGTH)


def test_a_split_loses_no_row() -> None:
    parts = parts_of(batch(), rows_of(batch(), 4 * LENGTH))
    assert [len(part.labels) for part in parts] == [4, 2]
    for name, field in batch()._asdict().items():
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), field)
    assert rows_of(batch(), 1) == 1


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01, weight_decay=0.3), Adam(lr=0.02, beta2=0.98, eps=1e-9)], ids=str)
def test_steps_equal_adam_by_hand(optimizer: AdamW | Adam) -> None:
    """Algorithm 2 of arXiv:1711.05101, written out in float64."""
    spec = decoder()
    ours = trainer(recipe(optimizer=optimizer, clip=0.5, schedule=(Warmup(steps=2), Constant())), spec)
    weights = {name: p.detach().double().clone() for name, p in ours.model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in weights.items()}
    second = {name: torch.zeros_like(p) for name, p in weights.items()}
    reference = build(spec, seed=1)
    peak = optimizer.lr
    assert isinstance(peak, float)
    decay = optimizer.weight_decay if isinstance(optimizer, AdamW) else 0.0
    for t in range(1, 5):
        rows = batch(seed=t)
        reference.load_state_dict({name: w.float() for name, w in weights.items()})
        reference.zero_grad()
        logits = reference(torch.from_numpy(rows.input_ids)).logits.flatten(0, 1)
        F.cross_entropy(logits, torch.from_numpy(rows.labels).flatten()).backward()
        grads = {name: p.grad.double() for name, p in reference.named_parameters() if p.grad is not None}
        norm = float(torch.cat([g.flatten() for g in grads.values()]).norm())
        result = ours.step(t, rows)
        lr = peak * min(1.0, t / 2)
        assert result.lr == pytest.approx(lr)
        assert result.grad_norm == pytest.approx(norm, rel=1e-4)
        for name, g in grads.items():
            g = g * min(1.0, 0.5 / norm)
            first[name] = optimizer.beta1 * first[name] + (1 - optimizer.beta1) * g
            second[name] = optimizer.beta2 * second[name] + (1 - optimizer.beta2) * g**2
            m, v = first[name] / (1 - optimizer.beta1**t), second[name] / (1 - optimizer.beta2**t)
            shrunk = decay if name.endswith("weight") and "norm" not in name and "tokens" not in name else 0.0
            weights[name] = weights[name] * (1 - lr * shrunk) - lr * m / (v.sqrt() + optimizer.eps)
    for name, p in ours.model.named_parameters():
        torch.testing.assert_close(p.detach().double(), weights[name], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "spec", [decoder(tied=False, learned_positions=16), encoder_decoder()], ids=["decoder", "2017"]
)
def test_matrices_decay_and_nothing_else(spec: ModelSpec) -> None:
    model = build(spec)
    decays = {name: way.decays for name, way in ways(spec).items()}
    assert decays.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        table = "table" in name or "terms" in name or "shared" in name
        assert decays[name] == (parameter.dim() == 2 and not table), name
    assert {True, False} == set(decays.values())


def test_clipping_measures_and_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.zeros(shape, requires_grad=True) for shape in ((3, 4), (5,))]
    grads = [torch.randn(p.shape, generator=generator) for p in parameters]
    whole = torch.cat([g.flatten() for g in grads])
    for limit in (None, 100.0, 0.5):
        for p, g in zip(parameters, grads, strict=True):
            p.grad = g.clone()
        norm = clip(list(parameters), limit)
        assert float(norm) == pytest.approx(float(whole.norm()))
        scale = 0.5 / float(whole.norm()) if limit == 0.5 else 1.0
        left = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        torch.testing.assert_close(left, whole * scale, rtol=1e-4, atol=1e-6)


def test_dropout_depends_on_seed_and_step_alone() -> None:
    given = recipe(dropout=DropoutSpec(residual=0.5, embedding=0.1))

    def nats(seed: int, step: int, before: int) -> float:
        torch.manual_seed(before)
        return trainer(given.but(seed=seed)).gradients(step, batch())[0]

    assert nats(0, 3, before=1) == nats(0, 3, before=2)
    assert len({nats(0, 3, 1), nats(0, 4, 1), nats(1, 3, 1), trainer(recipe()).gradients(3, batch())[0]}) == 4


class Noisy(nn.Module):
    """A part of one's own that draws."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any, **options: Any) -> Any:
        found = self.inner(*given, **options)
        return found + 0.1 * torch.randn_like(found)


def test_what_parts_draw_depends_on_seed_and_step_without_dropout_too() -> None:
    def nats(step: int, before: int) -> float:
        ours = trainer(recipe())
        assert ours.model.stack.norm is not None
        ours.model.stack.norm = Noisy(ours.model.stack.norm)
        torch.manual_seed(before)
        return ours.gradients(step, batch())[0]

    assert nats(3, before=1) == nats(3, before=2) != nats(4, before=1)


def test_an_infinite_gradient_leaves_the_weights_alone() -> None:
    ours = trainer(recipe())
    with torch.no_grad():
        ours.parameters[0][0, 0] = float("nan")
    before = [p.clone() for p in ours.parameters]
    result = ours.step(1, batch())
    assert not result.finite
    assert all(torch.equal(a, b) for a, b in zip(before[1:], ours.parameters[1:], strict=True))


def test_bf16_steps_keep_float32_weights_and_learn() -> None:
    ours = trainer(recipe(precision="bf16", optimizer=AdamW(lr=0.01)))
    losses = [ours.step(t, batch()).loss for t in range(1, 9)]
    assert losses[-1] < losses[0] - 0.1
    assert {p.dtype for p in ours.parameters} == {torch.float32}
    assert {v.dtype for state in ours.optimizer.state.values() for v in state.values()} == {torch.float32}
